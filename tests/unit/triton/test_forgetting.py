"""speaker_cache tells the models that a voice is gone; a model that was loading meanwhile sees it for itself."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.doubles.fakes import Voices
from tests.support.waiting import WAIT, until
from voice_clone.errors import Internal, InvalidArgument, Unsupported
from voice_clone.lru_cache import LRUCache, Origin
from voice_clone.speakers.disk.store import KnownInDirectory
from voice_clone.triton import forgetting
from voice_clone.triton.forgetting import ForgetHandler, ForgetRequests

KEPT = {"entries": 1, "bytes": 10, "voices": ["7"]}


def ready() -> threading.Event:
    """Of a server that has loaded its models."""
    event = threading.Event()
    event.set()
    return event


class Models:
    """Models that answer, are not loaded, fail, or hang."""

    def __init__(self) -> None:
        self.notified: list[tuple[str, list[str]]] = []
        self.faults: dict[str, Exception] = {}
        self.hanging = threading.Event()

    def ask(self, model: str, voices: Collection[str], digest: bool) -> Mapping[str, Any]:
        if model.startswith("slow"):
            self.hanging.wait()
        if model in self.faults:
            raise self.faults[model]
        self.notified.append((model, list(voices)))
        return KEPT


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("a_talker", "a_code2wav", "a_prompt", "b_talker", "speaker_cache"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_all_that_are_loaded_are_notified_before_it_returns(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "PATIENCE", WAIT)
    models = Models()
    models.faults["b_talker"] = Unsupported("it is not loaded")
    requests = ForgetRequests(repository, models.ask, ready())
    requests.forget(["7", "inline-x"])
    assert sorted(models.notified) == [("a_code2wav", ["7", "inline-x"]), ("a_talker", ["7", "inline-x"])]
    assert requests.kept(False) == {model: {**KEPT, "voices": 1} for model in ("a_code2wav", "a_talker")}
    requests.close()


def test_who_fails_is_notified_again_and_holds_up_no_other(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(forgetting, "PATIENCE", 0.2)
    monkeypatch.setattr(forgetting, "PAUSE", 0.01)
    (repository / "slow_talker").mkdir()
    models = Models()
    models.faults["a_talker"] = Internal("it is busy")
    requests = ForgetRequests(repository, models.ask, ready())
    requests.forget(["7"])
    until(lambda: {model for model, _ in models.notified} == {"a_code2wav", "b_talker"})
    assert "a_talker has not confirmed yet" in caplog.text and "slow_talker has not confirmed yet" in caplog.text
    models.faults.clear()
    models.hanging.set()
    until(lambda: {("a_talker", ("7",)), ("slow_talker", ("7",))} <= {(m, tuple(v)) for m, v in models.notified})
    requests.close()


def test_no_model_is_asked_before_the_server_is_ready(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(forgetting, "PATIENCE", WAIT)
    models = Models()
    server = threading.Event()
    requests = ForgetRequests(repository, models.ask, server)
    began = time.monotonic()
    for voice in "789":
        requests.forget([voice])
    assert time.monotonic() - began < forgetting.PATIENCE / 2, "it waited for answers that cannot come yet"
    assert models.notified == [] and not caplog.records
    server.set()
    until(lambda: len(models.notified) == 9)
    assert [voices for model, voices in models.notified if model == "b_talker"] == [["7"], ["8"], ["9"]]
    requests.close()


class FakeRequest:
    def __init__(self, forget: str | None) -> None:
        self._forget = forget

    def text(self, name: str) -> str | None:
        assert name == "forget"
        return self._forget


class Answers:
    def __init__(self) -> None:
        self.sent: list[tuple[dict[str, Any], bool]] = []

    def send(self, outputs: dict[str, Any], final: bool = False) -> None:
        self.sent.append((json.loads(outputs["info"]), final))


def test_a_request_to_forget(tmp_path: Path) -> None:
    cache: LRUCache[int] = LRUCache(100)
    digests = iter((None, "d1"))  # nobody computes it before it is asked for
    living = KnownInDirectory(tmp_path).origins
    kept, answers = ForgetHandler(cache.forget, living, lambda: next(digests)), Answers()
    for voice in ("1", "2"):
        cache.put(voice.encode(), 1, 10, Origin(voice, time.monotonic()))
    assert not kept.answer(FakeRequest(None), answers)  # type: ignore[arg-type]
    assert kept.answer(FakeRequest("[]"), answers)  # type: ignore[arg-type]
    assert kept.answer(FakeRequest('["1"]'), answers)  # type: ignore[arg-type]
    for _ in range(2):
        assert kept.answer(FakeRequest('{"digest": true}'), answers)  # type: ignore[arg-type]
    left = {"entries": 1, "bytes": 10, "voices": ["2"]}
    assert answers.sent == [
        ({"entries": 2, "bytes": 20, "voices": ["1", "2"]}, True),
        (left, True),
        (left, True),
        ({**left, "digest": "d1"}, True),
    ]
    for wrong in ("", "{", '"1"', "[1]", '{"digest": 1.5}', "[" * 5000):
        with pytest.raises(InvalidArgument):
            kept.answer(FakeRequest(wrong), answers)  # type: ignore[arg-type]
    kept.close()


def test_voices_deleted_while_a_model_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read them, and could not learn of the deletion."""
    monkeypatch.setattr(forgetting, "CHECK_AFTER", 0.05)
    voices, cache = Voices(tmp_path), LRUCache[int](100)
    stays, goes, replaced = (voices.upload(name, 1)["generation"] for name in ("Ada", "Bob", "Cid"))
    for voice in (stays, goes, replaced, "inline-x"):
        cache.put(str(voice).encode(), 1, 10, Origin(str(voice), time.monotonic()))
    voices.call("delete", name="Bob")
    voices.upload("Cid", 2, replace=True)
    kept = ForgetHandler(cache.forget, KnownInDirectory(tmp_path).origins, lambda: None)
    until(lambda: cache.forget(()).voices == {str(stays), "inline-x"})
    kept.close()
    voices.cache.close()
