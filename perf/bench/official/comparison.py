"""Ours and official code of one family: what both are given, what they give back, and how ours speaks.

Ours is the bare stages of any family, as the server's models run them.
"""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from perf.bench.machine import give_threads, keep_threads
from perf.bench.reference import CLIP, TEXT, TRANSCRIPT
from voice_clone.audio import decode, resample
from voice_clone.batching.source import Frame
from voice_clone.codec.chunk import Reference
from voice_clone.family import Family
from voice_clone.lru_cache import Origin
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.protocols import NoEncoder, StreamPlan

SEED = 5
MEASURES = ("encode", "first audio", "prompt", "frame", "decode", "total", "CPU")
"""Seconds; `frame` and `decode` are of one frame. What a side does not measure is missing."""
Seconds = dict[str, float]


@dataclass(frozen=True, eq=False)
class Spoken:
    """A speech, or several side by side.

    Attributes:
        frames: of the first one, [n, width].
        samples: of the first one; None: another test compares them.
        seconds: by `MEASURES`.
    """

    frames: NDArray[Any]
    samples: NDArray[np.float32] | None
    seconds: Seconds


@dataclass(frozen=True, eq=False)
class Asked:
    """What both sides speak.

    Attributes:
        waveform: of the clip, at the rate of the family's first encoder; None: the voice is none of a clip.
        artifacts: what our encoders made of it.
        plan: of our stream; its request has the prompt.
        frames: so many.
        options: of the family, among them those of the command line.
    """

    waveform: NDArray[np.float32] | None
    artifacts: Mapping[str, NDArray[Any]]
    plan: StreamPlan[Any]
    frames: int
    options: Mapping[str, Any]


class Official(ABC):
    """Official code with the weights of a checkpoint: the adapter of a family.

    Class attributes:
        source: whose code it is, for the help.
        dtypes: in which it can compute, by torch's names; the first is what ours must equal.
        lists: whether it speaks several texts in one call.
        voiceless: the speech has no voice.
        language: of the request.
        knobs: of ours: the likeliest frames, or those of the same noise.
        tolerance: of frames that are no codes, and of samples, in their standard deviation.
    """

    source: ClassVar[str]
    dtypes: ClassVar[Sequence[str]] = ("float32",)
    lists: ClassVar[bool] = False
    voiceless: ClassVar[bool] = False
    language: ClassVar[str | None] = None
    knobs: ClassVar[Mapping[str, Any]] = {}
    tolerance: ClassVar[float] = 1e-4

    @abstractmethod
    def __init__(self, folder: Path, asked: Asked, dtype: str) -> None: ...

    @staticmethod
    def options(frames: int) -> Mapping[str, Any]:
        """Those of a request for so many frames."""
        return {}

    @staticmethod
    def compared(samples: NDArray[np.float32], reference: int) -> NDArray[np.float32]:
        """The samples that must be equal, where the clip has so many frames."""
        return samples

    def encode(self, waveform: NDArray[np.float32]) -> float | None:
        """Seconds for what is kept of a clip; None: it is not measured."""
        return None

    @abstractmethod
    def speak(self, frames: int, streams: int) -> Spoken:
        """Several streams only if it has `lists`."""


