"""Settings of the models: for each stage a class with the name, default, range and meaning of each setting.

A setting is a `parameters` entry of a model's config.pbtxt, overridden by the environment. One rule for every name:
`VOICE_CLONE_CHECKPOINT_DIR` overrides the parameter `checkpoint_dir`, and for the models of a family F
`VOICE_CLONE_F_CHECKPOINT_DIR` overrides both. config.pbtxt expands no variables itself, but a model's process inherits
the server's environment. An empty value counts as not set.

A family whose stage has further settings reads a subclass of the stage's class. A test compares all of them with
config.pbtxt and docs/settings.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_type_hints

from voice_clone.errors import InvalidArgument

PREFIX = "VOICE_CLONE_"

_CpuPrecision = Literal["int8", "int4"]
Precision = Literal["fp32", "bf16", _CpuPrecision]
"""Of a talker's weights; the heaviest first."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
CPU_PRECISIONS: tuple[Precision, ...] = get_args(_CpuPrecision)  # those that native code alone computes in

S = TypeVar("S", bound="StageSettings")


class Settings:
    """The values that are set for one model, as text.

    Args:
        model_config: the parsed config.pbtxt as Triton hands it to `initialize`.
        environ: the environment; the process's own by default.
        family: of the model; empty if it has none.
    """

    def __init__(
        self, model_config: Mapping[str, Any], environ: Mapping[str, str] | None = None, family: str = ""
    ) -> None:
        parameters = model_config.get("parameters", {})
        self._values = {name: str(entry["string_value"]) for name, entry in parameters.items()}
        self._environ = os.environ if environ is None else environ
        self._prefixes = (f"{PREFIX}{family.upper()}_", PREFIX) if family else (PREFIX,)

    def text(self, name: str) -> str:
        """The value of a setting; "" if it is not set."""
        for prefix in self._prefixes:
            if value := self._environ.get(prefix + name.upper()):
                return value
        return self._values.get(name, "")

    def secret(self, name: str) -> str:
        """The value of a secret setting; "" if it is not set. From the environment alone: a server shows config.pbtxt.

        Raises:
            InvalidArgument: it stands in config.pbtxt, or a header could not carry it. The message hides its value.
        """
        variable = PREFIX + name.upper()
        if self._values.get(name):
            raise InvalidArgument(f"{name} stands in config.pbtxt, which callers can read; set {variable} instead")
        value = self._environ.get(variable, "")
        if not all("!" <= character <= "~" for character in value):
            raise InvalidArgument(f"{variable} must be printable ASCII without spaces or line ends")
        return value

    def missing(self, name: str) -> InvalidArgument:
        """The error if the folder `name` is not set and has no default."""
        what = name.removesuffix("_dir")
        return InvalidArgument(f"no {what}: set {name} or {self._prefixes[0]}{name.upper()} to its folder")


class Setting(NamedTuple):
    """What is known of a setting; see `setting`."""

    default: Any
    meaning: str
    choices: tuple[str, ...]
    least: float | None
    only_variable: bool
    secret: bool

    @property
    def value(self) -> Any:
        """Where none is set."""
        return self.default() if callable(self.default) else self.default


REQUIRED = object()
"""The default of a setting that must be set."""


def setting(
    default: Any,
    meaning: str,
    *,
    choices: Sequence[str] = (),
    least: float | None = None,
    only_variable: bool = False,
    secret: bool = False,
) -> Any:
    """An attribute of a stage's settings, of a type that `StageSettings.of` reads.

    Args:
        default: None: not set, and the code that uses it decides. REQUIRED: it must be set. A function makes it.
        meaning: one line for config.pbtxt and docs/settings.md; a family's config.pbtxt may add to its end.
        choices: the values that a text may have, the default first.
        least: the smallest value that a number may have; None: it must be above 0.
        only_variable: no config.pbtxt has it.
        secret: only a variable has it, and no message, log or `repr` shows it.
    """
    return Setting(default, meaning, tuple(choices), least, only_variable or secret, secret)


