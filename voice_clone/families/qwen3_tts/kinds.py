"""What each kind of checkpoint cannot do, and which kind can; the stand-in for a kind without an encoder.

Needs no torch.
"""

from __future__ import annotations

from pathlib import Path

from voice_clone.checkpoint_folder import same_bytes
from voice_clone.errors import CheckpointError, Unsupported
from voice_clone.families.qwen3_tts.config import CODEC_FOLDER, Kind, Qwen3TTSConfig, load_config
from voice_clone.request_fields import SOURCES
from voice_clone.settings import EncoderSettings, Settings
from voice_clone.speakers.record import IN_CONTEXT
from voice_clone.speech import SpeechRequest
from voice_clone.stages.protocols import NoEncoder

CLONING = "to clone a voice, take the `model` qwen3_tts, of a Base checkpoint"
NO_CLONING: dict[Kind, str] = {
    "custom_voice": f"this CustomVoice checkpoint has built-in speakers alone; {CLONING}",
    "voice_design": f"this VoiceDesign checkpoint makes voices of descriptions (instruct) alone; {CLONING}",
}
NO_INSTRUCTIONS: dict[Kind, str] = {
    "base": "Base checkpoints follow no instructions; leave `options.instruct` out, or take the `model` "
    "qwen3_tts_custom_voice (1.7B) or qwen3_tts_voice_design",
    "custom_voice": "CustomVoice of 0.6B follows no instructions; leave `options.instruct` out, or take the one of "
    "1.7B",
}


def check_source(speech: SpeechRequest, config: Qwen3TTSConfig) -> None:
    """Check that a checkpoint of this kind knows such sources of a voice.

    Raises:
        Unsupported: it does not.
    """
    if config.kind == "base":
        return
    known = {"voice"} if config.kind == "custom_voice" else set()
    given = {name for name in SOURCES if getattr(speech, name) is not None}
    if given - known or speech.x_vector_only is not None:
        raise Unsupported(NO_CLONING[config.kind])


def check_instruct(instruct: str | None, config: Qwen3TTSConfig) -> None:
    """Check that a checkpoint follows instructions, if there is one.

    Raises:
        Unsupported: it does not.
    """
    if instruct and not config.follows_instructions:
        raise Unsupported(NO_INSTRUCTIONS[config.kind])


def load_no_encoder(given: Settings) -> NoEncoder:
    """What a CustomVoice or VoiceDesign checkpoint says in place of an encoder.

    Raises:
        CheckpointError: it cannot be served.
    """
    config = load_config(EncoderSettings.of(given).checkpoint_dir)
    return NoEncoder({IN_CONTEXT: NO_CLONING.get(config.kind, CLONING)}, tuple(config.speakers))


def check_shared(checkpoint: Path, other: Path) -> None:
    """Check that the decoder of one checkpoint serves the frames of the other.

    Raises:
        CheckpointError: it does not.
    """
    if load_config(checkpoint).codec.decoder_config != load_config(other).codec.decoder_config or not same_bytes(
        checkpoint / f"{CODEC_FOLDER}/model.safetensors", other / f"{CODEC_FOLDER}/model.safetensors"
    ):
        raise CheckpointError(
            f"{CODEC_FOLDER}: the kinds of Qwen3-TTS share one decoder, and theirs differ; take one release"
        )
