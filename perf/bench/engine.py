"""Our engine without a server, as a server would set it up: of any family."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from perf.bench.families.family import Family, Frames
from perf.bench.machine import give_threads, keep_threads
from perf.bench.spent import Spent, clock
from voice_clone import compute
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.batching.scheduler import SourceSteps
from voice_clone.batching.source import Frame
from voice_clone.codec.chunk import CodecChunk, Decoded
from voice_clone.codec.code2wav import Code2Wav
from voice_clone.codec.decoder_streams import StatefulStreams
from voice_clone.codec.graphed_streams import Graphs
from voice_clone.layers.graphs import GraphRunner
from voice_clone.settings import Precision, Settings, TalkerSettings

MAX_LENGTH = 2048  # positions of a stream

F = TypeVar("F", bound=Family)


class Ours(Generic[F]):
    """An engine of a checkpoint.

    Args:
        family: of the checkpoint.
        precision: of the talker. The decoder has that of the server, fp32.
        slots: streams of steps with fixed shapes, which are CUDA graphs on a GPU. 0: shapes follow the streams.
        max_length: positions of a stream.
        masked: in steps with fixed shapes all streams read as far as the longest, as where attention over each stream's
            own length cannot be had.

    Attributes:
        model: what is loaded of the family.
        code2wav: its decoder, in graphs where steps are.
        runners: of the graphs.
    """

    def __init__(
        self,
        family: type[F],
        folder: Path,
        precision: Precision,
        device: str = "cpu",
        slots: int = 0,
        max_length: int = MAX_LENGTH,
        masked: bool = False,
    ) -> None:
        give_threads()
        environ = {
            "VOICE_CLONE_CHECKPOINT_DIR": str(folder),
            "VOICE_CLONE_DEVICE": device,
            "VOICE_CLONE_CUDA_GRAPHS": "false",
        }
        settings = Settings({}, {**environ, "VOICE_CLONE_PRECISION": precision})
        # The process then has the server's switches: no TF32, no attention of cuDNN.
        compute.prepare(TalkerSettings.of(settings))
        self.model = family(settings, Settings({}, environ), fixed=slots > 0)
        self.max_length = max_length
        self.runners: list[GraphRunner] = []
        self._fixed: Generator[Any] | None = None
        graphs: Graphs | None = None
        if slots:
            talker = self.model.talker
            if not masked:
                talker.stack.prepare(graphs=True)
            self.runners = [GraphRunner.on(talker.stack.like.device) for _ in range(2)]
            self._fixed = Generator(talker, slots, max_length, runner=self.runners[0])
            self._fixed.prepare()
            if self.model.decoder.ragged is not None:
                graphs = Graphs(self.runners[1], slots, family.chunk_frames)
        decoding = StatefulStreams(self.model.decoder, self.model.form, graphs=graphs)
        self.code2wav = Code2Wav(decoding, self.model.form)
        if graphs is not None:
            self.code2wav.warm_up((1,), (slots,), 60.0)

    def speak(self, prompt: Any, frames: int, streams: int = 1, served: bool = False) -> tuple[Frames, Spent]:
        """The codes of the first stream. `streams` speak the same side by side.

        Args:
            served: as a server speaks: the usual draws, and with fixed shapes each step is begun before the frames of
                the one before are seen. Otherwise greedy, one step after the other.
        """
        keep_threads()
        generator = self.generator(streams)
        self.code2wav.warm_up((1,), (streams,), 60.0)
        context, schedule = self.model.context(prompt), self.model.chunk_frames
        heard = len(context) > 0
        if heard:  # a known voice
            self._decode(0, [context[:1]] * streams, context)
        how = self.model.sampling(drawn=served)
        spent: defaultdict[str, float] = defaultdict(float)
        began, first = time.perf_counter(), 0.0
        with clock(spent, "prefill"):
            for slot in range(streams):
                length = generator.start(slot, TalkerRequest(prompt, how, frames))
                generator.prefill({slot: length})
        chunk: list[list[Frames]] = [[] for _ in range(streams)]
        codes: list[Frames] = []
        index = 0
        advance = _ahead(generator, streams) if served else lambda: generator.step(range(streams))
        for number in range(frames):
            with clock(spent, "frames" if number else "first frame"):
                made = advance()
            for rows, frame in zip(chunk, made, strict=True):
                if frame.payload is None:
                    raise SystemExit(f"the speech ended after {number} frames: take another seed")
                rows.append(frame.payload)
            if len(chunk[0]) == schedule[min(index, len(schedule) - 1)] or number == frames - 1:
                with clock(spent, "code2wav"):
                    self._decode(index + heard, [np.stack(rows) for rows in chunk])
                first = first or time.perf_counter() - began
                codes.extend(chunk[0])
                chunk, index = [[] for _ in range(streams)], index + 1
        total = time.perf_counter() - began
        generator.reset()
        self._forget(streams)
        per_frame = spent["frames"] / (frames - 1)
        return np.stack(codes), Spent(first, spent["prefill"], per_frame, spent["code2wav"], total, frames)

    def generator(self, streams: int) -> Generator[Any]:
        """A generator without streams."""
        return self._fixed or Generator(self.model.talker, streams, self.max_length)

    def sound(self, codes: Frames) -> npt.NDArray[np.float32]:
        """Frames [streams, frames, K], decoded side by side in chunks -> [streams, samples]."""
        pieces, done, schedule = [], 0, self.model.chunk_frames
        for index, size in enumerate([*schedule, *schedule[-1:] * codes.shape[1]]):
            if done < codes.shape[1]:
                pieces.append(np.stack(self._decode(index, [*codes[:, done : done + size]])))
                done += size
        self._forget(len(codes))
        return np.concatenate(pieces, axis=1)

    def _decode(self, index: int, rows: list[Frames], context: Frames | None = None) -> list[npt.NDArray[np.float32]]:
        before = rows[0][:0] if context is None else context
        chunks = [CodecChunk(str(slot), index, each, before, final=False) for slot, each in enumerate(rows)]
        waveforms = []
        for decoded in self.code2wav.decode(chunks):
            if not isinstance(decoded, Decoded):
                raise decoded
            waveforms.append(decoded.waveform)
        return waveforms

    def _forget(self, streams: int) -> None:
        for slot in range(streams):
            self.code2wav.drop(str(slot))


def _ahead(generator: Generator[Any], streams: int) -> Callable[[], list[Frame]]:
    """What makes the next frame of all streams, by the loop of the server's engine."""
    steps, live = SourceSteps(generator), dict.fromkeys(range(streams), cast(Any, generator))

    def failed(slot: int, error: Exception) -> None:
        raise error

    def advance() -> list[Frame]:
        while not (made := steps.run(range(streams), live, lambda *begun: None, failed)):
            pass  # the first call begins a step and has no frames to give
        return [frame for _, _, frame in made]

    return advance
