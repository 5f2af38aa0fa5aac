"""The training data come from one seed: the same sentences, the same audio, the same files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tools.demo_voice import grammar
from tools.demo_voice.dataset import make_shard, read_shard, sentence_of
from tools.demo_voice.speakers import speakers
from tools.demo_voice.synthesis import LEAD, LOUDNESS, SAMPLE_RATE, speak

pytestmark = pytest.mark.thorough

needs_flite = pytest.mark.skipif(
    shutil.which("flite") is None, reason="no flite, which speaks the data (Debian: apt-get install flite)"
)


def test_rules_lead_to_words() -> None:
    rules = grammar.rules()
    for expansions in rules.values():
        for expansion in expansions:
            assert set(re.findall(r"<(\w+)>", expansion)) <= rules.keys()
            assert re.fullmatch(r"[A-Za-z' ,?]+", re.sub(r"<\w+>", "x", expansion)), expansion


def test_sentences_are_those_of_the_seed() -> None:
    texts = [sentence_of(1, "train", number) for number in range(200)]
    assert texts == [sentence_of(1, "train", number) for number in range(200)]
    assert texts != [sentence_of(2, "train", number) for number in range(200)]
    assert len(set(texts)) > 190


def test_no_test_sentence_is_trained_on() -> None:
    def words(part: str, count: int) -> set[str]:
        return {" ".join(grammar.spoken_words(sentence_of(1, part, number))) for number in range(count)}

    assert not words("train", 5000) & (words("seen", 200) | words("held_out", 200))


def test_speakers() -> None:
    cast = speakers()
    assert cast == speakers()
    assert len({speaker.name for speaker in cast}) == len(cast)
    assert sum(not speaker.held_out for speaker in cast) >= 60
    assert sum(speaker.held_out for speaker in cast) == 8


@needs_flite
def test_a_shard_is_that_of_its_seed(tmp_path: Path) -> None:
    for name in ("one", "other"):
        make_shard(tmp_path / name, 1, "train", 3, size=3)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    make_shard(tmp_path / "third", 2, "train", 3, size=3)
    assert (tmp_path / "one").read_bytes() != (tmp_path / "third").read_bytes()
    records = read_shard(tmp_path / "one")
    assert [record.text for record in records] == [sentence_of(1, "train", 9 + place) for place in range(3)]
    assert not any(speakers()[record.speaker].held_out for record in records)


@needs_flite
@pytest.mark.parametrize("voice", ["slt", "awb", "rms", "kal16"])
def test_speech_is_framed_by_silence(voice: str) -> None:
    speaker = next(each for each in speakers() if each.voice == voice)
    spoken = speak(speaker, "The boats came home in the evening.")
    samples, lead = spoken.samples, round(LEAD * SAMPLE_RATE)
    assert len(samples) / SAMPLE_RATE == pytest.approx(spoken.ends[-1], abs=1e-3)
    assert 1.0 < spoken.ends[-1] < 5.0 and np.all(np.diff(spoken.ends) > 0)
    assert not samples[:lead].any() and not samples[-lead + 10 :].any()
    assert np.sqrt(np.mean(samples[lead:-lead] ** 2)) == pytest.approx(LOUDNESS, rel=0.1)
    assert spoken.phones[0] == 0 and spoken.phones[-1] == 0 and len(spoken.phones) > 20