def user_voices() -> Path:
    """The folder `voices` in the user's data directory of the platform."""
    import platformdirs  # where the folder is set, none needs it

    return Path(platformdirs.user_data_dir("voice-clone", appauthor=False)) / "voices"


class StageSettings:
    """Settings of the models of all stages."""

    lost_model_seconds: float = setting(
        20.0,
        "seconds for which other families may go on where a model of one has died; then the server ends; default: 20; "
        "as a variable only, see [operations.md](operations.md#a-models-process-dies)",
        only_variable=True,
    )
    standstill_seconds: float = setting(
        30.0,
        "seconds for which the process of a model may stand still; then the server ends; default: 30; "
        "as a variable only, see [operations.md](operations.md#a-models-process-stands-still)",
        only_variable=True,
    )

    def __init__(self, **given: Any) -> None:
        """The values given, and the defaults of all others.

        Raises:
            TypeError: there is no such setting, or one that must be set is not.
        """
        known = self.known()
        if unknown := sorted(given.keys() - known):
            raise TypeError(f"{type(self).__name__} has no setting {', '.join(unknown)}")
        if missing := [name for name, each in known.items() if name not in given and each.default is REQUIRED]:
            raise TypeError(f"{type(self).__name__}: {', '.join(missing)} must be given")
        vars(self).update({name: given.get(name, each.value) for name, each in known.items()})

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name}: settings do not change")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name}: settings do not change")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).items()))

    def __repr__(self) -> str:
        known = self.known()
        shown = (f"{name}={value!r}" for name, value in vars(self).items() if not known[name].secret)
        return f"{type(self).__name__}({', '.join(shown)})"

    @classmethod
    def known(cls) -> dict[str, Setting]:
        """The settings by their names, those of a base before those of the class itself."""
        found: dict[str, Setting] = {}
        for base in reversed(cls.__mro__):
            found |= {name: each for name, each in vars(base).items() if isinstance(each, Setting)}
        return found

    @classmethod
    def of(cls: type[S], settings: Settings) -> S:
        """The values that are set, checked and converted; else the defaults.

        Raises:
            InvalidArgument: a value is wrong, or one that must be set is not. The text says what would be right.
        """
        types = _types(cls)  # type: ignore[arg-type]  # a class is hashable
        return cls(**{name: _value(name, each, types[name], settings) for name, each in cls.known().items()})

    @classmethod
    def read(cls, settings: Settings, name: str) -> Any:
        """One of the values. Raises: as `of`."""
        types = _types(cls)  # type: ignore[arg-type]
        return _value(name, cls.known()[name], types[name], settings)


@cache
def _types(cls: Any) -> dict[str, type]:
    """The types of the settings of a class without `None`."""
    hints = get_type_hints(cls)
    return {
        name: next(part for part in get_args(hint) if part is not NoneType) if isinstance(hint, UnionType) else hint
        for name, hint in hints.items()
    }


def _value(name: str, each: Setting, kind: type, settings: Settings) -> Any:
    text = settings.secret(name) if each.secret else settings.text(name)
    if text:
        return _parse(name, each, kind, text)
    if each.default is REQUIRED:
        raise settings.missing(name)
    return each.value


def _parse(name: str, each: Setting, kind: type, text: str) -> Any:
    """The value of a setting of a type from its text.

    Raises:
        InvalidArgument: the setting cannot have this value.
    """

    def wrong(right: str) -> InvalidArgument:
        return InvalidArgument(f"the setting {name} is {text!r}; it must be {right}")

    choices, least = each.choices, each.least
    if choices and text not in choices:
        raise wrong(f"one of {', '.join(choices)}")
    if kind is bool:
        return text == "true"
    if kind is int:
        if not _is_count(text):
            raise wrong("an integer > 0")
        return int(text)
    if kind is float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not (number > 0.0 if least is None else number >= least) or number == float("inf"):
            raise wrong("a number > 0" if least is None else f"a number >= {least:g}")
        return number
    if kind == tuple[int, ...]:
        parts = [part.strip() for part in text.split(",")]
        if not all(map(_is_count, parts)):
            raise wrong("integers > 0 separated by commas")
        return tuple(map(int, parts))
    if kind == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return Path(text).expanduser() if kind is Path else text


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0


