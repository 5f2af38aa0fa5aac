"""How a request may name a language: by its English name, or by its ISO 639 code with or without further subtags."""

from __future__ import annotations

import re
from collections.abc import Collection

_TAG = re.compile(r"([a-z]{2,3})(?:[-_][a-z0-9]{1,8})*")  # en, en-US, zh-Hans-CN (BCP 47), pt_BR
# The codes of a language, of ISO 639-1, 639-2 and 639-3; the first one is what messages show.
_CODES = {
    "afrikaans": "af afr", "arabic": "ar ara arb", "bengali": "bn ben", "bulgarian": "bg bul", "cantonese": "yue",
    "catalan": "ca cat", "chinese": "zh zho chi cmn", "croatian": "hr hrv", "czech": "cs ces cze",
    "danish": "da dan", "dutch": "nl nld dut", "english": "en eng", "estonian": "et est", "finnish": "fi fin",
    "french": "fr fra fre", "german": "de deu ger", "greek": "el ell gre", "hebrew": "he heb iw", "hindi": "hi hin",
    "hungarian": "hu hun", "indonesian": "id ind in", "italian": "it ita", "japanese": "ja jpn",
    "korean": "ko kor", "latvian": "lv lav", "lithuanian": "lt lit", "malay": "ms msa may zsm",
    "norwegian": "no nor nb nob nn nno", "persian": "fa fas per pes", "polish": "pl pol",
    "portuguese": "pt por", "romanian": "ro ron rum", "russian": "ru rus", "serbian": "sr srp",
    "slovak": "sk slk slo", "slovenian": "sl slv", "spanish": "es spa", "swahili": "sw swa swh",
    "swedish": "sv swe", "tagalog": "tl tgl fil", "tamil": "ta tam", "telugu": "te tel", "thai": "th tha",
    "turkish": "tr tur", "ukrainian": "uk ukr", "urdu": "ur urd", "vietnamese": "vi vie",
}  # fmt: skip
_NAMES = {code: name for name, codes in _CODES.items() for code in codes.split()}


def find_language(asked: str | None, known: Collection[str]) -> str | None:
    """The language that a request asks for.

    Args:
        asked: `English`, `en`, `en-US`, `pt_BR`, ...; None is `auto`. Case does not matter.
        known: the languages of a checkpoint, English names in lower case, with `auto`.

    Returns:
        One of `known`, or None if it has no such language.
    """
    name = (asked or "auto").strip().lower()
    if name in known:
        return name
    tag = _TAG.fullmatch(name)
    named = _NAMES.get(tag[1]) if tag else None
    return named if named in known else None


def list_languages(known: Collection[str]) -> str:
    """The languages of a checkpoint with their codes, for a message."""
    codes = {name: f" ({_CODES[name].split()[0]})" for name in known if name in _CODES}
    return ", ".join(name.title() + codes.get(name, "") for name in known)
