"""The statement that speech is synthetic: what it says, and what is found in files."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from voice_clone_provenance.statements import GENERATOR, Statement, find

START = "digital_source_type=trainedAlgorithmicMedia, family=qwen3_tts"
TEXT = f'{START}, generator="voice-clone 1.2.3"'
PLAIN, WHOLE = (Statement("qwen3_tts", mark, "voice-clone 1.2.3") for mark in (None, "marked"))


def test_what_it_says() -> None:
    assert str(WHOLE) == f'{START}, mark=marked, generator="voice-clone 1.2.3"'
    assert str(PLAIN) == TEXT
    assert GENERATOR.startswith("voice-clone ")


@given(st.binary(max_size=50), st.sampled_from([WHOLE, PLAIN, Statement("voxtral"), Statement("f", "failed", "")]))
def test_it_is_found_anywhere(around: bytes, statement: Statement) -> None:
    for after in (around, b"OggS" + around):
        assert find(around + str(statement).encode() + after) == statement


def test_the_first_one_counts() -> None:
    assert find(f"{TEXT}\0{WHOLE}".encode()) == PLAIN


@given(st.binary(max_size=300))
def test_other_bytes_have_none(data: bytes) -> None:
    assert find(data) is None


def test_a_damaged_one_is_none() -> None:
    for text in (
        TEXT[:-1],
        TEXT.replace("tts", "tts, mark=\x1b"),
        TEXT.replace("trainedAlgorithmicMedia", "digitalCapture"),
        TEXT.replace("qwen3_tts", "3"),
        TEXT.replace("1.2.3", "\x1b[31m"),
        TEXT.replace("1.2.3", 200 * "1"),
    ):
        assert find(text.encode()) is None, text
    assert find((TEXT[:60] * 20_000).encode()) is None  # no time that grows with the square of the length
