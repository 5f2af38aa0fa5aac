"""Fish Speech S2 Pro."""

from voice_clone.family import CLIP, Artifact, EncoderPart, Family, FrameBudget, FrameForm, Weights

CARD = Family(
    name="fish_speech",
    title="Fish Speech S2 Pro",
    recognised_by="config.json: model_type=fish_qwen3_omni",
    frame=FrameForm("UINT16"),
    weights=(Weights("model"), Weights("codec", pickles="codec.pth")),
    configurations=("config.load_config", "prompt.read"),
    chunk_frames=(1, 2, 4, 8, 16),
    prompt=("reference_ids", "reference_codes", "text_ids"),
    artifacts=(Artifact("codec_codes", "UINT16", (CLIP, CLIP), "frames x codebooks"),),
    encoders=(EncoderPart(("codec_codes",), "Waveform to codec codes (DAC)."),),
    modes={"icl": ("reference_text",)},
    knobs={"do_sample": True, "temperature": 1.0, "top_k": 30, "top_p": 0.9},
    budget=FrameBudget(per_token=21, least=331, most=3528),  # 1 s, 15.4 s, 164 s
    native_decoder=True,
    notes={"max_state_bytes": ", 8.9 MB each at the released shape"},
    sizes="4 B",
    licence="research, not commercial",
    cells={
        "instructions": "tags in the text",
        "rate": "44.1 kHz",
        "frame": "10 codes; 21.5",
        "first audio": "one frame",
        "kept": "4 kB",
    },
)
