"""The order of pieces of texts, their answers, and what closes a text; without an engine and without a tokenizer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.doubles.clock import Clock
from tests.support.waiting import WAIT, until
from voice_clone.batching.stream import View
from voice_clone.errors import InvalidArgument, Overloaded, StreamNotFound, VoiceCloneError
from voice_clone.triton.stages import text_streams
from voice_clone.triton.stages.text_streams import Piece, TextStreams

IDLE = 10.0
NAME = "a" * 16


@dataclass
class Draft:
    text: str
    last: bool

    def __len__(self) -> int:
        return len(self.text.split())


class Words:
    """A text whose tokens are words; one is read with each frame."""

    def __init__(self) -> None:
        self.words: list[str] = []

    @property
    def tokens(self) -> int:
        return len(self.words)

    @property
    def before_audio(self) -> int:
        return 1

    @property
    def blank(self) -> bool:
        return not self.words

    def draft(self, text: str, last: bool) -> Draft:
        if "!" in text:
            raise InvalidArgument("no exclamation")
        return Draft(text, last)

    def take(self, draft: Draft, cut: bool = False) -> Any:
        self.words += draft.text.split()
        return draft.text, draft.last, cut

    def read(self, frames: int) -> int:
        return min(frames, self.tokens)

    def characters(self, tokens: int) -> int:
        return sum(map(len, self.words[:tokens]))


class Engine:
    """What the streams ask of an engine."""

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.cancelled: list[VoiceCloneError | None] = []
        self.view: View | None = View(True, 0, None)

    def extend(self, stream_id: str, more: Any, last: bool) -> bool:
        assert more[1] == last
        self.given.append(more)
        return self.view is not None

    def look(self, stream_id: str) -> View | None:
        return self.view

    def cancel(self, stream_id: str, error: VoiceCloneError | None = None) -> bool:
        self.cancelled.append(error)
        return True


class Answered:
    """Where one answer goes."""

    def __init__(self) -> None:
        self.info: dict[str, Any] | None = None
        self.error: BaseException | None = None

    def send(self, outputs: Mapping[str, Any], final: bool = False) -> None:
        assert final and self.info is None and self.error is None
        self.info = json.loads(outputs["info"])

    def fail(self, error: BaseException) -> None:
        assert self.info is None and self.error is None
        self.error = error

    @property
    def done(self) -> bool:
        return self.info is not None or self.error is not None


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def texts(engine: Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextStreams]:
    monkeypatch.setattr(text_streams, "SWEEP_SECONDS", 0.005)
    texts = TextStreams(engine, most_open=2, idle_seconds=IDLE, clock=clock, part_characters=90)
    yield texts
    texts.close()


def begin(texts: TextStreams, name: str = NAME) -> None:
    texts.open(name, Words(), lambda: None)


def append(texts: TextStreams, index: int, text: str, last: bool = False, name: str = NAME) -> Answered:
    answer = Answered()
    texts.append(name, Piece(index, text, last), answer)
    return answer


def info_of(answer: Answered) -> dict[str, Any]:
    assert answer.info is not None, answer.error
    return answer.info


def test_pieces_are_taken_once_and_in_order(texts: TextStreams, engine: Engine) -> None:
    begin(texts)
    second, third = append(texts, 1, "two"), append(texts, 2, "three", True)
    again = append(texts, 2, "three", True)
    assert not second.done and not third.done
    assert info_of(append(texts, 0, "one")) == {
        "accepted": 0,
        "text_tokens": 1,
        "read": 0,
        "characters": 0,
        "first_audio_tokens": 1,
        "part_characters": 90,
        "state": "open",
    }
    assert [given[0] for given in engine.given] == ["one", "two", "three"]
    assert info_of(second)["accepted"] == 1
    assert info_of(third) == info_of(again)
    assert (info_of(third)["accepted"], info_of(third)["state"]) == (2, "closed")
    engine.view = View(True, 2, None)
    repeated = info_of(append(texts, 0, "one"))
    assert (repeated["read"], repeated["characters"], repeated["accepted"]) == (2, 6, 2)
    assert len(engine.given) == 3


@pytest.mark.parametrize(
    ("index", "text", "last", "words"),
    [
        (0, "other", False, "was another one"),
        (0, "one", True, "was another one"),
        (1, "no!", False, "exclamation"),
        (66, "far", False, "65 pieces are missing"),
        (1, "w " * 1100, False, "at most 1024"),
    ],
)
def test_what_is_refused_changes_nothing(
    texts: TextStreams, engine: Engine, index: int, text: str, last: bool, words: str
) -> None:
    begin(texts)
    append(texts, 0, "one")
    refused = append(texts, index, text, last)
    assert isinstance(refused.error, InvalidArgument) and words in str(refused.error)
    assert info_of(append(texts, 1, "two", True))["text_tokens"] == 2
    assert [given[0] for given in engine.given] == ["one", "two"]


def test_no_text_after_the_last(texts: TextStreams) -> None:
    begin(texts)
    early = append(texts, 2, "three")
    append(texts, 0, "one")
    append(texts, 1, "two", True)
    assert isinstance(early.error, InvalidArgument) and "closed: its last piece has come" in str(early.error)
    assert isinstance(append(texts, 2, "three").error, InvalidArgument)


def test_too_much_unread_text(texts: TextStreams, engine: Engine) -> None:
    begin(texts)
    append(texts, 0, "w " * 1000)
    full = append(texts, 1, "x " * 100)
    assert isinstance(full.error, Overloaded) and "1000 tokens of the text are unread" in str(full.error)
    engine.view = View(True, 500, None)
    assert info_of(append(texts, 1, "x " * 100))["text_tokens"] == 1100


@pytest.mark.parametrize("piece", [(None, "a"), (-1, "a"), (100_000, "a"), (0, "a" * 4097)])
def test_a_wrong_piece(piece: Any) -> None:
    with pytest.raises(InvalidArgument):
        Piece(*piece, False)


def test_text_before_its_speech(texts: TextStreams, engine: Engine, clock: Clock) -> None:
    second, first = append(texts, 1, "two", True), append(texts, 0, "one")
    lost = append(texts, 0, "one", name="b" * 16)
    clock.now += 29
    begin(texts)
    assert (info_of(first)["accepted"], info_of(second)["accepted"]) == (0, 1)
    assert [given[0] for given in engine.given] == ["one", "two"]
    clock.now += 2
    until(lambda: lost.done)
    assert isinstance(lost.error, StreamNotFound)


def test_states(texts: TextStreams, engine: Engine) -> None:
    begin(texts)
    engine.view = View(False, 0, None)
    assert info_of(append(texts, 0, "one"))["state"] == "pending"
    engine.view = View(True, 1, None)
    assert info_of(append(texts, 1, ""))["state"] == "open"
    assert info_of(append(texts, 1, ""))["part_characters"] == 90
    held = append(texts, 5, "six")
    engine.view = None
    texts.ended(NAME, "length", 1)
    assert (info_of(held)["state"], info_of(held)["finish_reason"], info_of(held)["accepted"]) == ("ended", "length", 1)
    assert info_of(append(texts, 2, "three"))["state"] == "ended"
    assert texts.info(NAME) == info_of(append(texts, 0, "one"))
    assert texts.progress(NAME, 1) == {"text_tokens": 1, "read": 1, "characters": 3, "first_audio_tokens": 1}
    assert texts.info("b" * 16) is None and texts.progress("b" * 16, 3) == {}
    texts.ended("b" * 16, "stop", 3)


def test_an_id_is_for_one_speech(texts: TextStreams, clock: Clock) -> None:
    begin(texts)
    with pytest.raises(InvalidArgument, match="its own id"):
        begin(texts)
    texts.ended(NAME, "cancelled", 0)
    with pytest.raises(InvalidArgument, match="its own id"):
        begin(texts)
    clock.now += 61
    until(lambda: texts.info(NAME) is None)


def test_as_many_open_texts_as_there_are_slots_for(texts: TextStreams) -> None:
    begin(texts)
    begin(texts, "b" * 16)
    with pytest.raises(Overloaded, match="2 texts are open"):
        begin(texts, "c" * 16)
    texts.open("e" * 16, Words(), lambda: None, "another caller")
    append(texts, 0, "one", True)
    begin(texts, "c" * 16)
    texts.ended("b" * 16, "cancelled", 0)
    begin(texts, "d" * 16)


def test_a_stream_that_the_engine_refuses_leaves_nothing(texts: TextStreams) -> None:
    def refuse() -> None:
        raise Overloaded("full")

    with pytest.raises(Overloaded, match="full"):
        texts.open(NAME, Words(), refuse)
    begin(texts)


def test_whoever_writes_for_a_refused_stream_need_not_wait(texts: TextStreams, engine: Engine, clock: Clock) -> None:
    begin(texts, "b" * 16)
    begin(texts, "c" * 16)
    before = append(texts, 0, "one")
    with pytest.raises(Overloaded, match="2 texts are open"):
        begin(texts)
    assert isinstance(before.error, Overloaded) and "2 texts are open" in str(before.error)
    with pytest.raises(Overloaded, match="2 texts are open"):
        append(texts, 1, "two")
    texts.ended("b" * 16, "cancelled", 0)
    begin(texts)  # it may try again under its name
    assert info_of(append(texts, 0, "one"))["accepted"] == 0


def test_refusals_are_forgotten(texts: TextStreams, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_streams, "MAX_REFUSED", 2)
    begin(texts, "y" * 16)
    begin(texts, "z" * 16)
    for name in ("a" * 16, "b" * 16, "c" * 16):
        with pytest.raises(Overloaded):
            begin(texts, name)
    assert not append(texts, 0, "one").done  # the oldest one: it waits for its stream
    with pytest.raises(Overloaded):
        append(texts, 0, "one", name="c" * 16)
    clock.now += 61
    until(lambda: not texts._refused)
    assert not append(texts, 0, "one", name="c" * 16).done


@pytest.mark.parametrize("blank", [False, True])
def test_a_text_without_an_end(texts: TextStreams, engine: Engine, clock: Clock, blank: bool) -> None:
    begin(texts)
    if not blank:
        append(texts, 0, "one")
    engine.view = View(True, 0, clock.now)
    held = append(texts, 2, "three")
    clock.now += IDLE - 1
    assert texts.info(NAME)["state"] == "open"  # type: ignore[index]
    clock.now += 2
    until(lambda: held.done)
    assert isinstance(held.error, InvalidArgument) and "no text came for 10 s" in str(held.error)
    if blank:
        assert [str(error) for error in engine.cancelled] == ["text is blank, and it was closed: no text came for 10 s"]
    else:
        assert engine.given[-1] == ("", True, True)
    assert texts.info(NAME)["state"] == "closed"  # type: ignore[index]


def test_a_stream_that_has_text_is_not_idle(texts: TextStreams, engine: Engine, clock: Clock) -> None:
    begin(texts)
    append(texts, 0, "one")
    clock.now += 100
    engine.view = View(True, 0, clock.now - 1)
    append(texts, 1, "two")
    assert [given[2] for given in engine.given] == [False, False]


def test_a_standstill_of_the_server_is_no_idle_time(
    engine: Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_streams, "SWEEP_SECONDS", 0.005)
    swept = threading.Semaphore(0)
    went_on = clock.now + 5 * IDLE

    def when() -> float:
        swept.release()
        return went_on

    texts = TextStreams(engine, most_open=2, idle_seconds=IDLE, clock=clock, went_on=when)
    begin(texts)
    append(texts, 0, "one")
    engine.view = View(True, 0, clock.now)
    clock.now = went_on + IDLE - 1
    for _ in range(3):
        assert swept.acquire(timeout=60.0)
    assert texts.info(NAME)["state"] == "open"  # type: ignore[index]
    clock.now += 2
    until(lambda: texts.info(NAME)["state"] == "closed")  # type: ignore[index]
    texts.close()


def test_a_blank_text_is_an_error_of_its_speech(texts: TextStreams, engine: Engine) -> None:
    begin(texts)
    assert info_of(append(texts, 0, " ", True))["state"] == "closed"
    assert [type(error) for error in engine.cancelled] == [InvalidArgument]
    assert engine.given == []


def test_close(texts: TextStreams, engine: Engine) -> None:
    begin(texts)
    append(texts, 0, "one")
    early = append(texts, 0, "one", name="b" * 16)
    texts.close()
    assert engine.given[-1] == ("", True, True)
    assert isinstance(early.error, Overloaded)
    with pytest.raises(Overloaded):
        append(texts, 0, "one", name="c" * 16)


def test_close_while_an_answer_is_given(texts: TextStreams, clock: Clock) -> None:
    """The thread gives it without the lock, and would then wait for ever: nothing is left that wakes it."""
    begun = threading.Event()

    class Slow(Answered):
        def fail(self, error: BaseException) -> None:
            begun.set()
            until(lambda: texts._closing)
            super().fail(error)

    answer = Slow()
    texts.append(NAME, Piece(0, "one", False), answer)
    clock.now += text_streams.EARLY_SECONDS + 1
    assert begun.wait(WAIT)
    closing = threading.Thread(target=texts.close, daemon=True)
    closing.start()
    closing.join(WAIT / 6)
    assert not closing.is_alive() and isinstance(answer.error, StreamNotFound)


def test_early_pieces_of_one_caller_refuse_no_other(texts: TextStreams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_streams, "MAX_EARLY", 4)
    for index in range(4):
        append(texts, index, "many", name="m" * 16)
    with pytest.raises(Overloaded):
        append(texts, 4, "many", name="m" * 16)
    other = Answered()
    texts.append(NAME, Piece(0, "mine", False), other, "other")
    begin(texts)
    assert info_of(other)["accepted"] == 0
