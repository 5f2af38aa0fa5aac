"""The responses of calls between models: alive while python_backend may need them, and gone at the unload."""

from __future__ import annotations

import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.doubles.backend_double import backend_double
from voice_clone.errors import VoiceCloneError


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
            calls.call("talker", {"cancel": "a"}, decoupled=True)
        assert not answers and all(answer() is not None for answer in kept)
        last = time.monotonic()
        calls.release_answers()
        assert time.monotonic() - last > calls.AT_THE_END / 2, "python_backend may still clear up"
        assert not any(answer() is not None for answer in kept)
        calls.release_answers()


def test_no_call_is_made_once_the_server_has_refused_one_because_it_stops() -> None:
    refused = SimpleNamespace(
        has_error=lambda: True, error=lambda: SimpleNamespace(message=lambda: "Error: Server not ready")
    )
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
