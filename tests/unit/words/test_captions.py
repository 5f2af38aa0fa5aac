"""Captions of words."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from voice_clone_words.captions import LONGEST, as_json, captions_of, line_text, srt, vtt
from voice_clone_words.units import units_of
from voice_clone_words.words import Word, heard_characters


def spoken(text: str, pace: float = 0.3, pauses: dict[int, float] | None = None) -> list[Word]:
    """Each unit takes `pace` seconds; pauses lie before some."""
    found, at = list[Word](), 0.0
    for index, unit in enumerate(units_of(text)):
        at += (pauses or {}).get(index, 0.0)
        found.append(Word(unit.text, at, at + pace, (unit.start, unit.end)))
        at += pace
    return found


LONG = "The birch canoe slid on the smooth planks, and nobody saw it go. Glue the sheet to the dark blue background."


def test_files() -> None:
    words = spoken("Hello <big>\n& world.", pauses={0: 0.5})
    assert srt(words, "Hello <big>\n& world.") == "1\n00:00:00,500 --> 00:00:01,700\nHello <big> & world.\n"
    assert vtt(words, "Hello <big>\n& world.") == (
        "WEBVTT\n\n00:00:00.500 --> 00:00:01.700\n"
        "Hello <00:00:00.800>&lt;big&gt; <00:00:01.100>&amp; <00:00:01.400>world.\n"
    )
    found = json.loads(as_json(words, "Hello <big>\n& world."))
    assert found["words"][0] == {"text": "Hello", "start": 0.5, "end": 0.8, "span": [0, 5], "estimated": False}
    assert srt([], "") == "" and vtt([], "") == "WEBVTT\n"
    late = [Word("late", 3661.5, 3662.25, (0, 4))]
    assert "01:01:01,500 --> 01:01:02,333" in srt(late, "late")


def test_a_caption_ends_with_a_sentence_or_in_a_silence() -> None:
    captions = captions_of(spoken(LONG), LONG)
    assert captions[0].lines[0][0].text == "The" and captions[1].lines[0][0].text == "Glue"
    assert [line_text(line, LONG) for line in captions[0].lines] == [
        "The birch canoe slid on the smooth planks,",
        "and nobody saw it go.",
    ]
    apart = captions_of(spoken("one two three", pauses={2: 1.5}), "one two three")
    assert [caption.lines[0][-1].text for caption in apart] == ["two", "three"]
    assert apart[1].end - apart[1].start > 0.8, "a short one is shown longer"
    chinese = "你" * 40
    assert [len(line) for line in captions_of(spoken(chinese, 0.15), chinese)[0].lines] == [16, 16]


@given(st.text("ab ,.你\n", max_size=300), st.floats(0.01, 9.0), st.dictionaries(st.integers(0, 50), st.floats(0, 9)))
def test_rules(text: str, pace: float, pauses: dict[int, float]) -> None:
    words = spoken(text, pace, pauses)
    captions = captions_of(words, text)
    assert [word for caption in captions for line in caption.lines for word in line] == words
    assert all(len(caption.lines) <= 2 for caption in captions)
    for caption in captions:
        assert all(len(line) == 1 or len(line_text(line, text)) <= 42 for line in caption.lines)
        spoken_time = caption.lines[-1][-1].end - caption.start
        assert len([w for line in caption.lines for w in line]) == 1 or spoken_time <= LONGEST + 1e-6
    assert all(a.end <= b.start + 1e-9 for a, b in pairwise(captions))


def test_what_was_heard() -> None:
    words = spoken("Hello, big world.")
    assert [heard_characters(words, at) for at in (0.0, 0.14, 0.16, 0.3, 0.46, 0.9, 99.0)] == [0, 0, 6, 6, 10, 17, 17]
