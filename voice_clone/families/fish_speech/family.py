"""Fish Speech S2 Pro."""

from voice_clone.family import CLIP, Artifact, EncoderPart, Family, FrameForm, Weights

CARD = Family(
    name="fish_speech",
    title="Fish Speech S2 Pro",
    recognised_by="config.json: model_type=fish_qwen3_omni",
    frame=FrameForm("UINT16"),
    weights=(Weights("model"), Weights("codec", pickles="codec.pth")),
    configurations=("config.load_config", "text.load_tokenizer"),
    chunk_frames=(1, 2, 4, 8, 16),
    prompt=("reference_ids", "reference_codes", "text_ids"),
    artifacts=(Artifact("codec_codes", "UINT16", (CLIP, CLIP), "frames x codebooks"),),
    encoders=(EncoderPart(("codec_codes",), "Waveform to codec codes (DAC)."),),
    modes={"icl": ("reference_text",)},
    knobs=("do_sample", "temperature", "top_k", "top_p"),
    native_decoder=True,
    notes={"max_state_bytes": ", 8.9 MB each at the released shape"},
)
