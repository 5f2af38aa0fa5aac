"""CosyVoice3. A frame is one speech token."""

from voice_clone.family import CLIP, Artifact, EncoderPart, Family, FrameBudget, FrameForm, Option, Weights

LEAST_RATE = 16_000  # Hz of a clip, as in the official code: the flow would clone the sound of a telephone

CARD = Family(
    name="cosyvoice3",
    title="CosyVoice3",
    recognised_by="cosyvoice3.yaml",
    frame=FrameForm("UINT16", kind="speech tokens", voice=("mel", "speaker")),
    weights=tuple(Weights(name, pickles=f"{name}.pt") for name in ("llm", "flow", "hift")),
    files=("CosyVoice-BlankEN/vocab.json", "CosyVoice-BlankEN/merges.txt"),
    graphs=("speech_tokenizer_v3.onnx", "campplus.onnx"),
    chunk_frames=(),
    prompt=("prefix_ids", "text_ids", "heard_tokens", "speech_tokens", "mel", "speaker"),
    artifacts=(
        Artifact("mel", "INT16", (CLIP, 80), "log-mel frames, in steps of 1 / 2048"),
        Artifact("speaker", "FP32", (192,), "speaker embedding"),
        Artifact("speech_tokens", "UINT16", (CLIP,), "speech tokens"),
    ),
    encoders=(
        EncoderPart(
            ("mel",),
            "Waveform to log-mel frames, in steps of 1 / 2048.",
            stage="mel",
            load="encoder.load_mel",
            settings=("threads",),
            in_torch=False,
            least_rate=LEAST_RATE,
        ),
        EncoderPart(
            ("speaker",),
            "Waveform to speaker embedding (Kaldi filter banks + CAM++, campplus.onnx).",
            stage="speaker_encoder",
            load="encoder.load_speaker",
            settings=("threads",),
            in_torch=False,
            least_rate=LEAST_RATE,
        ),
        EncoderPart(
            ("speech_tokens",),
            "Waveform to speech tokens (Whisper's log-mel + S3 tokenizer, speech_tokenizer_v3.onnx).",
            stage="speech_tokenizer",
            load="encoder.load_tokens",
            settings=("device", "onnx_provider", "threads"),
            least_rate=LEAST_RATE,
        ),
    ),
    modes={"zero_shot": ("reference_text",), "cross_lingual": ()},
    knobs={"do_sample": True, "temperature": 1.0, "top_k": 25, "top_p": 0.8},
    budget=FrameBudget(per_token=20, least=375, most=4100),  # 0.8 s, 15 s, 164 s
    x_vector_only=True,
    options=(
        Option("instruct", str, "how to speak, in a sentence", words=True),
        Option("align", bool, "true: each stream is heard after 16 tokens"),
    ),
    instructions="instruct",
    references="speech_tokens",
    streams="pages",
    fingerprints=("mel_fingerprint", "speaker_encoder_fingerprint", "speech_tokenizer_fingerprint"),
    notes={
        "max_text_tokens": "; the model was trained with up to 200, about 30 s",
        "code2wav.precision": ", but with bf16 the flow in bf16, if it has avx512bf16",
        "page_bytes": "; at the released shape a second takes 185 MB, with bf16 93 MB",
        "onnx_provider": ", but torch on a GPU if this ONNX Runtime has no cuda",
    },
    sizes="0.5 B",
    licence="Apache-2.0",
    cells={
        "instructions": "`instruct`, a sentence",
        "rate": "24 kHz",
        "frame": "one token; 25",
        "first audio": "16 tokens or more",
        "kept": "81 kB",
    },
)
