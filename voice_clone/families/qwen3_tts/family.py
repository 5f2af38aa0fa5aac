"""Qwen3-TTS: its three kinds of checkpoints, each a family of its own. Only Base clones."""

from dataclasses import dataclass

from voice_clone.family import CLIP, Artifact, EncoderPart, Family, FrameBudget, FrameForm, Option, Weights


@dataclass(frozen=True)
class SamplingDefaults:
    """`generation_config.json`; the fall-backs are those of the official package, but for `part_characters`.

    `subtalker_*` govern codebooks 1..15, the others codebook 0; see `autoregressive.sampling`.

    Attributes:
        part_characters: how long a text the model speaks well in one piece; within a piece its pace climbs. About 40 s.
    """

    do_sample: bool = True
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    subtalker_do_sample: bool = True
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0
    max_new_tokens: int = 2048
    part_characters: int = 600


BASE = Family(
    name="qwen3_tts",
    title="Qwen3-TTS Base",
    recognised_by="config.json: tts_model_type=base",
    frame=FrameForm("INT32"),
    weights=(Weights("model"), Weights("speech_tokenizer/model")),
    files=("tokenizer.json|vocab.json+merges.txt+tokenizer_config.json",),
    check_shared="kinds.check_shared",
    chunk_frames=(1, 2, 4, 8, 12),
    prompt=(
        "role_ids",
        "text_ids",
        "speaker_embedding",
        "reference_ids",
        "reference_codes",
        "language_id",
        "speaker_id",
        "instruct_ids",
    ),
    artifacts=(
        Artifact("speaker_embedding", "FP32", (CLIP,), "of the checkpoint's size (mel + ECAPA-TDNN)"),
        Artifact("codec_codes", "INT32", (CLIP, CLIP), "frames x codebooks (Mimi encoder + split RVQ)"),
    ),
    encoders=(
        EncoderPart(
            ("speaker_embedding", "codec_codes"),
            "Waveform to speaker embedding and codec codes.",
            settings=("device", "network_fingerprint", "threads", "packed_bytes", "max_chunk_frames"),
        ),
    ),
    modes={"icl": ("reference_text",), "x_vector": ()},
    knobs=dict.fromkeys(
        ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty", "non_streaming_mode")
    ),  # the checkpoint's defaults
    budget=FrameBudget(per_token=12, least=192),  # 1 s, 15.4 s; the most is the checkpoint's
    languages=None,
    embedding=True,
    x_vector_only=True,
    options=(
        Option("instruct", str, "how to speak, in words, or which voice to make; Base follows none"),
        Option("subtalker_do_sample", bool, "do_sample of codebooks 2 to 16"),
        Option("subtalker_temperature", float, "temperature of codebooks 2 to 16"),
        Option("subtalker_top_k", int, "top_k of codebooks 2 to 16"),
        Option("subtalker_top_p", float, "top_p of codebooks 2 to 16"),
    ),
    appends=True,
    references="codec_codes",
    native_decoder=True,
    without_torch=True,
    prefix_bytes=128 << 20,
    fingerprints=("speaker_encoder_fingerprint", "codec_encoder_fingerprint"),
    notes={"max_state_bytes": ", 5.2 MB each at the released shape"},
    sizes="0.6 B, 1.7 B",
    licence="Apache-2.0",
    cells={
        "without a voice": "by a speaker embedding",
        "instructions": "no",
        "rate": "24 kHz",
        "frame": "16 codes; 12.5",
        "first audio": "one frame",
        "kept": "12 kB",
        "language": "one of its list",
    },
)

_KIND = BASE._replace(
    artifacts=(),
    encoders=(EncoderPart((), "Says why it makes no voice of a clip.", load="kinds.load_no_encoder", settings=()),),
    modes={"icl": ()},
    presets=True,
    instructions="instruct",
    fingerprints=("fingerprint",),
    decoder_of=BASE.name,
)

CUSTOM_VOICE = _KIND._replace(
    name="qwen3_tts_custom_voice",
    title="Qwen3-TTS CustomVoice",
    recognised_by="config.json: tts_model_type=custom_voice",
)

VOICE_DESIGN = _KIND._replace(
    name="qwen3_tts_voice_design",
    title="Qwen3-TTS VoiceDesign",
    recognised_by="config.json: tts_model_type=voice_design",
    voiceless=True,
)
