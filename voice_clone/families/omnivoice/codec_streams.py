"""All open streams of the codec's decoder: a `voice_clone.codec.decoder_streams.DecoderStreams`.

Each chunk of a stream's text is decoded by itself, as in the official code. The samples of a frame are made when the
`REACH` frames behind it, or the end of the chunk, have come. Then they go through the stream's `Finish`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voice_clone.codec.chunk import Primed, Reference
from voice_clone.codec.decoder import CodecFormat
from voice_clone.codec.decoder_streams import run_until, try_speech
from voice_clone.errors import InvalidArgument
from voice_clone.families.omnivoice.finish import Finish, FinishPlan
from voice_clone.families.omnivoice.networks.codec_decoder import REACH, CodecDecoder
from voice_clone.lru_cache import CacheUsage

MAX_STREAMS = 1024  # that are open; each takes some kilobytes, and a voice without reference its first text chunk
PIECE = 64  # frames that are decoded at once, so that memory does not grow with a chunk


@dataclass(frozen=True, eq=False)
class _Place:
    """Where a stream is in the chunks of its text.

    Attributes:
        chunk: of the text.
        latents: [hidden_size, n], of the last frames.
        before: how many of them are decoded already.
        done: frames of this chunk that have come.
    """

    chunk: int
    latents: Tensor
    before: int = 0
    done: int = 0


@dataclass(frozen=True, eq=False)
class _Window:
    """Latents [hidden_size, n], whose first `before` and last `after` frames are only context."""

    latents: Tensor
    before: int
    after: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Windows of one shape are decoded together."""
        return self.latents.shape[1], self.before, self.after


@dataclass(eq=False)
class _Stream:
    plan: FinishPlan
    finish: Finish
    place: _Place


class CodecStreams:
    """The `DecoderStreams` of the codec.

    Args:
        decoder: of the codec.
        form: of its frames.
        together: streams share a forward where their windows have one shape; of use on a GPU.
    """

    max_streams = MAX_STREAMS
    primed_bytes = 0
    supports_ragged_batches = True

    def __init__(self, decoder: CodecDecoder, form: CodecFormat, *, together: bool) -> None:
        self._decoder, self._form, self._together = decoder, form, together
        self._nothing = decoder.latents(torch.zeros(1, form.payload.width, 0, dtype=torch.int64, device=decoder.device))
        self._open: dict[int, _Stream] = {}
        self._numbers = count()

    @property
    def stream_bytes(self) -> int:
        """Those of the latents around the next frame."""
        return 2 * REACH * self._nothing.shape[1] * self._nothing.element_size()

    @property
    def one_by_one(self) -> bool:
        return not self._together

    def warm_up(self, lengths: Sequence[int], batches: Sequence[int], seconds: float) -> None:
        """Decode first chunks of these lengths, then later ones."""
        deadline = time.monotonic() + seconds
        plan = FinishPlan(1.0, (max(lengths),), remove_silence=False)

        def speak(batch: int, length: int) -> None:
            try_speech(self, [self._begin(plan) for _ in range(batch)], [self._form.payload.zeros(length)] * 2)

        sizes = sorted({batch if self._together else 1 for batch in batches})
        run_until(deadline, (partial(speak, size, length) for size in sizes for length in sorted(set(lengths))))

    def prepare(self, reference: Reference) -> None:
        """Do nothing: no stream depends on its reference's frames here."""

    def restore(self, references: Iterable[Reference], seconds: float) -> int:
        return 0

    def open(self, reference: Reference) -> tuple[int, Primed]:
        if not reference.voice:
            raise InvalidArgument("this decoder needs the voice with chunk 0; send the tensor voice")
        return self._begin(FinishPlan.of(reference.voice)), "none"

    def decode(self, streams: Sequence[int], frames: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
        moves = [list(self._moves(self._open[number], each)) for number, each in zip(streams, frames, strict=True)]
        windows = [window for move in moves for _, window in move]
        samples = iter(self._samples(windows))
        heard = []
        for number, move in zip(streams, moves, strict=True):
            stream, made = self._open[number], [next(samples) for _ in move]
            if move:
                stream.place = move[-1][0]
            finished = [stream.finish.push(each) for each in made]
            heard.append(np.concatenate([np.zeros(0, np.float32), *finished]).clip(-1, 1))
        return heard

    def flush(self, stream: int) -> NDArray[np.float32]:
        open_stream = self._open[stream]
        place = open_stream.place
        window = _Window(place.latents, place.before, 0)
        finished = [open_stream.finish.push(each) for each in self._samples([window])]
        open_stream.place = replace(place, latents=place.latents[:, :0], before=0)
        rest: NDArray[np.float32] = np.concatenate([*finished, open_stream.finish.end()]).clip(-1, 1)
        return rest

    def close(self, stream: int) -> None:
        del self._open[stream]

    def forget(self, voices: Collection[str]) -> CacheUsage:
        return CacheUsage(0, 0, frozenset())

    def sweep(self) -> None:
        """As of `DecoderStreams`."""

    def _begin(self, plan: FinishPlan) -> int:
        number = next(self._numbers)
        finish = Finish(plan, self._form.sample_rate, self._form.frame_samples)
        self._open[number] = _Stream(plan, finish, _Place(0, self._nothing[0]))
        return number

    def _moves(self, stream: _Stream, frames: NDArray[Any]) -> Iterator[tuple[_Place, _Window]]:
        """The windows that can be decoded with these frames, each with the place behind it.

        A chunk of the text but the last ends where the plan says so; the last one ends by `flush`.
        """
        place = stream.place
        while len(frames):
            left = PIECE
            ends = place.chunk < len(stream.plan.text_chunks) - 1
            if ends:
                left = min(left, stream.plan.text_chunks[place.chunk] - place.done)
            piece, frames = frames[:left], frames[left:]
            codes = self._form.batch([piece], self._decoder.device)
            latents = torch.cat([place.latents, self._decoder.latents(codes)[0]], dim=1)
            done, length = place.done + len(piece), latents.shape[1]
            if ends and done == stream.plan.text_chunks[place.chunk]:
                window = _Window(latents, place.before, 0)
                place = _Place(place.chunk + 1, latents[:, :0])
            else:
                ready = max(place.before, length - REACH)  # frames of the latents that can be decoded
                window = _Window(latents, place.before, length - ready)
                kept = min(ready, REACH)
                place = _Place(place.chunk, latents[:, ready - kept :], kept, done)
            yield place, window

    def _samples(self, windows: Sequence[_Window]) -> list[NDArray[np.float32]]:
        """The samples of each window's frames; windows of one shape share a forward, if streams do."""
        made: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(windows)
        groups: dict[tuple[int, ...], list[int]] = {}
        for place, window in enumerate(windows):
            if window.before + window.after < window.latents.shape[1]:
                key = window.shape if self._together else (place,)
                groups.setdefault(key, []).append(place)
        waiting = []
        for places in groups.values():
            first = windows[places[0]]
            latents = torch.stack([windows[place].latents for place in places])
            waiting.append((places, self._decoder.waveform(latents, first.before, first.after)))
        for places, samples in waiting:
            for place, row in zip(places, samples.cpu().numpy(), strict=True):
                made[place] = row
        return made
