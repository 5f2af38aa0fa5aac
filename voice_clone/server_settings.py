"""Settings of the models that a server has once, for all families, and the settings of any model by its name."""

from __future__ import annotations

from pathlib import Path

from voice_clone.settings import (
    SWITCH_OFF,
    ClipCheckSettings,
    ClipSettings,
    DecoderSettings,
    EncoderSettings,
    PrecisionSettings,
    PromptSettings,
    StageSettings,
    TalkerSettings,
    VoiceSettings,
    setting,
    user_voices,
)


class SpeakerCacheSettings(VoiceSettings, ClipSettings):
    """Settings of `speaker_cache`."""

    voice_dir: Path = setting(user_voices, "folder of the voices; empty: in the user's data folder of the platform")
    voice_dir_wait: float = setting(1.0, "seconds to wait at start for another server to let voice_dir go")
    preloaded_voices: Path | None = setting(
        None,
        "a folder of exported bundles, only read: voices that the server registers when it starts, under names that "
        "are free",
    )
    model_types: tuple[str, ...] = setting(
        (),
        "families whose artifacts are made at upload, the default first; empty: all that this server has, by name",
    )
    cache_bytes: int = setting(512 << 20, "maximum bytes of artifacts in memory")
    cache_entries: int = setting(1024, "maximum number of artifacts in memory")
    max_voices: int = setting(1000, "registered voices")
    require_consent: bool = setting(
        False, "true: a voice without consent is refused, at upload and import", choices=SWITCH_OFF
    )
    extraction_timeout: float = setting(60.0, "maximum seconds in which the artifacts of a clip are made")
    voice_store_timeout: float = setting(1.0, "seconds that a request waits for the database to report what changed")
    voice_stale_seconds: float = setting(
        60.0, "seconds for which voices in memory speak while the database is away; 0: none", least=0.0
    )
    write_token: str = setting(
        "", "the token that is needed to change voices, see [security.md](security.md); as a variable only", secret=True
    )


class WholeSpeechSettings(StageSettings):
    """Settings of `speech_whole`."""

    max_whole_seconds: float = setting(
        60.0, "maximum seconds of audio in one answer; a longer speech is refused: stream it"
    )
    max_whole_speeches: int = setting(
        16, "whole speeches made at once; more are refused. Above 24 the Python backend needs more than 32 threads"
    )


class AlignerSettings(PrecisionSettings):
    """Settings of `aligner`; those of precision and device count for a checkpoint alone."""

    aligner_checkpoint_dir: Path | None = setting(
        None, "the folder of a checkpoint of Qwen3-ForcedAligner; default: pocketsphinx, which knows English"
    )
    max_alignments: int = setting(64, "speeches aligned at once, whose pieces are awaited; more are refused")


class TextSettings(StageSettings):
    """Settings of `text_front_end`."""

    max_planned_characters: int = setting(100_000, "maximum length of a text that is planned")
    max_planned_speeches: int = setting(
        8, "planned speeches made at once; more are refused. Above 12 the Python backend needs more than 32 threads"
    )


def settings_of(model: str) -> type[StageSettings]:
    """The settings of a model, by the end of its name; one of no stage that all families have is a voice encoder."""
    stages: dict[str, type[StageSettings]] = {
        "prompt": PromptSettings,
        "talker": TalkerSettings,
        "code2wav": DecoderSettings,
        "speaker_cache": SpeakerCacheSettings,
        "speech_whole": WholeSpeechSettings,
        "text_front_end": TextSettings,
        "clip_check": ClipCheckSettings,
        "aligner": AlignerSettings,
    }
    found = (stage for stage in stages if f"_{model}".endswith(f"_{stage}"))
    return stages.get(next(found, ""), EncoderSettings)
