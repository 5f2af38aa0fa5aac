"""A model at rest has given back what it loaded, and no work finds it half loaded."""

from __future__ import annotations

import gc
import logging
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.doubles.clock import Clock
from tests.support.waiting import WAIT
from voice_clone import gpu
from voice_clone.errors import CheckpointError, Overloaded
from voice_clone.native import thread_pool
from voice_clone.triton.rest import Rest

SECONDS = 60.0


class Part:
    """What a model loads: weights, and a mark of being closed."""

    def __init__(self, closed: list[str], name: str = "part") -> None:
        self.weights, self._closed, self._name = np.ones(1000), closed, name
        self.itself = self  # a cycle, as networks have

    @property
    def is_closed(self) -> bool:
        return self._name in self._closed

    def close(self) -> None:
        self._closed.append(self._name)


class Loaded:
    """A model as `Rest` sees it."""

    def __init__(self, clock: Clock | None = None, folder: Path | None = None, seconds: float = SECONDS) -> None:
        self.loads = 0
        self.fails: Exception | None = None
        self.closed: list[str] = []
        self.works = self.pending = False
        more = {} if clock is None else {"clock": clock}
        self.rest = Rest(
            self.load,
            vars(self),
            busy=lambda: self.works,
            pending=lambda: self.pending,
            seconds=seconds,
            folder=folder,
            **more,
        )

    def load(self) -> None:
        self.loads += 1
        self.first = Part(self.closed, f"first {self.loads}")
        if self.fails is not None:
            raise self.fails
        self.second = Part(self.closed, f"second {self.loads}")

    def sleep(self, clock: Clock) -> None:
        clock.now += SECONDS
        self.rest.look()
        assert not self.rest.awake


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def model(clock: Clock) -> Iterator[Loaded]:
    model = Loaded(clock)
    yield model
    model.rest.close()


def test_what_was_loaded_is_closed_and_freed_and_loaded_again(model: Loaded, clock: Clock) -> None:
    weights = weakref.ref(model.first.weights)
    model.sleep(clock)
    assert model.closed == ["second 1", "first 1"] and weights() is None
    assert not hasattr(model, "first") and not hasattr(model, "second")
    assert model.rest.run(lambda: model.second.is_closed) is False and model.loads == 2
    model.rest.close()
    assert model.closed[2:] == ["second 2", "first 2"]


def test_the_time_until_rest_begins_at_the_end_of_work(model: Loaded, clock: Clock) -> None:
    model.works = True
    for _ in range(3):
        clock.now += SECONDS
        model.rest.look()
    model.works = False
    clock.now += SECONDS - 1
    model.rest.look()
    model.rest.run(lambda: vars(clock).update(now=clock.now + SECONDS))
    clock.now += SECONDS - 1
    model.rest.look()
    assert model.rest.awake
    model.pending = True
    clock.now += 1
    model.rest.look()
    assert model.rest.awake, "a request is open"
    model.pending = False
    model.rest.look()
    assert not model.rest.awake


def test_work_that_needs_nothing_neither_wakes_the_model_nor_keeps_it_awake(model: Loaded, clock: Clock) -> None:
    clock.now += SECONDS
    assert model.rest.run(lambda: model.rest.awake, needs_nothing=True) is True
    model.rest.look()
    assert model.rest.run(lambda: model.rest.awake, needs_nothing=True) is False
    model.rest.when_awake(lambda: pytest.fail("it rests"))
    assert model.loads == 1


def test_a_model_that_never_rests(clock: Clock) -> None:
    model = Loaded(clock, seconds=0.0)
    clock.now += 1e9
    assert model.rest.run(lambda: model.loads) == 1
    model.rest.close()


