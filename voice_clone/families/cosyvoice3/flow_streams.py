"""All open streams of the flow and the vocoder: a `voice_clone.codec.decoder_streams.DecoderStreams`.

The flow always works in whole blocks of 25 tokens, counted from the reference's first one, so a stream is the same
however its tokens come. A block can be computed when the 3 tokens behind it are there. What later blocks need of it is
in a page, 185 MB in fp32 at the released size. Pages come from a bounded pool. A stream without a page computes its old
blocks again with the new ones, and waits each time for twice as many new ones: about twice the work in all, and the
same samples. Blocks that depend only on the voice are computed once, and all its streams share their pages.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
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
from voice_clone.families.cosyvoice3.config import BLOCK, MEL, MEL_BANDS, MEL_FRAMES, MEL_STEPS, SPEAKER, SPEAKER_SIZE
from voice_clone.families.cosyvoice3.decoder_config import LOOK_AHEAD, primed_blocks
from voice_clone.families.cosyvoice3.networks.flow import Block, FlowNetwork, Page, Span
from voice_clone.families.cosyvoice3.networks.graphed_flow import GraphedFlow
from voice_clone.families.cosyvoice3.networks.vocoder import Vocoder, VocoderState
from voice_clone.gpu import is_out_of_memory, memory_bounded_by
from voice_clone.layers.graphs import GraphRunner, to_device
from voice_clone.lru_cache import CacheUsage, LRUCache, within

MAX_STREAMS = 256  # that are open; without pages each takes a megabyte
PIECE = 4  # blocks of a reference that are solved at once

log = logging.getLogger(__name__)


class PagePool:
    """Pages up to a number of bytes. A page is returned when nothing refers to it any more. Thread-safe.

    Args:
        make: makes an empty page, by its number among all.
        page_bytes: memory of each.
        max_bytes: of all together.
    """

    def __init__(self, make: Callable[[int], Page], page_bytes: int, max_bytes: int) -> None:
        self._make = make
        self._page_bytes = page_bytes
        self.max_bytes = max_bytes
        self._most = max_bytes // page_bytes
        self._free = list(range(self._most))
        self._lock = threading.RLock()  # a page may be returned wherever Python frees memory, here, too

    @property
    def nbytes(self) -> int:
        """Memory of all pages in use."""
        return (self._most - len(self._free)) * self._page_bytes

    def take(self) -> Page | None:
        """An empty page; None if all are in use, or the GPU's memory is."""
        with self._lock:
            if not self._free:
                return None
            number = self._free.pop()
        try:
            page = self._make(number)
        except Exception as error:
            self._returned(number)
            if is_out_of_memory(error):
                log.warning("a page finds no memory; set a smaller page_bytes, or free the GPU")
                return None
            raise
        weakref.finalize(page, self._returned, number)
        return page

    def _returned(self, number: int) -> None:
        with self._lock:
            self._free.append(number)


@dataclass(frozen=True, eq=False)
class _Voice:
    """A reference as the flow takes it: tokens int64 [P], mel fp32 [2P, bands], speaker fp32 [bands]."""

    tokens: Tensor
    mel: Tensor
    speaker: Tensor

    @property
    def blocks(self) -> int:
        """That depend on the voice alone."""
        return primed_blocks(len(self.tokens), BLOCK)

    def frames(self, number: int, count: int) -> Tensor:
        """The reference's frames in a block of `count`, zeros behind its end: [count, bands]."""
        begin = BLOCK * MEL_FRAMES * number
        frames = torch.zeros(count, MEL_BANDS, device=self.mel.device)
        known = self.mel[begin : begin + count]
        frames[: len(known)] = known
        return frames


