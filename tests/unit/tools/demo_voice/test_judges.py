"""The judges of a checkpoint: they hear what is said and by whom, and notice when it is not so."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tools.demo_voice.dataset import Record
from tools.demo_voice.evaluation import Heard, Score, _cases, _enrol
from tools.demo_voice.identification import Identifier, traits
from tools.demo_voice.listening import Errors, Listener, _compare
from tools.demo_voice.speakers import speakers
from tools.demo_voice.synthesis import SAMPLE_RATE, speak

pytestmark = pytest.mark.thorough

needs_flite = pytest.mark.skipif(
    shutil.which("flite") is None, reason="no flite, which speaks to them (Debian: apt-get install flite)"
)
TEXT = "The old captain sold his boat."


@pytest.mark.parametrize(
    ("heard", "wrong"),
    [("the old boat", 0), ("the boat", 1), ("the cold boat", 1), ("the old old boat", 1), ("", 3), ("boat old the", 2)],
)
def test_word_errors(heard: str, wrong: int) -> None:
    assert _compare(["the", "old", "boat"], heard.split()) == Errors(wrong, 3)


@needs_flite
def test_the_listener_hears_words_and_their_absence() -> None:
    listener = Listener()
    speaker = next(each for each in speakers() if each.name == "awb-31")
    said = speak(speaker, TEXT).samples
    assert listener.grammar(said, SAMPLE_RATE, TEXT).rate <= 0.2
    assert listener.grammar(said, SAMPLE_RATE, "Nobody wants another green apple.").rate >= 0.6
    noise = np.random.default_rng(0).normal(0, 0.05, len(said)).astype(np.float32)
    assert listener.grammar(noise, SAMPLE_RATE, TEXT).rate >= 0.6
    assert listener.open(said, SAMPLE_RATE, TEXT).rate < listener.open(noise, SAMPLE_RATE, TEXT).rate
    assert listener.grammar(said, SAMPLE_RATE, TEXT) == listener.grammar(said, SAMPLE_RATE, TEXT)
    with pytest.raises(ValueError, match="qqq"):
        listener.grammar(said, SAMPLE_RATE, "Such a qqq.")


@needs_flite
def test_held_out_speakers_are_distinguished() -> None:
    cast = [speaker for speaker in speakers() if speaker.held_out]
    texts = (
        "The dog ran home.",
        "Seven birds sat on the roof.",
        "My uncle bought a new car.",
        "Please close the door.",
    )
    known = {
        number: [traits(speak(speaker, text).samples, SAMPLE_RATE) for text in texts]
        for number, speaker in enumerate(cast)
    }
    identifier = Identifier(known)
    said = [traits(speak(speaker, TEXT).samples, SAMPLE_RATE) for speaker in cast]
    assert sum(identifier.find(each) == number for number, each in enumerate(said)) >= 7


@needs_flite
def test_cases_are_not_what_makes_a_speaker_known() -> None:
    cast = speakers()
    texts = [f"{number} birds sat there." for number in ("Two", "Three", "Four", "Five")]
    records = [Record(number, text, speak(cast[number], text)) for number in (1, 5) for text in texts]
    cases = _cases(records, 4)
    assert [(said.speaker, reference.speaker) for said, reference in cases] == [(1, 1), (5, 5)] * 2
    assert all(said.text != reference.text for said, reference in cases)
    assert _enrol(records).find(traits(records[0].utterance.samples, SAMPLE_RATE)) == 1


def heard(wrong: int, right: bool | None = None) -> Heard:
    return Heard(Errors(wrong, 4), Errors(4, 4), right, seconds=3.0, odd=wrong == 4)


def test_a_score_without_trials_reports_words_alone() -> None:
    score = Score([heard(1)])
    assert "25.0%" in str(score) and "speaker" not in str(score)


def test_a_score_adds_up_what_was_heard() -> None:
    score = Score([heard(1, True), heard(3, False), heard(4, True), heard(0, None)])
    assert score.errors("grammar") == Errors(8, 16) and score.errors("open") == Errors(16, 16)
    assert score.right == (2, 3) and score.odd == 1


def test_an_interval_holds_the_rate_and_shrinks_with_more_speeches() -> None:
    few, many = (Score([heard(wrong) for wrong in (0, 1, 2, 1) * count]) for count in (3, 60))
    (low, high), (closer_low, closer_high) = few.interval("grammar"), many.interval("grammar")
    assert low < closer_low < 0.25 < closer_high < high
    assert few.interval("open") == (1.0, 1.0)
