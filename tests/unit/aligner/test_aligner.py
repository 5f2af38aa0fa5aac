"""The aligner of English on recorded speech, and what it does where it finds nothing."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from voice_clone.aligner.dictionary import Dictionary, by_rules
from voice_clone.aligner.engine import Refused, Unit
from voice_clone.aligner.readings import cardinal, readings
from voice_clone.aligner.speech import AlignedSpeech, Found
from voice_clone.aligner.sphinx import PocketSphinx, trimmed
from voice_clone.speech import language_code
from voice_clone_server.demo import CLIP

TEXT = CLIP.with_suffix(".txt").read_text().strip()


@functools.lru_cache
def engine() -> PocketSphinx:
    return PocketSphinx()


@functools.lru_cache
def clip() -> tuple[NDArray[np.float32], int]:
    samples, rate = soundfile.read(CLIP, dtype="float32")
    return samples, rate


def aligned(text: str, samples: NDArray[np.float32], language: str | None = "en") -> tuple[Found, str | None]:
    speech = AlignedSpeech(engine(), text, clip()[1], language)
    speech.feed(samples)
    return speech.end(), speech.reason


def test_a_recording_and_its_text() -> None:
    samples, _ = clip()
    words, reason = aligned(TEXT, samples)
    assert reason is None and [word["text"] for word in words] == TEXT.split()
    assert not any(word["estimated"] for word in words)
    edges = [edge for word in words for edge in (word["start"], word["end"])]
    assert edges == sorted(edges) and edges[0] >= 0 and edges[-1] <= len(samples)
    assert all(np.abs(samples[word["start"] : word["end"]]).max() > 0.01 for word in words)
    assert all(word["confidence"] > 0.4 for word in words) and np.median([word["confidence"] for word in words]) > 0.9
    assert aligned(TEXT, samples, None)[0] == words, "it is known as English"


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(1, 30_000), max_size=12))
def test_pieces_have_the_times_of_the_whole(sizes: list[int]) -> None:
    samples, rate = clip()
    speech = AlignedSpeech(engine(), TEXT, rate, "en")
    settled = [word for piece in np.split(samples, np.cumsum(sizes)) for word in speech.feed(piece)]
    words = speech.end()
    assert words == aligned(TEXT, samples)[0]
    assert settled == words[: len(settled)] and len(settled) > len(words) / 2


def test_a_long_text_is_aligned_in_groups() -> None:
    samples, rate = clip()
    once = aligned(TEXT, samples)[0]
    words, reason = aligned(" ".join([TEXT] * 8), np.tile(samples, 8))
    assert reason is None and len(words) == 8 * len(once)
    shifted = [word["start"] + time * len(samples) for time in range(8) for word in once]
    off = np.abs(np.array([word["start"] for word in words]) - shifted) / rate
    assert np.median(off) < 0.02 and np.percentile(off, 95) < 0.1


def noisy_speech(samples: NDArray[np.float32], level: float) -> NDArray[np.float32]:
    """The samples with white noise that is `level` dB below them."""
    noise = np.random.default_rng(0).normal(0, np.sqrt(np.square(samples).mean()) / 10 ** (level / 20), len(samples))
    return (samples + noise).astype(np.float32)


def test_noisy_speech_is_heard_once_more() -> None:
    """Of words in other places or of another text the confidence is low."""
    samples, _ = clip()
    right = aligned(TEXT, samples)[0]
    noisy = noisy_speech(samples, 13)
    words, reason = aligned(TEXT, noisy)
    assert reason is None and not any(word["estimated"] for word in words)
    off = np.abs(np.array([word["start"] for word in words]) - [word["start"] for word in right]) / clip()[1]
    assert np.median(off) < 0.03
    assert np.mean([word["confidence"] for word in words]) < np.mean([word["confidence"] for word in right])
    other, reason = aligned("Seven birds sat on the roof of an old and very quiet house.", noisy)
    assert reason is not None and all(word["estimated"] and "confidence" not in word for word in other)


@pytest.mark.parametrize("level", [20, 12, 8])
@pytest.mark.parametrize(
    ("text", "times"),
    [(" ".join(reversed(TEXT.split())), 3), ("They say so.", 1), ("Seven birds sat on the roof of a house.", 8)],
    ids=["words in another order", "a few words", "another text"],
)
def test_noisy_speech_is_much_longer_than_a_wrong_text(text: str, times: int, level: float) -> None:
    """There is a place for each of the words, but most of the speech is in none of them."""
    words, reason = aligned(text, noisy_speech(np.tile(clip()[0], times), level))
    assert reason is not None and "does not fit" in reason and all(word["estimated"] for word in words)


@pytest.mark.parametrize("level", [30, 20, 15, 10, 5])
def test_words_of_noisy_speech_are_settled_where_they_are(level: float) -> None:
    """What may be decoded once more is not settled before."""
    samples, rate = clip()
    speech = AlignedSpeech(engine(), TEXT, rate, "en")
    pieces = np.array_split(noisy_speech(samples, level), len(samples) * 4 // rate)
    settled = [word for piece in pieces for word in speech.feed(piece)]
    assert settled == speech.end()[: len(settled)]


def test_what_is_refused_has_an_estimate() -> None:
    samples, rate = clip()
    noise = np.random.default_rng(0).normal(0, 0.1, len(samples)).astype(np.float32)
    time = np.arange(len(samples)) / rate
    chord = sum(0.1 * np.sin(2 * np.pi * pitch * time) for pitch in (220, 277, 330))
    other = "Seven birds sat on the roof of an old and very quiet house."
    for text, sound, right in (
        (other, samples, "does not fit"),
        (f"{TEXT} Tomorrow.", samples, "does not fit"),
        (" ".join([TEXT] * 8), np.tile(samples, 2), "does not fit"),  # it ends where a group does
        (TEXT, samples * 0, "no speech"),
        (TEXT, samples[:0], "no speech"),
        (TEXT, samples[rate : rate + rate // 20], "does not fit"),
        (TEXT, noise, "does not fit"),
        (TEXT, np.asarray(chord, np.float32), "does not fit"),
        ("", samples, "no words"),
    ):
        words, reason = aligned(text, sound)
        assert reason is not None and right in reason, (text, reason)
        assert [word["text"] for word in words] == text.split() and all(word["estimated"] for word in words)
        edges = [edge for word in words for edge in (word["start"], word["end"])]
        assert edges == sorted(edges) and all(0 <= edge <= len(sound) for edge in edges)
    assert "English" in str(aligned("Die alte Frau kaufte gestern neue Schuhe.", samples, None)[1])
    assert "'de'" in str(aligned(TEXT, samples, "de")[1])
    assert "English" in str(aligned("🙂", samples, None)[1])


def test_unknown_words_numbers_and_symbols_are_found() -> None:
    samples, _ = clip()
    right = aligned(TEXT, samples)[0]
    for place, written in ((1, "Xyzzqwrt"), (2, "Đặng"), (3, "🙂☃x")):
        tokens = TEXT.split()
        tokens[place] = written
        words, reason = aligned(" ".join(tokens), samples)
        assert reason is None and words[place]["text"] == written
        others = [
            abs(a["start"] - b["start"]) for at, (a, b) in enumerate(zip(words, right, strict=True)) if at != place
        ]
        assert np.median(others) < 0.02 * clip()[1]


class Failing:
    """An engine whose alignments fail."""

    def start(self, units: object, rate: int, language: str | None) -> Failing:
        return self

    def feed(self, samples: object) -> list[object]:
        raise ZeroDivisionError

    def end(self) -> list[object]:
        raise AssertionError("it has failed before")


def test_an_engine_that_fails_refuses(caplog: pytest.LogCaptureFixture) -> None:
    speech = AlignedSpeech(Failing(), TEXT, clip()[1], None)  # type: ignore[arg-type]
    assert speech.feed(clip()[0]) == []
    assert all(word["estimated"] for word in speech.end()) and speech.reason == "the engine failed"


def test_rates() -> None:
    with pytest.raises(Refused, match="14000"):
        engine().start([Unit("a", 0, 1)], 8000, "en")


def test_pronunciations() -> None:
    dictionary = Dictionary(engine()._models / "cmudict-en-us.dict")
    assert dictionary.pronunciations("the") == ["DH AH", "DH IY"]
    assert dictionary.pronunciations("'bout") == ["B AW T"] and dictionary.pronunciations("zywicki")
    assert dictionary.pronunciations("qqqq") == [] and dictionary.pronunciations("zzzzzz") == []
    assert [by_rules(word) for word in ("nation", "phone", "knight", "happy", "zips", "upside")] == [
        "N AE SH AH N",
        "F OW N",
        "N AY T",
        "HH AE P IY",
        "Z IH P S",
        "AH P S IH D",
    ]


def test_readings() -> None:
    assert readings("Hello,") == [("hello",)] and readings("well-known")[0] == ("well", "known")
    assert ("nineteen", "ninety", "five") in readings("1995")
    assert ("one", "thousand", "nine", "hundred", "ninety", "five") in readings("1995")
    assert ("three", "dollars", "and", "fifty", "cents") in readings("$3.50")
    assert ("three", "point", "one", "four") in readings("3.14") and readings("21st") == [("twenty", "first")]
    assert ("g.", "p.", "u.") in readings("GPU") and ("at", "and", "t") in readings("AT&T")
    assert ("fifty", "percent") in readings("50%") and ("ten", "thirty") in readings("10:30")
    assert readings("café") == [("cafe",)] and readings("你") == [] and readings("🙂") == []
    assert cardinal(1_000_203) == ("one", "million", "two", "hundred", "three")


@given(st.text(max_size=30))
def test_any_token_has_readings_of_words(token: str) -> None:
    assert all(way and all(word for word in way) for way in readings(token))


def test_edges_move_to_the_sound() -> None:
    silent = np.zeros(200, np.bool_)
    silent[0:40] = silent[100:130] = True
    assert trimmed(0, 540, silent, 10) == (400, 540), "a silence at the edge"
    assert trimmed(950, 1800, silent, 10) == (1300, 1800), "the tail of the word before, and the pause behind it"
    assert trimmed(500, 1300, silent, 10) == (500, 1000) and trimmed(500, 1350, silent, 10) == (500, 1000)
    assert trimmed(500, 900, silent, 10) == (500, 900) and trimmed(50, 300, silent, 10) == (50, 300)


def test_codes_of_languages() -> None:
    assert [language_code(name) for name in (None, "Auto", "English", "en-US", "pt_BR", "zho", "Cantonese")] == [
        None, None, "en", "en", "pt", "zh", "yue",
    ]  # fmt: skip
    assert language_code("Klingon") == "klingon"
