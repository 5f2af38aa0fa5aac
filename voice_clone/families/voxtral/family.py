"""Voxtral TTS."""

from voice_clone.family import CLIP, Artifact, EncoderPart, Family, FrameBudget, FrameForm, Option, Weights

CARD = Family(
    name="voxtral",
    title="Voxtral TTS",
    recognised_by="params.json: model_type=voxtral_tts",
    frame=FrameForm("UINT16"),
    weights=(Weights("consolidated"), Weights("voices", pickles="voice_embedding", where="presets")),
    files=("tekken.json",),
    chunk_frames=(1, 2, 4, 8, 12),
    prompt=("before_voice", "text_ids", "preset", "codec_codes"),
    artifacts=(Artifact("codec_codes", "UINT16", (CLIP, CLIP), "frames x codebooks"),),
    encoders=(EncoderPart(("codec_codes",), "Waveform to codec codes, if the checkpoint has the codec's encoder."),),
    modes={"icl": ()},
    budget=FrameBudget(per_token=12, least=192, most=2048),  # 1 s, 15.4 s, 164 s, the most that upstream makes
    languages=("english", "french", "spanish", "german", "italian", "portuguese", "dutch", "arabic", "hindi"),
    options=(Option("guidance", float, "strength of text and voice", 0, 10, default=1.2),),  # as upstream serves it
    native_decoder=True,
    presets=True,
    notes={"max_state_bytes": ", 0.55 MB each at the released shape"},
    sizes="4 B",
    licence="CC-BY-NC-4.0, not commercial",
    cells={
        "with transcript": "no: the encoder was not released",
        "without transcript": "no",
        "without a voice": "in 20 presets",
        "rate": "24 kHz",
        "frame": "37 codes; 12.5",
        "first audio": "one frame",
        "kept": "9 kB",
    },
)
