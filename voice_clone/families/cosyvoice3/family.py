"""CosyVoice3. A frame is one speech token."""

from voice_clone.families.cosyvoice3.config import (
    ALIGN,
    CROSS_LINGUAL,
    INSTRUCT,
    LEAST_RATE,
    MEL,
    MEL_BANDS,
    SPEAKER,
    SPEAKER_SIZE,
    TOKENS,
    ZERO_SHOT,
)
from voice_clone.family import CLIP, Artifact, EncoderPart, Family, FrameBudget, FrameForm, Option, Weights

CARD = Family(
    name="cosyvoice3",
    title="CosyVoice3",
    recognised_by="cosyvoice3.yaml",
    frame=FrameForm("UINT16", kind="speech tokens", voice=(MEL, SPEAKER)),
    weights=tuple(Weights(name, pickles=f"{name}.pt") for name in ("llm", "flow", "hift")),
    files=("CosyVoice-BlankEN/vocab.json", "CosyVoice-BlankEN/merges.txt"),
    graphs=("speech_tokenizer_v3.onnx", "campplus.onnx"),
    chunk_frames=(),
    prompt=("prefix_ids", "text_ids", "heard_tokens", TOKENS, MEL, SPEAKER),
    artifacts=(
        Artifact(MEL, "INT16", (CLIP, MEL_BANDS), "log-mel frames, in steps of 1 / 2048"),
        Artifact(SPEAKER, "FP32", (SPEAKER_SIZE,), "speaker embedding"),
        Artifact(TOKENS, "UINT16", (CLIP,), "speech tokens"),
    ),
    encoders=(
        EncoderPart(
            (MEL,),
            "Waveform to log-mel frames, in steps of 1 / 2048.",
            stage="mel",
            load="encoder.load_mel",
            settings=("threads",),
            in_torch=False,
            least_rate=LEAST_RATE,
        ),
        EncoderPart(
            (SPEAKER,),
            "Waveform to speaker embedding (Kaldi filter banks + CAM++, campplus.onnx).",
            stage="speaker_encoder",
            load="encoder.load_speaker",
            settings=("threads",),
            in_torch=False,
            least_rate=LEAST_RATE,
        ),
        EncoderPart(
            (TOKENS,),
            "Waveform to speech tokens (Whisper's log-mel + S3 tokenizer, speech_tokenizer_v3.onnx).",
            stage="speech_tokenizer",
            load="encoder.load_tokens",
            settings=("device", "onnx_provider", "threads"),
            least_rate=LEAST_RATE,
        ),
    ),
    modes={ZERO_SHOT: ("reference_text",), CROSS_LINGUAL: ()},
    knobs={"do_sample": True, "temperature": 1.0, "top_k": 25, "top_p": 0.8},
    budget=FrameBudget(per_token=20, least=375, most=4100),  # 0.8 s, 15 s, 164 s
    x_vector_only=True,
    options=(
        Option(INSTRUCT, str, "how to speak, in a sentence", words=True),
        Option(ALIGN, bool, "true: each stream is heard after 16 tokens"),
    ),
    instructions=INSTRUCT,
    references=TOKENS,
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
