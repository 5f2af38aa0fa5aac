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


def language_of(code: str | None) -> str | None:
    """The language of a code that may name a region, too, such as `en-US`."""
    return code.replace("_", "-").partition("-")[0] if code else None
