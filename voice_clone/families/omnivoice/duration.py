"""Estimate how long the speech of a text will be, from weights of its characters. It needs no torch.

A character's weight depends on its script: the time that it takes, as a multiple of a Latin letter's. The pace is that
of the reference. Without a reference it is that of a fixed sentence. Source: omnivoice 0.2.1, `utils/duration.py`
(`RuleDurationEstimator`) and `models/omnivoice.py` (`_estimate_target_tokens`).
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from functools import lru_cache

PACE_TEXT, PACE_FRAMES = "Nice to meet you.", 25  # without a reference
SHORT = 50.0  # frames; a shorter estimate is raised towards it

PUNCTUATION, SPACE, DIGIT, SILENT, LETTER, IDEOGRAPH = 0.5, 0.2, 3.5, 0.0, 1.0, 3.0
TATWEEL = "\u0640"  # stretches an Arabic word only on paper
UPPER_PLANES = 0x20000  # ideographs beyond the first plane

# Blocks of Unicode by the last character of each: (last code point, weight of its letters).
_BLOCKS: tuple[tuple[int, float], ...] = (
    (0x058F, 1.0),  # Latin, Greek, Cyrillic, Armenian
    (0x08FF, 1.5),  # Hebrew, Arabic, Syriac
    (0x0DFF, 1.8),  # Devanagari to Sinhala
    (0x0EFF, 1.5),  # Thai, Lao
    (0x109F, 1.8),  # Tibetan, Myanmar
    (0x10FF, 1.0),  # Georgian
    (0x11FF, 2.5),  # Hangul Jamo
    (0x139F, 3.0),  # Ethiopic
    (0x177F, 1.0),  # Cherokee to Tagbanwa
    (0x17FF, 1.8),  # Khmer
    (0x18FF, 1.0),  # Mongolian, Canadian syllabics
    (0x1C7F, 1.8),  # Limbu to Ol Chiki
    (0x1CBF, 1.0),  # Cyrillic C, Georgian
    (0x1CFF, 1.8),  # Sundanese, Vedic
    (0x1EFF, 1.0),  # phonetic and additional Latin
    (0x30FF, 2.2),  # kana, and what is before it
    (0x312F, 3.0),  # Bopomofo
    (0x318F, 2.5),  # Hangul Jamo for compatibility
    (0xA4CF, 3.0),  # ideographs, Yi
    (0xA7FF, 1.0),  # Lisu to Latin D
    (0xA82F, 1.8),  # Syloti Nagri
    (0xA87F, 1.0),  # Phags-pa
    (0xA95F, 1.8),  # Saurashtra to Rejang
    (0xA97F, 2.5),  # Hangul Jamo A
    (0xAAFF, 1.8),  # Javanese to Meetei Mayek
    (0xAB2F, 3.0),  # Ethiopic A
    (0xABBF, 1.0),  # Latin E, Cherokee
    (0xABFF, 1.8),  # Meetei Mayek
    (0xD7AF, 2.5),  # Hangul
    (0xFAFF, 3.0),  # ideographs for compatibility
    (0xFDFF, 1.5),  # Arabic forms A
    (0xFE6F, 1.0),  # variation selectors
    (0xFEFF, 1.5),  # Arabic forms B
    (0xFFEF, 1.0),  # wide Latin
)
_ENDS = [end for end, _ in _BLOCKS]
_KINDS = {"M": SILENT, "P": PUNCTUATION, "S": PUNCTUATION, "Z": SPACE, "N": DIGIT}  # of categories, by first letter


@lru_cache(4096)
def _weight_of(character: str) -> float:
    if character == TATWEEL:
        return SILENT
    kind = unicodedata.category(character)[0]
    if kind in _KINDS:
        return _KINDS[kind]
    place = bisect_left(_ENDS, ord(character))
    if place < len(_BLOCKS):
        return _BLOCKS[place][1]
    return IDEOGRAPH if ord(character) > UPPER_PLANES else LETTER


def weight(text: str) -> float:
    """Return how many Latin letters take as long to speak as the text."""
    return sum(map(_weight_of, text))


def estimate(text: str, reference: tuple[str, int] | None, speed: float = 1.0) -> int:
    """Return the frames of a text, at least 1.

    Args:
        reference: the transcript of a clip, and the clip's frames; None: there is none.
        speed: above 1 the text is spoken faster than the reference.
    """
    pace_text, pace_frames = reference if reference is not None and reference[0] else (PACE_TEXT, PACE_FRAMES)
    pace = weight(pace_text)
    frames = 0.0
    if pace and pace_frames > 0:
        frames = weight(text) / (pace / pace_frames)
        if frames < SHORT:
            frames = SHORT * (frames / SHORT) ** (1.0 / 3.0)
    return max(1, int(frames / speed if speed != 1.0 else frames))
