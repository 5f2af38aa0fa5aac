"""An engine's frame source that counts instead of computing, and sinks that keep what they get."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.support.waiting import WAIT
from voice_clone.batching.engine import Engine
from voice_clone.batching.source import Frame, PayloadForm
from voice_clone.batching.stream import FrameChunk
from voice_clone.errors import InvalidArgument


@dataclass(frozen=True)
class Wish:
    """A stream that counts up from `base` for `frames` frames."""

    base: int
    frames: int
    empty_end: bool = False  # ends like an EOS: with a step that has no frame
    fail_at: int | None = None  # this frame has finish "error"
    raise_at: int | None = None  # every step with this frame raises
    refuse: bool = False
    prompt: int = 3
    text: int | None = None  # its text is open, and allows so many frames; -1: not even the prompt
    bad_prompt: bool = False


class Counter:
    """Frames are [base + n, base + n]; `gate` lets a test hold the engine between steps.

    Args:
        ahead: the engine may begin a step before it knows the frames of the one before, as on a GPU.
    """

    def __init__(self, slots: int, ahead: bool = False) -> None:
        self.slots = slots
        self.ahead = ahead
        self.one_by_one = False
        self.prompts_at_once = slots
        self.payload = PayloadForm(2)
        self.state: dict[int, tuple[Wish, int]] = {}
        self.unread: dict[int, int] = {}
        self.text: dict[int, int | None] = {}
        self.questions = 0  # whether a stream is ready
        self.gate = threading.Semaphore(0)
        self.free_running = True
        self.widths: list[int] = []
        self.log: list[tuple[str, int, int]] = []  # ("prefill", base, count) and ("frame", base, number)
        self.break_free = False
        self.lose_a_frame = False

    def start(self, slot: int, request: Wish) -> int:
        assert slot not in self.state
        if request.refuse:
            raise InvalidArgument("refused")
        self.state[slot] = (request, 0)
        self.unread[slot] = request.prompt
        self.text[slot] = request.text
        return request.prompt

    def extend(self, slot: int, more: int | None) -> None:
        text = self.text[slot]
        assert text is not None
        if more == 0:
            raise RuntimeError("bad text")
        self.text[slot] = None if more is None else text + more

    def ready(self, slot: int, count: int) -> bool:
        self.questions += 1
        text = self.text[slot]
        return text is None or (text >= 0 and (bool(count) or self.state[slot][1] < text))

    def prefill(self, counts: Mapping[int, int]) -> None:
        if any(self.state[slot][0].bad_prompt for slot in counts):
            raise RuntimeError("bad prompt")
        for slot, count in counts.items():
            assert 0 < count <= self.unread[slot]
            self.unread[slot] -= count
            self.log.append(("prefill", self.state[slot][0].base, count))

    def begin(self, slots: Sequence[int]) -> Callable[[], list[Frame | None]]:
        frames = self._step(slots)
        return lambda: frames

    def _step(self, slots: Sequence[int]) -> list[Frame | None]:
        if not self.free_running:
            assert self.gate.acquire(timeout=WAIT)
        assert all(self.unread[slot] == 0 and self.ready(slot, 0) for slot in slots)
        if any(self.state[slot][0].raise_at == self.state[slot][1] for slot in slots):
            raise RuntimeError("boom")
        self.widths.append(len(slots))
        frames = [self._frame(slot) for slot in slots]
        if self.lose_a_frame:
            self.lose_a_frame = False
            return frames[1:]
        return frames

    def _frame(self, slot: int) -> Frame | None:
        wish, made = self.state[slot]
        if made == wish.frames and not wish.empty_end:
            assert self.ahead, "its last frame was begun before"
            return None
        self.log.append(("frame", wish.base, made))
        if wish.fail_at == made:
            return Frame(None, "error")
        if wish.empty_end and made == wish.frames:
            return Frame(None, "stop")
        self.state[slot] = (wish, made + 1)
        last = not wish.empty_end and made + 1 == wish.frames
        return Frame(np.full(2, wish.base + made, np.int32), "length" if last else None)

    def park(self, slot: int) -> object:
        assert not self.ready(slot, 0) or self.unread[slot]
        return self.state.pop(slot), self.unread.pop(slot), self.text.pop(slot)

    def resume(self, slot: int, stream: object) -> None:
        assert slot not in self.state
        self.state[slot], self.unread[slot], self.text[slot] = stream  # type: ignore[misc]

    def free(self, slot: int) -> None:
        if self.break_free:
            self.break_free = False
            raise RuntimeError("the slot would not be freed")
        del self.state[slot]

    def reset(self) -> None:
        self.state = {}


class Collector:
    """A sink that keeps what it gets; `hold` makes it slow, `break_at` makes a chunk fail."""

    def __init__(self, break_at: int | None = None) -> None:
        self.chunks: list[FrameChunk] = []
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self.hold = threading.Event()
        self.hold.set()
        self.left = False
        self.break_at = break_at
        self.announced = 0

    def chunk(self, chunk: FrameChunk) -> None:
        assert not self.ended.is_set()
        assert self.hold.wait(WAIT)
        if chunk.index == self.break_at:
            raise OSError("the line is broken")
        self.chunks.append(chunk)
        if chunk.finish is not None:
            self.ended.set()

    def fail(self, error: BaseException) -> None:
        assert not self.ended.is_set()
        self.error = error
        self.ended.set()

    def cancelled(self) -> bool:
        return self.left

    def announce(self) -> None:
        self.announced += 1

    def wait(self) -> Collector:
        assert self.ended.wait(WAIT)
        return self

    @property
    def values(self) -> list[int]:
        return [int(row[0]) for chunk in self.chunks for row in chunk.payload]


def submit(engine: Engine[Wish], name: str, wish: Wish) -> Collector:
    collector = Collector()
    engine.submit(name, wish, collector)
    return collector