SWITCH_ON, SWITCH_OFF = ("true", "false"), ("false", "true")
_MAX_CHUNK_FRAMES = "frames of a chunk, and of a reference; the same in all models"


class CheckpointSettings(StageSettings):
    """Settings of stages that read a checkpoint."""

    checkpoint_dir: Path = setting(REQUIRED, "the folder of the official checkpoint")


class ChunkSettings(StageSettings):
    """Settings of stages that make or decode chunks."""

    chunk_frames: tuple[int, ...] | None = setting(None, "frames of a stream's chunks; the last repeats")
    max_chunk_frames: int = setting(768, _MAX_CHUNK_FRAMES)


class ComputeSettings(StageSettings):
    """Settings of stages that compute."""

    device: str = setting("auto", "cpu or cuda; auto: cuda where there is one", choices=("auto", "cpu", "cuda"))
    threads: int | None = setting(
        None, "threads of this model's process on a CPU; default: OMP_NUM_THREADS or all cores"
    )

    rest_minutes: float = setting(
        0.0,
        "minutes without work after which the model gives its memory back until the next request; default: 0, never; "
        "as a variable only, see [operations.md](operations.md#models-at-rest)",
        least=0.0,
        only_variable=True,
    )


class PackingSettings(ComputeSettings):
    """Settings of stages that keep packed weights."""

    packed_bytes: float = setting(
        8_000_000_000,
        "on a CPU: bytes on disk for packed weights, which the next start maps; 0: none are kept",
        least=0.0,
    )


class PrecisionSettings(PackingSettings):
    """Settings of stages whose weights may be rounded."""

    precision: str = setting(
        "auto",
        f"fp32, bf16 or, on a CPU, {' or '.join(CPU_PRECISIONS)}; auto: fp32 on a CPU, bf16 on a GPU",
        choices=("auto", *PRECISIONS),
    )


class StreamSettings(PackingSettings):
    """Settings of stages that hold streams."""

    cuda_graphs: bool = setting(True, "false: without CUDA graphs on a GPU, slower", choices=SWITCH_ON)


class ClipSettings(StageSettings):
    """Settings of stages that take reference clips."""

    max_clip_seconds: float = setting(
        30.0,
        "maximum seconds of a reference clip; default: 30; a longer clip is `unsupported` by families that take less, "
        "and serves the others; as a variable only",
        only_variable=True,
    )


class ClipCheckSettings(ClipSettings):
    """Settings of the check in front of networks that are models of their own."""

    sample_rate: int = setting(REQUIRED, "Hz of the clips; tools/build_repository writes it")


class VoiceSettings(StageSettings):
    """Settings of stages that read the registered voices."""

    voice_dir: Path = setting(user_voices, "the folder of speaker_cache; only read, at load")
    voice_store: str = setting(
        "",
        "address of the database that keeps the voices of a fleet, see [fleet.md](fleet.md); as a variable only",
        secret=True,
    )
    voice_store_tls: str = setting(
        "verify",
        "off: the address of a database on another machine may do without sslmode=verify-full",
        choices=("verify", "off"),
    )


class KnownVoiceSettings(VoiceSettings):
    """Settings of stages that only read the registered voices."""

    voice_store_reader: str = setting("", "the address with a role that may only read; as a variable only", secret=True)


class PromptSettings(CheckpointSettings):
    """Settings of `<family>_prompt`."""

    max_text_tokens: int = setting(1024, "longer texts are refused")
    max_chunk_frames: int = setting(768, _MAX_CHUNK_FRAMES)


