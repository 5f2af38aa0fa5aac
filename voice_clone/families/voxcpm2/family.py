"""VoxCPM2. A frame is four latents."""

from voice_clone.family import CLIP, Artifact, EncoderPart, Family, FrameBudget, FrameForm, Option, Weights

CARD = Family(
    name="voxcpm2",
    title="VoxCPM2",
    recognised_by="config.json: architecture=voxcpm2",
    frame=FrameForm("FP32", kind="frames of latents"),
    weights=(Weights("model"), Weights("audiovae", pickles="audiovae.pth")),
    files=("tokenizer.json",),
    configurations=("config.load_config", "audio_vae_config.load_audio_vae_config"),
    chunk_frames=(1, 2, 4, 6),
    prompt=("text_ids", "target_tokens", "reference_latents", "prompt_latents"),
    artifacts=(
        Artifact("reference_latents", "FP32", (CLIP, CLIP), "frames x latents"),
        Artifact("prompt_latents", "FP32", (CLIP, CLIP), "frames x latents; no frame without a transcript"),
    ),
    encoders=(EncoderPart(("reference_latents", "prompt_latents"), "Waveform to latents (AudioVAE)."),),
    modes={"icl": ("reference_text",), "reference": ()},
    knobs={"temperature": 1.0},
    budget=FrameBudget(per_token=6, more=10),  # what the official code grants a text
    options=(
        Option("cfg_value", float, "strength of text and voice", 1.0, 3.0, default=2.0),
        Option("inference_timesteps", int, "steps of a frame", 4, 30, default=10),
        Option("mode", str, "what is heard of a clip", choices=("reference", "continuation", "ref_continuation")),
        Option("style", str, "how to speak, in words", words=True),
    ),
    instructions="style",
    voiceless=True,
    references="prompt_latents",
    native_decoder=True,
    notes={
        "max_text_tokens": ", and so are longer transcripts",
        "max_state_bytes": ", 0.68 MB each at the released shape",
    },
    sizes="2 B",
    licence="Apache-2.0",
    cells={
        "with transcript": "`icl` (`ref_continuation` in `info`)",
        "without a voice": "yes, in any voice, or one that `style` describes",
        "instructions": "`style`, a sentence",
        "rate": "48 kHz",
        "frame": "4 latents of 64; 6.25",
        "first audio": "one frame",
        "kept": "129 kB",
    },
)
