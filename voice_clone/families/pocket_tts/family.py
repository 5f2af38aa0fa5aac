"""Pocket TTS. A frame is 32 latents."""

from voice_clone.family import CLIP, Artifact, EncoderPart, Family, FrameBudget, FrameForm, Option, Weights

CARD = Family(
    name="pocket_tts",
    title="Pocket TTS",
    recognised_by="pocket_tts.json: model_type=pocket_tts",
    frame=FrameForm("FP32", kind="frames of latents"),
    weights=(Weights("model"),),
    files=("tokenizer.json",),
    without_sizes=("mimi.encoder.model.0.conv.weight", "flow_lm.bos_emb"),
    configurations=("config.load_config", "prompt.read"),
    shortcoming="config.shortcoming",
    chunk_frames=(1, 1, 2, 4, 8),
    prompt=("text_ids", "frames_after_end", "latents"),
    artifacts=(Artifact("latents", "FP32", (CLIP, CLIP), "frames x latents"),),
    encoders=(EncoderPart(("latents",), "Waveform to latents (Mimi)."),),
    modes={"reference": ()},
    knobs={"do_sample": True, "temperature": None},
    budget=FrameBudget(per_token=5, more=25),  # a little more than the official code grants a text
    options=(
        Option("steps", int, "steps of a frame, of checkpoints whose head has them", 1, 16, default=1),
        Option("end_threshold", float, "logit above which a speech ends", -10, 10),
        Option("frames_after_end", int, "frames that are heard when the model ends", 0, 25),
    ),
    max_characters=200,
    native_decoder=True,
    notes={"max_state_bytes": ", 2.1 MB each at the released shape"},
    sizes="2 to 336 M",
    licence="CC-BY-4.0",
    cells={
        "without transcript": "yes: a transcript is not used",
        "rate": "24 kHz",
        "frame": "32 latents; 12.5",
        "first audio": "one frame",
        "kept": "16 kB",
    },
)
