"""The usual languages and their codes."""

from __future__ import annotations

LANGUAGES = {
    "zh": "Chinese",
    "en": "English",
    "ja": "Japanese",
    "ko": "Korean",
    "de": "German",
    "fr": "French",
    "ru": "Russian",
    "pt": "Portuguese",
    "es": "Spanish",
    "it": "Italian",
}
"""Those of Qwen3-TTS, by their codes."""
_CODES = {name.casefold(): code for code, name in LANGUAGES.items()}


def language_of(code: str | None) -> str | None:
    """The language of a code that may name a region, too, such as `en-US`."""
    return code.replace("_", "-").partition("-")[0] if code else None


def code_of(language: str | None) -> str:
    """The code of a language that is given by its name or a code; another one stays as it is given, in lower case."""
    name = (language_of((language or "").strip()) or "").casefold()
    return _CODES.get(name, name)


def spoken_in(asked: str | None, given: str | None) -> tuple[str | None, list[str]]:
    """The language of words for a model, and warnings.

    Args:
        asked: by their markup.
        given: of the whole text.
    """
    if asked == given:
        return given, []
    if (code := language_of(asked)) in LANGUAGES:
        return code, []
    return given, ["an xml:lang that is none of the usual languages is ignored"]
