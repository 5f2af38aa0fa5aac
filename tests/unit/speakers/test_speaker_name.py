"""Names of speakers: which are allowed, and which are the same."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from voice_clone.errors import InvalidArgument
from voice_clone.speakers.name import check_word, parse_name


@pytest.mark.parametrize(
    "name",
    [
        "Ada",
        "a",
        "x" * 64,
        "Ada Lovelace",
        "alice_v2",
        "v1.0-final",
        "7",
        "_x",
        "-",
        "小明",
        "José",
        "Ольга",
        "हिन्दी",
        "ﾊﾝｶｸ",
    ],
)
def test_names_that_are_allowed(name: str) -> None:
    parsed = parse_name(name)
    assert parsed.text == unicodedata.normalize("NFC", name)
    assert parse_name(parsed.text) == parsed


_REFUSED = [
    "", " ", "x" * 65, "x" * 10_000, ".hidden", "..", "../x", "/etc/passwd", "a/b", "a\\b", "a:b", "a|b", "a\0b",
    "a\nb", "a\tb", "a\u202eb", "a\u200bb", "\u0301a", "a*", "a?", "😀", "a\ud800", "~", "a\u00a0b", "½", "\ufeffa",
]  # fmt: skip


@pytest.mark.parametrize("name", _REFUSED)  # A11
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="the name "):
        parse_name(name)


@pytest.mark.parametrize(
    ("one", "other"),
    [("Ada", "ADA"), ("Ada", " ada "), ("José", "Jose\u0301"), ("STRASSE", "straße"), ("ΣΑΣ", "σας"), ("İ", "i\u0307")],
)
def test_names_of_one_speaker(one: str, other: str) -> None:
    assert parse_name(one).key == parse_name(other).key


def test_names_that_look_alike_are_different_speakers() -> None:  # A9
    names = ["a", "alice", "alice_v2", "alice v2", "alice-v2", "alice.v2", "alicev2", "а", "á", "a.b", "a b"]
    assert len({parse_name(name).key for name in names}) == len(names)


def test_every_character_has_one_stable_key() -> None:
    letters = [
        chr(code) for code in range(sys.maxunicode + 1) if chr(code).isalpha() and chr(code).casefold() != chr(code)
    ]
    assert len(letters) > 1000
    for letter in letters:
        parsed = parse_name("a" + letter)
        assert parse_name(parsed.text) == parsed
        assert parse_name(parsed.key).key == parsed.key


@given(st.text(max_size=70))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        parsed = parse_name(text)
    except InvalidArgument:
        return
    assert 1 <= len(parsed.text) <= 64
    assert not {"/", "\\", "\0", "\n"} & set(parsed.text) and parsed.text[0] != "."
    assume(parsed.text == parsed.text.casefold())
    assert parse_name(parsed.text.upper()).key == parse_name(parsed.text.upper().casefold()).key


@pytest.mark.parametrize("word", ["icl", "x_vector", "qwen3_tts", "VoxCPM2", "a.b-c", "0"])
def test_words(word: str) -> None:
    assert check_word("mode", word) == word


@pytest.mark.parametrize("word", ["", "a/b", ".a", "_a", "a b", "é", "a" * 65, "../x", "a\n"])
def test_words_that_are_refused(word: str) -> None:
    with pytest.raises(InvalidArgument, match="mode must be"):
        check_word("mode", word)
