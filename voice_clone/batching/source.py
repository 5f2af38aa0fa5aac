"""What the engine asks of a model: frames of many streams, step by step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from voice_clone.lru_cache import CacheUsage, Origin

R = TypeVar("R", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
P = TypeVar("P", contravariant=True)


class PayloadForm(NamedTuple):
    """The form of one frame's payload.

    Attributes:
        width: numbers of a frame: codebooks, or the size of a latent.
        dtype: their type.
    """

    width: int
    dtype: npt.DTypeLike = np.int32

    def zeros(self, count: int) -> NDArray[Any]:
        """`count` frames of zeros, [count, width]."""
        return np.zeros((count, self.width), self.dtype)

    def join(self, frames: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Payloads [width] of n frames -> one array [n, width]; n may be 0."""
        return np.array(frames, dtype=self.dtype).reshape(len(frames), self.width)


class Frame(NamedTuple):
    """What a stream made in one step: a frame or a run of frames, or the reason why it ends, or both.

    Neither of them: the step made nothing that is heard, and the stream goes on.

    Attributes:
        payload: [width], of the source's form, or a run of n frames [n, width]; None: no frame came of this step.
        finish: None while the stream goes on, else why it ends: `error`, or what its last chunk gives as the reason.
        flush: what was made goes out now, though its chunk is not full: nothing follows it for long.
    """

    payload: NDArray[Any] | None
    finish: str | None
    flush: bool = False


WaitForFrames = Callable[[], Sequence[Frame | None]]
"""Waits for a step's frames, in the order of its slots; None: the stream had ended, or all its frames were begun."""

Example = Callable[[int, int], R_co]
"""(frames of the reference, at most; max_frames) -> a request of any content."""


class FrameSource(Protocol[R]):
    """The model that makes frames, `slots` streams at a time."""

    @property
    def ahead(self) -> bool:
        """Whether a step may be begun before the frames of the one before are known."""

    @property
    def one_by_one(self) -> bool:
        """Whether a step advances only one of the streams that are given to it."""

    @property
    def slots(self) -> int:
        """How many streams can be live at once."""

    @property
    def prompts_at_once(self) -> int:
        """Of how many streams one step reads positions of prompts; for more it takes another step."""

    @property
    def payload(self) -> PayloadForm:
        """The form of a frame."""

    def start(self, slot: int, request: R) -> int:
        """Give a free slot to a stream; returns the positions of its prompt that `prefill` is to read. Nothing is
        changed if this raises.
        """

    def prefill(self, counts: Mapping[int, int]) -> None:
        """Read the next positions of started streams' prompts, so many of each slot's. May be tried as `begin`."""

    def extend(self, slot: int, more: Any) -> None:
        """Append to the text of a stream whose text is open."""

    def ready(self, slot: int, count: int) -> bool:
        """Whether the text is there for the next `count` positions of a stream's prompt; 0: for its next frame."""

    def begin(self, slots: Sequence[int]) -> WaitForFrames:
        """Begin one frame for each of `slots`; their prompts have been read, and they are ready.

        If this raises, no stream has moved: the step may be tried again with any of the slots.
        """

    def park(self, slot: int) -> Any:
        """Free the slot of a stream, and keep all of it: the stream, as `resume` takes it."""

    def resume(self, slot: int, stream: Any) -> None:
        """Let a stream go on in a free slot. Nothing is changed if this raises."""

    def free(self, slot: int) -> None:
        """Forget a slot's stream."""

    def reset(self) -> None:
        """Forget all streams, whatever state they are in."""


class TalkerSource(FrameSource[R], Protocol[R, P]):
    """A `FrameSource` with the memory of its streams, as a talker's model keeps it; P: what `restore` reads."""

    @property
    def spare_slots(self) -> int:
        """How many of the slots are for callers only that have fewer than their share."""

    @property
    def deterministic(self) -> bool:
        """Whether neighbours change no bit of a stream."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of the memory of all streams."""

    def warm_up(self, example: Example[Any], prefill_chunk: int, seconds: float) -> float:
        """Run the shapes that requests will bring. Leaves the source empty.

        Args:
            example: makes the requests.
            prefill_chunk: positions of a prompt that are read at once, as the engine will do it.
            seconds: stop between two steps once this has passed. CUDA graphs are recorded first, in any case.

        Returns: the seconds that it took.
        """

    def restore(self, prompts: Iterable[tuple[Origin, P]], seconds: float) -> int:
        """Compute ahead what streams of these voices share, the most wanted first, as much as fits and as `seconds`
        allow. For use without streams.

        Returns: for how many.
        """

    def forget(self, voices: Collection[str]) -> CacheUsage:
        """Drop what is kept of these voices; returns what is left. Streams go on. Any thread may call it."""
