"""How much there is to speak in a text, in units of about one syllable, whatever its script."""

from __future__ import annotations

import unicodedata

_VOWELS = frozenset("aeiouyæœøıаеиоуыэюяёєіїαεηιουω")  # of the alphabets that write their vowels
_ALPHABETS = (("a", "\u024f"), ("\u0370", "\u052f"), ("\u1e00", "\u1fff"))  # Latin; Greek and Cyrillic; more of both
_SYLLABLES = (  # one character, one syllable (or mora)
    ("\u3041", "\u30ff"),  # Kana
    ("\u3400", "\u9fff"),  # Chinese characters, here and below
    ("\uac00", "\ud7a3"),  # Hangul
    ("\uf900", "\ufaff"),
    ("\U00020000", "\U0003ffff"),
)
_PART_OF_ONE = frozenset("ぁぃぅぇぉゃゅょゎァィゥェォャュョヮ")  # small Kana change the one before
_DIGIT = 1.5  # 7 is one to three syllables in most languages
_LETTER = 0.5  # of scripts that leave vowels out or attach them to a letter, such as Arabic, Hindi and Thai


def syllables(text: str) -> float:
    """About how many syllables the text has: groups of vowels, or characters where each is a syllable."""
    count, in_vowels = 0.0, False
    for character in unicodedata.normalize("NFKC", text).lower():
        if unicodedata.combining(character):
            continue
        base = unicodedata.normalize("NFD", character)[0]
        is_vowel = base in _VOWELS
        if is_vowel:
            count += not in_vowels
        elif _within(character, _SYLLABLES):
            count += character not in _PART_OF_ONE
        elif character.isdigit():
            count += _DIGIT
        elif character.isalpha() and not _within(character, _ALPHABETS):
            count += _LETTER
        in_vowels = is_vowel
    return count


def _within(character: str, ranges: tuple[tuple[str, str], ...]) -> bool:
    return any(first <= character <= last for first, last in ranges)