@dataclass(frozen=True, eq=False)
class _Stream:
    """A stream so far. A step makes the next one of it.

    Attributes:
        tokens: int64 [N], of the reference and the stream.
        pages: of the first blocks.
        solved: blocks, whether their pages are there or not.
        patience: blocks that must have come before blocks without pages are solved again.
    """

    voice: _Voice
    tokens: Tensor
    pages: tuple[Page, ...]
    solved: int
    vocoder: VocoderState
    patience: int = 1

    def blocks(self, last: bool) -> int:
        """How many can be solved. `last`: no token follows."""
        return -(-len(self.tokens) // BLOCK) if last else max(0, len(self.tokens) - LOOK_AHEAD) // BLOCK


@dataclass
class _PrimedVoice:
    pages: tuple[Page, ...]
    used: bool  # by a stream, or restored before any stream could ask


class FlowStreams:
    """As of `DecoderStreams`.

    Args:
        page_bytes: of the pages of all streams and voices together. At most half of them wait for voices that may not
            speak again: streams that speak need the others.
        primed_seconds: a voice's pages are forgotten when unused for so long.
        together: streams share the flow's products; see `FlowNetwork.solve`.
        graphs: runs the flow in CUDA graphs, with memory for all pages; only together.
        clock: seconds, monotonic.
    """

    max_streams = MAX_STREAMS

    def __init__(
        self,
        flow: FlowNetwork,
        vocoder: Vocoder,
        form: CodecFormat,
        *,
        page_bytes: int,
        primed_seconds: float,
        together: bool,
        graphs: GraphRunner | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._flow, self._vocoder, self._form = flow, vocoder, form
        self._together = together
        with memory_bounded_by("page_bytes"):
            self._graphed = GraphedFlow(flow, graphs, page_bytes // flow.page_bytes) if graphs else None
        self.pages = PagePool((self._graphed or flow).new_page, flow.page_bytes, page_bytes)
        self._primed: LRUCache[_PrimedVoice] = LRUCache(page_bytes // 2, primed_seconds, clock)
        self._open: dict[int, _Stream] = {}
        self._numbers = count()

    @property
    def stream_bytes(self) -> int:
        """Memory of an open stream, on the average: its vocoder's state and its own pages."""
        if not self._open:
            return 0
        pages = max(0, self.pages.nbytes - self._primed.nbytes)
        return pages // len(self._open) + next(iter(self._open.values())).vocoder.nbytes

    @property
    def primed_bytes(self) -> int:
        return self._primed.nbytes

    @property
    def supports_ragged_batches(self) -> bool:
        """Where streams share products."""
        return self._together

    @property
    def one_by_one(self) -> bool:
        """As of `DecoderStreams`: where streams do not share products."""
        return not self._together

    def forget(self, voices: Collection[str]) -> CacheUsage:
        return self._primed.forget(voices)

    def sweep(self) -> None:
        self._primed.sweep()

    def warm_up(self, lengths: Sequence[int], batches: Sequence[int], seconds: float) -> None:
        """As of `DecoderStreams`: a first chunk of each number of streams. Longer ones run the same code."""
        if self._graphed is not None:
            self._graphed.prepare(max(batches))
        deadline = time.monotonic() + seconds
        voice = self._voice(Reference(np.zeros((0, 1), np.uint16), _no_voice()))
        chunk = np.zeros((BLOCK + LOOK_AHEAD, 1), np.uint16)

        def speak(batch: int) -> None:
            try_speech(self, [self._begin(voice, ()) for _ in range(batch)], [chunk])

        sizes = sorted({min(batch, MAX_STREAMS) if self._together else 1 for batch in batches})
        run_until(deadline, (partial(speak, size) for size in sizes))

    def prepare(self, reference: Reference) -> None:
        known = within(reference.key, reference.origin) in self._primed
        if reference.origin.keep and reference.voice and not known:
            self._prime(reference, self._voice(reference), used=False)

    def restore(self, references: Iterable[Reference], seconds: float) -> int:
        deadline = time.monotonic() + seconds
        done: list[Reference] = []
        for reference in references:
            try:
                self._form.check(reference.context, "the reference", len(reference.context))
                if self._primed.get(reference.key, reference.origin) is not None:
                    continue  # the artifacts of both modes are the same, and two voices may have one clip
                voice = self._voice(reference)
                most = self._most(voice)
                if not most:
                    continue
                if self._primed.nbytes + most * self._flow.page_bytes > self._primed.max_bytes:
                    break
                if len(self._prime(reference, voice, used=True, deadline=deadline)) < most:
                    break
                done.append(reference)
            except InvalidArgument:  # a reference of another checkpoint
                pass
            except Exception:  # whatever a file holds, the others serve
                log.exception("the pages of a known reference could not be computed")
        for reference in reversed(done):  # the most wanted one is then the last to be evicted
            self._primed.get(reference.key, reference.origin)
        return len(done)

    def open(self, reference: Reference) -> tuple[int, Primed]:
        if not reference.voice:
            raise InvalidArgument("this decoder needs the voice with chunk 0; send the tensor voice")
        voice = self._voice(reference)
        if not self._most(voice):
            return self._begin(voice, ()), "none"
        found = self._primed.get(reference.key, reference.origin)
        if found is not None:
            used, found.used = found.used, True
            return self._begin(voice, found.pages), "hit" if used else "miss"
        return self._begin(voice, self._prime(reference, voice, used=True)), "miss"

    def decode(self, streams: Sequence[int], frames: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
        return self._move_on(streams, frames, last=False)

    def flush(self, stream: int) -> NDArray[np.float32]:
        [samples] = self._move_on([stream], [np.zeros((0, 1), np.int64)], last=True)
        return samples

    def close(self, stream: int) -> None:
        del self._open[stream]

    def _begin(self, voice: _Voice, pages: tuple[Page, ...]) -> int:
        number = next(self._numbers)
        self._open[number] = _Stream(voice, voice.tokens, pages, voice.blocks, self._vocoder.new_state())
        return number

    def _voice(self, reference: Reference) -> _Voice:
        """Check a reference and take it to the device.

        Raises:
            InvalidArgument: an array is missing or wrong.
        """
        mel, speaker, tokens = reference.voice.get(MEL), reference.voice.get(SPEAKER), len(reference.context)
        if mel is None or mel.dtype != np.int16 or mel.shape != (MEL_FRAMES * tokens, MEL_BANDS):
            raise InvalidArgument(
                f"the voice's {MEL} must be INT16 [{MEL_FRAMES * tokens}, {MEL_BANDS}]: {MEL_FRAMES} frames a token"
            )
        if speaker is None or speaker.dtype != np.float32 or speaker.shape != (SPEAKER_SIZE,):
            raise InvalidArgument(f"the voice's {SPEAKER} must be FP32 [{SPEAKER_SIZE}]")
        if not np.isfinite(speaker).all():
            raise InvalidArgument(f"the voice's {SPEAKER} must be finite; it holds NaN or infinity")
        return _Voice(
            self._tokens(reference.context),
            self._to_device(mel.astype(np.float32) / MEL_STEPS),
            self._flow.embed_speaker(self._to_device(speaker)),
        )

    def _to_device(self, values: NDArray[Any]) -> Tensor:
        return to_device(torch.from_numpy(np.ascontiguousarray(values)), self._flow.device)

    def _tokens(self, frames: NDArray[Any]) -> Tensor:
        return self._to_device(frames.reshape(-1).astype(np.int64))

    def _prime(
        self, reference: Reference, voice: _Voice, used: bool, deadline: float | None = None
    ) -> tuple[Page, ...]:
        """The pages of the blocks that depend on the voice alone, as many as are kept for its next streams; fewer, and
        for one stream, if others need the pages.

        Args:
            used: false if the stream for which they are made will still ask for them.
            deadline: on `time.monotonic`; what is not done by then is dropped.
        """
        pages: list[Page] = []
        most = self._most(voice)
        while len(pages) < most:
            if deadline is not None and time.monotonic() > deadline:
                return ()
            fresh = self._take(min(PIECE, most - len(pages)))
            if not fresh:
                return tuple(pages)
            blocks = [self._block(voice, voice.tokens, len(pages) + place) for place, _ in enumerate(fresh)]
            self._solve([Span(voice.speaker, pages, blocks, fresh)])
            pages += fresh
        if pages:
            size = sum(page.nbytes for page in pages)
            self._primed.put(reference.key, _PrimedVoice(tuple(pages), used), size, reference.origin)
        return tuple(pages)

    def _most(self, voice: _Voice) -> int:
        """How many pages of a voice are kept for its next streams: the first ones, if there is no room for all."""
        return min(voice.blocks, self._primed.max_bytes // self._flow.page_bytes)

    def _take(self, most: int) -> list[Page]:
        """So many pages, or fewer."""
        pages: list[Page] = []
        while len(pages) < most and (page := self.pages.take()) is not None:
            pages.append(page)
        return pages

    def _block(self, voice: _Voice, tokens: Tensor, number: int) -> Block:
        rows = self._flow.embed_tokens(tokens, number)
        return Block(rows, voice.frames(number, len(rows)))

    def _move_on(self, numbers: Sequence[int], frames: Sequence[NDArray[Any]], last: bool) -> list[NDArray[np.float32]]:
        streams = [self._heard(self._open[number], each) for number, each in zip(numbers, frames, strict=True)]
        spans = [self._span(stream, last) for stream in streams]
        wanted = [span for span in spans if span is not None]
        solved = iter(self._solve(wanted) if wanted else [])
        samples: list[Tensor] = []
        after: list[_Stream] = []
        for stream, span in zip(streams, spans, strict=True):
            heard: list[Tensor] = []
            if span is not None:
                stream = self._speak(stream, span, next(solved), heard)
            if last:
                nothing = torch.zeros(MEL_BANDS, 0, device=self._flow.device)
                rest, state = self._vocoder.move_on(nothing, stream.vocoder, last=True)
                heard.append(rest)
                stream = replace(stream, vocoder=state)
            samples.append(torch.cat(heard) if heard else torch.zeros(0))
            after.append(stream)
        self._open.update(zip(numbers, after, strict=True))
        return [each.cpu().numpy() for each in samples]

    def _solve(self, spans: Sequence[Span]) -> list[list[Tensor]]:
        return self._graphed.solve(spans) if self._graphed else self._flow.solve(spans, self._together)

    def _heard(self, stream: _Stream, frames: NDArray[Any]) -> _Stream:
        """The stream with its next tokens."""
        return replace(stream, tokens=torch.cat([stream.tokens, self._tokens(frames)])) if len(frames) else stream

    def _span(self, stream: _Stream, last: bool) -> Span | None:
        """The blocks that a stream is to solve now, if any: those without pages, and new ones."""
        ready, known = stream.blocks(last), len(stream.pages)
        new = ready - stream.solved
        if new <= 0 or (not last and known < stream.solved and new < stream.patience):
            return None
        blocks = [self._block(stream.voice, stream.tokens, number) for number in range(known, ready)]
        pages = [] if last and self._graphed is None else self._take(len(blocks))  # a graph wants a page
        return Span(stream.voice.speaker, stream.pages, blocks, [*pages, *[None] * (len(blocks) - len(pages))])

    def _speak(self, stream: _Stream, span: Span, solved: Sequence[Tensor], samples: list[Tensor]) -> _Stream:
        """Add the samples of a span's new blocks, each block by itself; returns the stream behind them."""
        state, reference = stream.vocoder, len(stream.voice.mel)
        for number, mel in enumerate(solved, start=len(span.pages)):
            own = mel[max(0, reference - BLOCK * MEL_FRAMES * number) :].T
            if number >= stream.solved and own.shape[1]:
                heard, state = self._vocoder.move_on(own, state)
                samples.append(heard)
        pages = (*span.pages, *(page for page in span.keep if page is not None))
        ready = len(span.pages) + len(span.blocks)
        patience = 2 * stream.patience if len(pages) < ready else 1
        return replace(stream, pages=pages, solved=ready, vocoder=state, patience=patience)


def _no_voice() -> dict[str, NDArray[Any]]:
    return {MEL: np.zeros((0, MEL_BANDS), np.int16), SPEAKER: np.zeros(SPEAKER_SIZE, np.float32)}