class Clock:
    """A function that notes when each of its calls ended, and how long it took."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self.seconds: list[float] = []
        self.ends: list[float] = []

    def __call__(self, *given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        result = self._run(*given, **named)
        self.ends.append(time.perf_counter())
        self.seconds.append(self.ends[-1] - began)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


def frame_times(began: float, ends: Sequence[float]) -> Seconds:
    """`prompt` up to the first frame, and `frame`, of those behind it; from when each frame was done."""
    return {"prompt": ends[0] - began, "frame": (ends[-1] - ends[0]) / max(1, len(ends) - 1)}


def cpu_settings(family: str, folder: Path, precision: str = "fp32", **others: str) -> Settings:
    """As of a server on a CPU; `others` by their names without VOICE_CLONE_."""
    given = {"CHECKPOINT_DIR": str(folder), "DEVICE": "cpu", "PRECISION": precision, **others}
    return Settings({}, {f"VOICE_CLONE_{name}": value for name, value in given.items()}, family)


def loaded(card: Family, what: str, settings: Settings) -> Any:
    """What `module.function` of a family loads."""
    module, function = what.split(".")
    return getattr(importlib.import_module(f"voice_clone.families.{card.name}.{module}"), function)(settings)


def ask(
    card: Family, adapter: type[Official], folder: Path, frames: int, seconds: float | None, options: Mapping[str, Any]
) -> tuple[Asked, float]:
    """A speech of so many frames in the voice of the shipped clip, or of its first seconds; our time to encode it."""
    settings = cpu_settings(card.name, folder)
    prompt, talker = loaded(card, "prompt.load_prompt", settings), loaded(card, "talker.load_talker", settings)
    clip = decode(CLIP.read_bytes())
    cut = clip.waveform[: None if seconds is None else round(seconds * clip.sample_rate)]
    mode = next(iter(card.modes))
    artifacts: dict[str, NDArray[Any]] = {}
    waveform, spent = None, 0.0
    for part in () if adapter.voiceless else card.encoders:
        encoder = loaded(card, part.load, settings)
        if isinstance(encoder, NoEncoder):
            continue
        heard = resample(cut, clip.sample_rate, encoder.sample_rate)
        encode = Clock(encoder.encode)
        artifacts |= encode(heard, mode)
        spent += encode.seconds[0]
        waveform = heard if waveform is None else waveform
    options = {**adapter.options(frames), **options}
    name = None if adapter.voiceless else next(iter(prompt.presets), "anybody") if waveform is None else "anybody"
    speech = SpeechRequest(TEXT, voice=name, language=adapter.language, options=options, voiceless=adapter.voiceless)
    voice = None if waveform is None else ResolvedVoice(artifacts, TRANSCRIPT, mode)
    tensors = prompt.prepare(speech, prompt.draft(speech), voice).tensors
    budget = {} if card.budget is None else {"max_frames": frames}
    plan = talker.plan(tensors, {"seed": SEED, **budget, **adapter.knobs}, options)
    if card.autoregressive:
        plan = replace(plan, request=replace(plan.request, endless=True, pauses=None))
    return Asked(waveform, artifacts, plan, frames, options), spent


@dataclass(eq=False)
class _Listener:
    """One stream of ours: what waits to be decoded, what was made, and how long the next chunks are."""

    number: int
    sizes: Iterator[int]
    waiting: list[NDArray[Any]] = field(default_factory=list)
    frames: list[NDArray[Any]] = field(default_factory=list)
    samples: list[NDArray[np.float32]] = field(default_factory=list)
    first: float = 0.0
    ended: bool = False

    def __post_init__(self) -> None:
        self.size = next(self.sizes)

    def take(self, frame: Frame) -> None:
        """What a step made."""
        self.ended = frame.finish is not None
        if frame.payload is not None:
            self.frames.append(np.atleast_2d(frame.payload))
            self.waiting += [*self.frames[-1]]

    def chunk(self) -> NDArray[Any] | None:
        """The next one, if it is full or the last."""
        if len(self.waiting) < self.size and not (self.ended and self.waiting):
            return None
        made: NDArray[Any] = np.stack(self.waiting[: self.size])
        self.waiting, self.size = self.waiting[self.size :], next(self.sizes)
        return made


class Ours:
    """The stages of a checkpoint in one precision of the talker, for some streams."""

    def __init__(self, card: Family, folder: Path, precision: str, streams: int) -> None:
        give_threads()
        settings = cpu_settings(card.name, folder, precision, MAX_STREAMS=str(streams))
        self._talker, stage = loaded(card, "talker.load_talker", settings), loaded(card, "codec.load_decoder", settings)
        self._chunks, self._in_torch = stage.chunk_frames, not card.native_decoder
        self._decoding = stage.streams(DecoderSettings.of(settings), stage.chunk_frames)

    def speak(self, asked: Asked, streams: int) -> Spoken:
        """All streams speak the same. The voice is known, as a registered one is."""
        source, decoding, plan = self._talker.source, self._decoding, asked.plan
        reference = Reference(plan.context, plan.voice, Origin.unknown())
        decoding.prepare(reference)
        keep_threads()
        sizes = plan.chunk_frames or self._chunks
        step, decoder = Clock(lambda slots: source.begin(slots)()), Clock(self._decode)
        began, cpu = time.perf_counter(), time.process_time()
        for slot in range(streams):
            source.prefill({slot: source.start(slot, plan.request)})
        read = time.perf_counter() - began
        heard = [_Listener(decoding.open(reference)[0], chain(sizes, repeat(sizes[-1]))) for _ in range(streams)]
        while live := [slot for slot, each in enumerate(heard) if not each.ended]:
            for slot, frame in zip(live, step(live), strict=True):
                if frame is not None:
                    heard[slot].take(frame)
            while due := [(each, chunk) for each in heard if (chunk := each.chunk()) is not None]:
                decoder(due)
                for each, _ in due:
                    each.first = each.first or time.perf_counter() - began
        total, cpu = time.perf_counter() - began, time.process_time() - cpu
        for slot, each in enumerate(heard):
            source.free(slot)
            decoding.close(each.number)
        frames, steps = np.concatenate(heard[0].frames), step.seconds
        alike = len(steps) == len(frames)  # a step is a frame of each stream
        seconds = {
            "first audio": float(np.mean([each.first for each in heard])),
            "prompt": read + (steps[0] if alike else 0),
            "frame": sum(steps[1:]) / max(1, len(frames) - 1) if alike else sum(steps) / len(frames) / streams,
            "decode": sum(decoder.seconds) / len(frames) / streams,
            "total": total,
            "CPU": cpu,
        }
        return Spoken(frames, np.concatenate(heard[0].samples), seconds)

    def _decode(self, due: Sequence[tuple[_Listener, NDArray[Any]]]) -> None:
        """Decode a chunk of each of some streams, together if the decoder can."""
        if self._in_torch:
            give_threads()
        for part in [[each] for each in due] if self._decoding.one_by_one else [due]:
            made = self._decoding.decode([each.number for each, _ in part], [chunk for _, chunk in part])
            for (each, _), samples in zip(part, made, strict=True):
                each.samples.append(samples)
        for each, _ in due:
            if each.ended and not each.waiting:
                each.samples.append(self._decoding.flush(each.number))
        if self._in_torch:
            keep_threads()
