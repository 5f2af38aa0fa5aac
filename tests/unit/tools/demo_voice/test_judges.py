"""The judges of a checkpoint: they hear what is said and by whom, and notice when it is not so."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.support.judges.identification import Identifier, traits
from tests.support.judges.listening import Errors, Listener, word_errors
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
    assert word_errors(["the", "old", "boat"], heard.split()) == Errors(wrong, 3)


@needs_flite
def test_the_listener_hears_words_and_their_absence() -> None:
    listener = Listener()
    speaker = next(each for each in speakers() if each.name == "awb-31")
    said = speak(speaker, TEXT).samples
    assert listener.grammar(said, SAMPLE_RATE, TEXT).rate <= 0.2
    assert listener.grammar(said, SAMPLE_RATE, "Nobody wants another green apple.").rate >= 0.6
    noise = np.random.default_rng(0).normal(0, 0.05, len(said)).astype(np.float32)
    assert listener.grammar(noise, SAMPLE_RATE, TEXT).rate >= 0.6
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
