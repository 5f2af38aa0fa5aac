"""Chirp, a made-up family: it shows that a family is added by files only.

It differs from the families of the package wherever a card lets it: three codebooks of different sizes, 44.1 kHz,
artifacts in float16, text as bytes, no speaker embedding, a decoder that needs the voice.
"""

from voice_clone.family import CLIP, Artifact, EncoderPart, Family, FrameForm, Option, Weights

CARD = Family(
    name="chirp",
    title="chirp",
    recognised_by="chirp.json: model_type=chirp",
    frame=FrameForm("UINT16", voice=("timbre",)),
    weights=(Weights("chirp"),),
    chunk_frames=(2, 4, 8),
    prompt=("timbre", "transcript", "text"),
    artifacts=(Artifact("timbre", "FP16", (CLIP, CLIP), "rows x size"),),
    encoders=(EncoderPart(("timbre",), "Waveform to timbre.", settings=("threads",)),),
    modes={"clone": ("reference_text",)},
    knobs=dict.fromkeys(("do_sample", "temperature", "top_k", "top_p")),  # the checkpoint's defaults
    options=(
        Option("vibrato", float, "0 is none", 0, 8),
        Option("breath", bool, "true: breathe in before the first word"),
    ),
    prefix_bytes=0,
    sizes="0.1 M",
    licence="Apache-2.0",
    cells={"rate": "44.1 kHz", "frame": "3 codes; 100", "first audio": "two frames", "kept": "640 bytes"},
)
