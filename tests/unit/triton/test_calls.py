"""Calls between models: what Triton answers, and responses that stay alive while python_backend may need them."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.doubles.backend_double import backend_double
from voice_clone.errors import Overloaded, VoiceCloneError


class Answer:
    def has_error(self) -> bool:
        return False

    def output_tensors(self) -> list[Any]:
        return []


class Asked:
    """A call whose answers come one by one."""

    def __init__(self, answers: list[Answer]) -> None:
        self._answers = answers

    def exec(self, decoupled: bool) -> Any:
        assert decoupled
        return iter([self._answers.pop()])


def test_responses_are_released_at_the_unload() -> None:
    answers = [Answer(), Answer()]
    kept = [weakref.ref(answer) for answer in answers]
    with backend_double("calls") as (calls,):
        calls.pb_utils.InferenceRequest = lambda **given: Asked(answers)
        for _ in kept:
            last = time.monotonic()
            calls.call("talker", {"cancel": "a"}, decoupled=True)
        assert not answers and all(answer() is not None for answer in kept)
        calls.release_answers()
        assert time.monotonic() - last > calls.AT_THE_END / 2, "python_backend may still clear up"
        assert not any(answer() is not None for answer in kept)
        calls.release_answers()


def refusal(message: str) -> Any:
    """A call that Triton refuses with this message."""
    return SimpleNamespace(
        exec=lambda: SimpleNamespace(has_error=lambda: True, error=lambda: SimpleNamespace(message=lambda: message))
    )


def test_no_call_is_made_once_the_server_has_refused_one_because_it_stops() -> None:
    refused = refusal("Error: Server not ready").exec()
    with backend_double("calls") as (calls,):
        asked: list[str] = []
        calls.pb_utils.InferenceRequest = lambda model_name, **given: SimpleNamespace(
            exec=lambda: [asked.append(model_name), refused][1]
        )
        assert not calls.is_ready("a_voice_encoder")
        for _ in range(2):
            assert not calls.is_ready("b_voice_encoder")
            with pytest.raises(VoiceCloneError, match="shutting down"):
                calls.call("talker", {})
        assert asked == ["a_voice_encoder"]


def test_to_cancel_a_stream_raises_nothing() -> None:
    asked: list[Any] = []

    def request(model_name: str, inputs: list[tuple[str, Any]], **given: Any) -> Any:
        asked.append((model_name, *[(name, array.tolist()) for name, array in inputs]))
        raise RuntimeError("broken")

    with backend_double("calls") as (calls,):
        calls.pb_utils.InferenceRequest = request
        calls.cancel_stream("a_talker", "s")
        calls._stopping.set()
        calls.cancel_stream("a_talker", "s")
    assert asked == [("a_talker", ("cancel", [b"s"]))]


class Garbled:
    """An answer whose text newer servers have freed before it is read."""

    def has_error(self) -> bool:
        return True

    def error(self) -> Any:
        return SimpleNamespace(message=lambda: b"Model \x9c\xff'".decode())


class Raising:
    """A request whose call fails outright, as newer servers let it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def exec(self) -> Any:
        raise self._error


EXPECTS = "[request id: <id_unknown>] expected 2 inputs but got 0 inputs for model 'a'. Got input(s) []"


@pytest.mark.parametrize(
    ("asked", "ready"),
    [
        pytest.param(SimpleNamespace(exec=Garbled), False, id="no UTF-8"),
        pytest.param(Raising(UnicodeDecodeError("utf-8", b"\x9c", 0, 1, "invalid start byte")), False, id="raised"),
        pytest.param(Raising(RuntimeError("\x00\x01")), False, id="raised with anything"),
        pytest.param(refusal("Model a - Error when running inference: Model 'a' is not ready."), False, id="not ready"),
        pytest.param(refusal("Request for unknown model: 'a' is not found"), False, id="unknown"),
        pytest.param(refusal(EXPECTS), True, id="ready"),
        pytest.param(refusal(f"in ensemble 'a', in ensemble 'a', {EXPECTS}"), True, id="ready, of an ensemble"),
    ],
)
def test_a_model_is_ready_only_if_triton_says_so_in_readable_words(asked: Any, ready: bool) -> None:
    with backend_double("calls") as (calls,):
        calls.pb_utils.InferenceRequest = lambda **given: asked
        assert calls.is_ready("a") is ready
        assert calls.is_ready("a") is ready, "such an answer does not mean that the server stops"


