"""Murmur, a made-up family: whatever the protocols allow that codes, one state a stream and a cloned voice are not.

A frame is eight floats, drawn with normal noise; the frame that ends a speech is heard. A speech comes frame by frame,
or, with the option `whole`, as one run at its end. The decoder keeps the last samples of a stream back, so that a chunk
makes other numbers of samples than its frames have. The checkpoint has two voices of its own, speaks without any, too,
and brings no encoder: a registered voice is unsupported, with the reason. Needs no weights: a seed makes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from voice_clone.autoregressive.frame_head import Batch, MadeFrames
from voice_clone.autoregressive.generator import Generator, load_generator
from voice_clone.autoregressive.philox import Draws
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.autoregressive.talker import Prefix, TalkerInput, TalkerRequest
from voice_clone.batching.source import Frame, PayloadForm
from voice_clone.codec.chunk import Primed, Reference
from voice_clone.codec.decoder import CodecFormat
from voice_clone.errors import InvalidArgument
from voice_clone.lru_cache import CacheUsage, Origin
from voice_clone.settings import DecoderSettings, Settings, TalkerSettings
from voice_clone.speakers.store import KnownVoices
from voice_clone.speech import ResolvedVoice, SpeechRequest, check_options
from voice_clone.stages.protocols import Arrays, Call, Limit, Prepared, StreamPlan

WIDTH, FRAME_SAMPLES, RATE = 8, 80, 8_000
HELD = 30  # samples that the decoder keeps back
CHUNK_FRAMES = (1, 4)
OWN_CHUNKS = (3, 5)  # of a stream with the option `chunks`
PRESETS = {"Ann": 0.5, "Ben": 0.25}
OPTIONS: dict[str, type] = {"whole": bool, "chunks": bool}
END = 0.04  # how likely each frame is the last
REASON = "this checkpoint brings no voice encoder; speak with one of its own voices: Ann, Ben"
FORM = CodecFormat(PayloadForm(WIDTH, np.float32), FRAME_SAMPLES, RATE)


def make_checkpoint(seed: int, folder: Path) -> Path:
    """A folder from which the family is recognised."""
    folder.mkdir(parents=True)
    (folder / "murmur.json").write_text(json.dumps({"model_type": "murmur", "seed": seed}), encoding="utf-8")
    return folder


class MurmurEncoder:
    """No encoder, and why."""

    modes: Mapping[str, str] = {"clone": REASON}
    presets = tuple(PRESETS)
    sample_rate = RATE
    fingerprints: Mapping[str, str] = {"fingerprint": "none"}

    def limits(self, mode: str | None) -> dict[str, Limit]:
        return {}

    def encode(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        return {"level": np.zeros(0, np.float32)}


def load_encoder(settings: Settings, call: Call | None = None) -> MurmurEncoder:
    return MurmurEncoder()


class MurmurPrompt:
    """Text as bytes, and the level of the voice."""

    appends = False
    presets = tuple(PRESETS)
    voiceless = True

    def draft(self, speech: SpeechRequest) -> NDArray[np.uint8]:
        check_options(speech.options, OPTIONS)
        return np.frombuffer(speech.text.encode(), np.uint8)

    def prepare(self, speech: SpeechRequest, draft: NDArray[np.uint8], voice: ResolvedVoice | None) -> Prepared:
        level = [] if speech.voice is None else [PRESETS[speech.voice]]
        return Prepared({"text": draft, "level": np.array(level, np.float32)}, {"mode": "preset"})


def load_prompt(settings: Settings) -> MurmurPrompt:
    return MurmurPrompt()


@dataclass(frozen=True)
class Sampling:
    seed: int
    temperature: float = 1.0


@dataclass(frozen=True, eq=False)
class Prompt:
    """`whole`: all frames come in one run."""

    text: NDArray[np.uint8]
    whole: bool = False


class NormalDraws(Draws):
    """Normal deviates (Box and Muller 1958), then one uniform number."""

    def of(self, frame: int) -> NDArray[np.float64]:
        uniform = super().of(frame)
        radius, angle = np.sqrt(-2 * np.log1p(-uniform[:WIDTH])), 2 * np.pi * uniform[WIDTH:-1]
        return np.append(radius * np.cos(angle), [*np.zeros(WIDTH), uniform[-1]])


@dataclass(frozen=True)
class AnyRows:
    def covers(self, other: AnyRows) -> bool:
        return True


@dataclass
class Last:
    """The newest frame of each slot."""

    frames: Tensor
    nbytes = 0

    @property
    def by_slot(self) -> tuple[Tensor]:
        return (self.frames,)


class FloatHead(nn.Module):
    """A linear layer, the frame before, and noise: a `FrameHead`."""

    form = FORM.payload
    dtype = np.float32
    draws = 2 * WIDTH + 1
    neutral = np.zeros(1)
    variants = (AnyRows(),)
    keeps_ending_frame = True

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, WIDTH)

    def columns(self, sampling: Sampling) -> NDArray[np.float64]:
        return np.array([sampling.temperature])

    def new_draws(self, seed: int) -> Draws:
        return NormalDraws(seed, self.draws)

    def variant_of(self, columns: NDArray[np.float64]) -> AnyRows:
        return self.variants[0]

    def new_memory(self, slots: int, max_length: int, like: Tensor) -> Last:
        return Last(torch.zeros(slots, WIDTH, device=like.device))

    def clear(self, memory: Last, slot: int) -> None:
        memory.frames[slot] = 0

    def read(self, memory: Last, batch: Batch, payload: Tensor) -> None:
        memory.frames[batch.slots] = torch.where(batch.table.moves[:, None], payload, memory.frames[batch.slots])

    def make(self, memory: Last, hidden: Tensor, batch: Batch, variant: AnyRows) -> MadeFrames:
        noise = batch.table.sampling * batch.table.draws[:, :WIDTH].float()
        payload = torch.tanh(self.linear(hidden) + 0.5 * batch.of(memory.frames) + 0.1 * noise)
        ended = (batch.table.draws[:, -1] < END) & batch.table.may_stop
        return MadeFrames(payload, ended, payload.isfinite().all(dim=1))


class MurmurTalker(nn.Module):
    """Two layers over bytes and frames."""

    min_frames = 2

    def __init__(self, seed: int) -> None:
        super().__init__()
        size = 32
        self.stack = DecoderStack(StackConfig(size, 64, 2, 4, 2, 8, 1e-6, 10_000.0))
        self.bytes, self.frames = nn.Linear(256, size, bias=False), nn.Linear(WIDTH, size)
        self.head = FloatHead(size)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(1 + 0.1 * noise if "norm" in name else noise * parameter.shape[-1] ** -0.5)

    def check(self, prompt: Prompt) -> None:
        if prompt.text.dtype != np.uint8 or not prompt.text.size:
            raise InvalidArgument("prompt: text must be UINT8 [bytes] and not empty")

    def prompt_length(self, prompt: Prompt) -> int:
        return len(prompt.text)

    def prefix(self, prompt: Prompt) -> Prefix:
        return Prefix(b"", 0)

    @torch.inference_mode()
    def embed_prompt(self, prompt: Prompt) -> TalkerInput:
        embeds = self.bytes.weight.T[torch.from_numpy(prompt.text.astype(np.int64))]
        return TalkerInput(embeds, embeds[:0], torch.zeros_like(embeds[0]))

    def embed_frames(self, payload: Tensor) -> Tensor:
        rows: Tensor = self.frames(payload)
        return rows


class RunSource(Generator[Prompt]):
    """Hands out a speech with the option `whole` as one run: until then its steps make nothing that is heard."""

    def start(self, slot: int, request: TalkerRequest[Prompt]) -> int:
        self._held: dict[int, list[NDArray[Any]]] = getattr(self, "_held", {})
        self._held.pop(slot, None)
        if request.prompt.whole:
            self._held[slot] = []
        return super().start(slot, request)

    def begin(self, slots: Sequence[int]) -> Callable[[], list[Frame | None]]:
        wait = super().begin(slots)
        return lambda: [self._run(slot, frame) for slot, frame in zip(slots, wait(), strict=True)]

    def _run(self, slot: int, frame: Frame | None) -> Frame | None:
        if frame is None or slot not in self._held:
            return frame
        held = self._held[slot]
        held += [] if frame.payload is None else [frame.payload]
        return Frame(np.stack(held) if frame.finish and held else None, frame.finish)


class MurmurTalkerStage:
    """The talker of a checkpoint."""

    chunk_frames = CHUNK_FRAMES
    frame_seconds = FORM.frame_seconds

    def __init__(self, source: Generator[Prompt]) -> None:
        self.source = source

    def plan(
        self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> StreamPlan[TalkerRequest[Prompt]]:
        sampling = Sampling(knobs["seed"], knobs.get("temperature", 1.0))
        prompt = Prompt(tensors["text"], bool(options.get("whole")))
        request = TalkerRequest(prompt, sampling, knobs.get("max_frames", 100), budgeted="max_frames" not in knobs)
        voice = {"level": tensors["level"]} if tensors["level"].size else {}
        own = OWN_CHUNKS if options.get("chunks") else None
        return StreamPlan(request, np.zeros((0, WIDTH), np.float32), voice, chunk_frames=own)

    def example(self, reference_frames: int, max_frames: int) -> TalkerRequest[Prompt]:
        return TalkerRequest(Prompt(np.zeros(4, np.uint8)), Sampling(0), max_frames)

    def known_prompts(self, voices: KnownVoices) -> Iterator[tuple[Origin, Prompt]]:
        return iter(())


def load_talker(given: Settings) -> MurmurTalkerStage:
    settings = TalkerSettings.of(given)
    seed = json.loads((settings.checkpoint_dir / "murmur.json").read_text(encoding="utf-8"))["seed"]
    talker = MurmurTalker(seed).eval().requires_grad_(False)
    made = load_generator(settings, talker, 1 / FORM.frame_seconds, 0)
    return MurmurTalkerStage(RunSource(talker, made.slots, made.max_length, made.deterministic))


class HoldBackStreams:
    """`DecoderStreams`: each number of a frame is heard ten times, in the level of the voice; the end fades out."""

    supports_ragged_batches = True
    one_by_one = False
    max_streams = 64
    stream_bytes = 4 * HELD
    primed_bytes = 0

    def __init__(self) -> None:
        self._open: dict[int, tuple[float, NDArray[np.float32]]] = {}
        self._numbers = count()

    def warm_up(self, lengths: Sequence[int], batches: Sequence[int], seconds: float) -> None: ...

    def prepare(self, reference: Reference) -> None: ...

    def restore(self, references: Iterable[Reference], seconds: float) -> int:
        return 0

    def open(self, reference: Reference) -> tuple[int, Primed]:
        level = reference.voice.get("level", np.ones(1))
        number = next(self._numbers)
        self._open[number] = float(level[0]), np.zeros(0, np.float32)
        return number, "none"

    def decode(self, streams: Sequence[int], frames: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
        heard = []
        for stream, each in zip(streams, frames, strict=True):
            level, held = self._open[stream]
            samples = np.concatenate([held, level * np.repeat(each.reshape(-1), FRAME_SAMPLES // WIDTH)])
            cut = max(0, len(samples) - HELD)
            self._open[stream] = level, samples[cut:].astype(np.float32)
            heard.append(samples[:cut].astype(np.float32))
        return heard

    def flush(self, stream: int) -> NDArray[np.float32]:
        held = self._open[stream][1]
        return held * np.linspace(1, 0, len(held), dtype=np.float32)

    def close(self, stream: int) -> None:
        del self._open[stream]

    def forget(self, voices: Collection[str]) -> CacheUsage:
        return CacheUsage(0, 0, frozenset())

    def sweep(self) -> None: ...


class MurmurDecoder:
    """The decoder of any checkpoint."""

    chunk_frames = CHUNK_FRAMES
    form = FORM

    def streams(self, settings: DecoderSettings, chunk_frames: Sequence[int]) -> HoldBackStreams:
        return HoldBackStreams()

    def known_references(self, voices: KnownVoices) -> Iterator[Reference]:
        return iter(())


def load_decoder(settings: Settings) -> MurmurDecoder:
    return MurmurDecoder()


def speak_bare(checkpoint: Path, text: str, voice: str | None, seed: int, **knobs: Any) -> NDArray[np.float32]:
    """The samples of a speech in one piece, without server, engine and chunks."""
    settings = Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint), "VOICE_CLONE_DEVICE": "cpu"}, "murmur")
    prompt, talker, decoder = load_prompt(settings), load_talker(settings), HoldBackStreams()
    speech = SpeechRequest(text, voice=voice, voiceless=True)
    plan = talker.plan(prompt.prepare(speech, prompt.draft(speech), None).tensors, {"seed": seed, **knobs}, {})
    talker.source.start(0, plan.request)
    frames: list[NDArray[Any]] = []
    finish = None
    while finish is None:
        [frame] = talker.source.step([0])
        finish = frame.finish
        frames += [] if frame.payload is None else [frame.payload]
    talker.source.free(0)
    stream, _ = decoder.open(Reference(plan.context, plan.voice))
    return np.concatenate([*decoder.decode([stream], [np.stack(frames)]), decoder.flush(stream)])