def test_a_failure_to_load_is_an_error_and_the_next_call_tries_again(
    model: Loaded, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    model.sleep(clock)
    model.fails = ValueError("no room")
    for number in (2, 3):
        with pytest.raises(Overloaded, match="try again later"), caplog.at_level(logging.CRITICAL):
            model.rest.run(lambda: pytest.fail("it is not loaded"))
        assert model.closed[-1] == f"first {number}" and not hasattr(model, "first")
    model.fails = None
    assert model.rest.run(lambda: model.second.is_closed) is False and model.loads == 4


def test_a_checkpoint_that_was_replaced_is_not_loaded(clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    file, other = tmp_path / "below" / "weights", tmp_path / ".other"
    file.write_bytes(b"first")
    other.write_bytes(b"other")
    model = Loaded(clock, tmp_path)
    model.sleep(clock)
    file.rename(tmp_path / ".kept")
    other.rename(file)
    with pytest.raises(CheckpointError, match="start the server again"):
        model.rest.run(lambda: None)
    file.rename(other)
    (tmp_path / ".kept").rename(file)
    assert model.rest.run(lambda: model.loads) == 2
    model.rest.close()


def test_a_checkpoint_with_a_new_file_is_loaded(clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "weights").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / ".nothing")
    model = Loaded(clock, tmp_path)
    model.sleep(clock)
    (tmp_path / "directions").mkdir()
    (tmp_path / "directions" / "joy.safetensors").touch()
    assert model.rest.run(lambda: model.loads) == 2
    model.rest.close()


def test_a_checkpoint_that_is_away_for_a_while_is_loaded_when_it_is_back(clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    (tmp_path / "mount" / "weights").touch()
    model = Loaded(clock, tmp_path / "mount")
    model.sleep(clock)
    (tmp_path / "mount").rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match="when they are back"):
        model.rest.run(lambda: None)
    (tmp_path / "away").rename(tmp_path / "mount")
    assert model.rest.run(lambda: model.loads) == 2
    model.rest.close()


@pytest.mark.parametrize("place", ["busy", "close"])
def test_a_lost_gpu_ends_the_process(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, ended = ValueError("the context is unusable"), threading.Event()
    monkeypatch.setattr(gpu, "is_fatal", lambda error: error is lost)
    monkeypatch.setattr(gpu, "end_process", ended.set)

    class Part:
        def close(self) -> None:
            raise lost

    def busy() -> bool:
        if place == "busy":
            raise lost
        return False

    attributes: dict[str, Any] = {}
    rest = Rest(lambda: attributes.update(part=Part()), attributes, busy=busy, seconds=1e-3)
    assert ended.wait(WAIT)
    rest.close()


def test_no_work_finds_a_model_that_goes_to_rest() -> None:
    model = Loaded(seconds=1e-6)
    stopped = threading.Event()

    def work(value: random.Random) -> bool:
        parts = model.first, model.second
        stopped.wait(value.uniform(0.0, 2e-3))
        return model.rest.awake and (model.first, model.second) == parts and not any(each.is_closed for each in parts)

    def call(number: int) -> list[bool]:
        value, found = random.Random(number), []
        for _ in range(100):
            found.append(model.rest.run(lambda: work(value)))
            model.rest.run(lambda: None, needs_nothing=True)
            stopped.wait(value.uniform(0.0, 2e-3))
        return found

    def look() -> None:
        while not stopped.is_set():
            model.rest.look()

    looks = threading.Thread(target=look)
    looks.start()
    with ThreadPoolExecutor(4) as pool:
        found = [each for result in pool.map(call, range(4)) for each in result]
    stopped.set()
    looks.join()
    model.rest.close()
    assert len(found) == 400 and all(found)
    assert model.loads > 1 and len(model.closed) == 2 * model.loads


def test_the_last_kernel_keeps_no_weights(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel:
        def on_thread(self, *arguments: Any) -> Callable[[int], None]:
            return lambda number: arguments[-1].sum()

    pool = thread_pool.ThreadPool(2)
    monkeypatch.setattr(thread_pool, "_pool", pool)
    model = Loaded(clock)
    weights = weakref.ref(model.first.weights)
    kernel: Any = Kernel()
    pool.run(kernel, 1, 1 << 30, model.first.weights)
    model.sleep(clock)
    gc.collect()
    assert weights() is None
    model.rest.close()