class TalkerSettings(PrecisionSettings, CheckpointSettings, ChunkSettings, StreamSettings, KnownVoiceSettings):
    """Settings of `<family>_talker`."""

    max_streams: int | None = setting(
        None,
        "streams generated at once; default: 8 on a CPU, on a GPU as many as its free memory holds, at most 64",
    )
    max_length: int = setting(4096, "maximum positions of a stream: prompt + frames")
    max_queue: int = setting(64, "streams that may wait; more are refused")
    text_idle_seconds: float = setting(
        10.0, "seconds that a stream waits for more appended text; then its text is closed"
    )
    prefill_chunk: int | None = setting(
        None, "positions of a prompt read between two steps; empty: 32 on a CPU, 256 on a GPU"
    )
    prefix_bytes: int | None = setting(
        None, "bytes for what the talker has read of voices, which shortens their next prompts"
    )
    deterministic: bool = setting(
        False,
        "true: a stream has the same bits alone and beside others, at the cost of full batches",
        choices=SWITCH_OFF,
    )
    # A cycle of a few frames, repeated exactly for so long after the text was read. Pauses, held vowels and laughter
    # are shorter, and live sounds vary from frame to frame. The shortest budgets, about 15 s, are far longer.
    runaway_seconds: float = setting(
        6.0, "seconds after which a stream that repeats itself is ended, once its text was read; a large number: never"
    )
    warm_up_seconds: float = setting(10.0, "maximum seconds of the warm-up at load")
    restore_seconds: float = setting(
        10.0, "maximum seconds at load for reading the beginnings of prompts with the voices on disk"
    )
    cuda_graphs: bool = setting(True, "false: steps on a GPU without CUDA graphs, slower", choices=SWITCH_ON)


class DecoderSettings(ChunkSettings, StreamSettings, CheckpointSettings, KnownVoiceSettings):
    """Settings of `<family>_code2wav`."""

    precision: str = setting(
        "auto",
        "on a GPU: tf32, fp32 or bf16; auto: tf32. A CPU computes in fp32",
        choices=("auto", "tf32", *PRECISIONS),  # those of native code are a talker's; a CPU ignores all
    )
    threads: int | None = setting(
        None, "threads of this model's process on a CPU; default: half of OMP_NUM_THREADS or of the cores"
    )
    mark: str = setting(
        "off",
        "off; on: speech is marked as synthetic; required: a speech that cannot be marked ends with an error; "
        "requested: as each request says; see [provenance.md](provenance.md)",
        choices=("off", "on", "required", "requested"),
    )
    max_decode_batch: int | None = setting(
        None, "maximum number of chunks decoded together; default: 4 on a CPU, 32 on a GPU"
    )
    max_waiting_chunks: int = setting(4096, "chunks that may wait; one more ends its stream")
    max_chunk_frames: int = setting(768, "frames of a chunk")
    max_state_bytes: int = setting(1 << 30, "bytes for the states of open streams")
    page_bytes: int | None = setting(
        None,
        "bytes for keys and values of streams and voices, if a decoder keeps all of them; default: 4 GB on a CPU, a "
        "quarter of a GPU's free memory",
    )
    stream_idle_seconds: float = setting(60.0, "seconds after which a stream without a chunk is dropped")
    primed_bytes: int = setting(256 << 20, "bytes for the decoder states after known clips")
    primed_seconds: float = setting(600.0, "seconds after which such a state is forgotten if it is not used")
    restore_seconds: float = setting(
        10.0, "maximum seconds at load for the decoder states after the clips of voices on disk"
    )
    chunk_frames: tuple[int, ...] | None = setting(None, "as the talker's; these lengths are warmed up at load")
    warm_up_seconds: float = setting(20.0, "maximum seconds of the warm-up at load")
    cuda_graphs: bool = setting(True, "false: decoding on a GPU without CUDA graphs, slower", choices=SWITCH_ON)


class EncoderSettings(PackingSettings, CheckpointSettings, ClipSettings):
    """Settings of a voice encoder's networks."""

    device: str = setting(
        "auto", "cpu or cuda; auto: cuda where there is one; in fp32 on both", choices=("auto", "cpu", "cuda")
    )
    onnx_provider: str = setting(
        "auto", "cpu, cuda or tensorrt; auto: as device", choices=("auto", "cpu", "cuda", "tensorrt")
    )
    network_fingerprint: str = setting(
        "", "if the networks are models of their own: what those were made from; tools/build_repository writes it"
    )
    max_chunk_frames: int = setting(768, _MAX_CHUNK_FRAMES)