def test_old_responses_are_released_by_the_next_call() -> None:
    answers = [Answer(), Answer()]
    second, first = map(weakref.ref, answers)
    with backend_double("calls") as (calls,):
        calls.pb_utils.InferenceRequest = lambda **given: Asked(answers)
        calls.CLEARED_UP = 0.0
        calls.call("talker", {"cancel": "a"}, decoupled=True)
        assert first() is not None
        time.sleep(0.01)
        calls.call("talker", {"cancel": "a"}, decoupled=True)
        assert first() is None and second() is not None


class Chunk(Answer):
    """A response with one output of so many bytes."""

    def __init__(self, size: int) -> None:
        self._tensor = SimpleNamespace(name=lambda: "audio", as_numpy=lambda: np.zeros(size, np.uint8))

    def output_tensors(self) -> list[Any]:
        return [self._tensor]


def test_whoever_leaves_early_reads_to_the_end_all_the_same() -> None:
    read = []

    def answers() -> Iterator[Chunk]:
        for size in (1, 2, 3):
            read.append(size)
            yield Chunk(size)

    given: list[dict[str, Any]] = []
    with backend_double("calls") as (calls,):
        calls.pb_utils.InferenceRequest = lambda **asked: [
            given.append(asked),
            SimpleNamespace(exec=lambda decoupled: answers()),
        ][1]
        stream = calls.responses("speaker", {"text": "Hi."}, {"owner": "alice", "deadline_ms": None})
        assert len(next(stream)["audio"]) == 1 and read == [1]
        stream.close()
        assert read == [1, 2, 3] and given[0]["parameters"] == {"owner": "alice"}
        assert [len(each["audio"]) for each in calls.responses("speaker", {})] == [1, 2, 3]
        assert "parameters" not in given[1]


class Refusal(Answer):
    """An error, with the code that newer servers keep between models."""

    def has_error(self) -> bool:
        return True

    def error(self) -> Any:
        return SimpleNamespace(message=lambda: 2 * "in ensemble 'a', " + "overloaded: no room", code=lambda: 5)


class Newer:
    """The responses of a call as newer servers give them: with `cancel`, and lost if they are not read to their end."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.cancelled = False

    def __iter__(self) -> Newer:
        return self

    def __next__(self) -> Answer:
        if not self._answers:
            raise StopIteration
        return self._answers.pop(0)

    def cancel(self) -> None:
        self.cancelled = True

    @property
    def read(self) -> bool:
        return not self._answers


def test_an_error_behind_the_first_response_has_its_class_and_the_rest_is_read() -> None:
    """An older server loses such an error."""
    with backend_double("calls") as (calls,):
        answers = Newer(Chunk(1), Refusal(), Answer())
        calls.pb_utils.InferenceRequest = lambda **asked: SimpleNamespace(exec=lambda decoupled: answers)
        stream = calls.responses("speaker", {})
        assert len(next(stream)["audio"]) == 1
        with pytest.raises(Overloaded, match=r"^no room$"):
            next(stream)
        assert answers.read and not answers.cancelled


def test_large_responses_are_released_sooner() -> None:
    with backend_double("calls") as (calls,):
        sizes = [6, 6, 1]
        kept: list[weakref.ref[Chunk]] = []

        def answers() -> Iterator[Chunk]:
            chunk = Chunk(sizes.pop(0))
            kept.append(weakref.ref(chunk))
            yield chunk

        calls.pb_utils.InferenceRequest = lambda **asked: SimpleNamespace(exec=lambda decoupled: answers())
        calls.ROOM, calls.HURRIED = 10, 0.0
        calls.call("speaker", {}, decoupled=True)
        time.sleep(0.01)
        calls.call("speaker", {}, decoupled=True)
        gc.collect()
        assert kept[0]() is None and kept[1]() is not None, "twelve bytes have no room"
        time.sleep(0.01)
        calls.call("speaker", {}, decoupled=True)
        assert kept[1]() is not None, "seven have"
