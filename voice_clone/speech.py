"""A request for speech as the caller makes it, the rules that it must obey in every family, and its resolved voice.

A language is given by its English name, or by its ISO 639 code with or without further subtags.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from voice_clone.errors import InvalidArgument, listed, quoted
from voice_clone.request_fields import FIELDS, SOURCES

STREAM_ID = (16, 128)  # characters: too many to guess an id, and few enough to keep
NO_WORDS = "`text` is blank or has no letter or digit; give at least one word to say"


def has_words(text: str) -> bool:
    """Whether a text has something to say: a letter, a digit, or a sign that is read as a word ($, %, &).

    A model speaks even if there is none: then it makes up what it says.
    """
    return any(unicodedata.category(each).startswith(("L", "N", "Sc")) or each in "%&" for each in text)


@dataclass(frozen=True, eq=False)
class SpeechRequest:
    """Text, and one source of the voice.

    Attributes:
        text: what is said; it has words, see `has_words`.
        voice: name of a registered voice.
        reference_audio: an encoded audio file, or its data URL.
        reference_text: transcript of `reference_audio`; asks for in-context cloning.
        speaker_embedding: float32 [size that the family has].
        voice_prompt: a bundle of one voice with its artifacts, as an export gives it.
        x_vector_only: True uses the speaker embedding alone, False insists on in-context cloning, None takes the
            best mode that the voice offers.
        language: a language of the checkpoint by its name or code (`English`, `en-US`), or `Auto`.
        style: of a registered voice or of a prompt; see `SpeakerRecord.style_meant`.
        options: what only the family knows, by name; the family checks it.
        text_stream: an id that the caller made: more text follows by appends to the talker; `text` may have no words.
        owner: for whom the caller acts: it gets this owner's voices and those that are shared; None: all.
        cache: False neither uses nor keeps anything in memory that is computed of the voice.
        voiceless: whether the model can speak without a voice; a source may then be missing.

    Raises:
        InvalidArgument: on construction, if something is missing or contradicts something else.
    """

    text: str
    voice: str | None = None
    reference_audio: bytes | None = None
    reference_text: str | None = None
    speaker_embedding: NDArray[np.float32] | None = None
    voice_prompt: bytes | None = None
    x_vector_only: bool | None = None
    language: str | None = None
    style: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    owner: str | None = None
    text_stream: str | None = None
    cache: bool = True
    voiceless: bool = False

    def __post_init__(self) -> None:
        if self.owner is not None and not isinstance(self.owner, str):
            raise InvalidArgument("the parameter `owner` must be text")
        if self.text_stream is not None:
            least, most = STREAM_ID
            if not least <= len(self.text_stream) <= most or not self.text_stream.isascii():
                raise InvalidArgument(f"`text_stream` must be a random id of {least} to {most} ASCII characters")
        elif not has_words(self.text):
            raise InvalidArgument(NO_WORDS)
        given = [n for n in SOURCES if getattr(self, n) is not None]
        if len(given) > 1 or not (given or self.voiceless):
            what = listed(given, " and ") or "none of them"
            raise InvalidArgument(f"give exactly one of {listed(SOURCES)}; got {what}")
        if self.style is not None and self.voice is None and self.voice_prompt is None:
            raise InvalidArgument("`style` is that of a registered `voice` or of a `voice_prompt`; leave it out")
        if self.reference_text is not None:
            self._check_reference_text()
        elif self.reference_audio is not None and self.x_vector_only is False:
            raise InvalidArgument(
                "in-context cloning (`x_vector_only false`) needs `reference_text`, the clip's transcript"
            )
        if self.speaker_embedding is not None:
            if self.x_vector_only is False:
                raise InvalidArgument(
                    "a `speaker_embedding` allows x-vector cloning only; leave out `x_vector_only false`"
                )
            if not np.isfinite(self.speaker_embedding).all():
                raise InvalidArgument("`speaker_embedding` holds NaN or infinity; every value must be finite")

    @property
    def kept(self) -> bool:
        """Whether a process may keep what it computes of the voice. It may not of a ready prompt: whose voice that is
        only its bundle says, so a delete could not drop it.
        """
        return self.cache and self.voice_prompt is None

    def _check_reference_text(self) -> None:
        if self.reference_audio is None:
            raise InvalidArgument(
                "`reference_text` belongs to `reference_audio`; a `voice` and a `voice_prompt` have their "
                "own transcript"
            )
        if self.x_vector_only:
            raise InvalidArgument("`x_vector_only` uses no transcript; leave out either it or `reference_text`")
        if not self.reference_text or not self.reference_text.strip():
            raise InvalidArgument(
                "`reference_text` is blank; give the words spoken in `reference_audio`, or leave it out"
            )


class ResolvedVoice(NamedTuple):
    """A voice as speaker_cache resolved it.

    Attributes:
        artifacts: what the family's voice encoder made of the clip, by name.
        transcript: of the clip, if it has one.
        mode: for which the artifacts were made.
        fingerprint: of the voice encoder that made them.
    """

    artifacts: Mapping[str, NDArray[Any]]
    transcript: str | None
    mode: str
    fingerprint: str = ""


def read_reply(
    speech: SpeechRequest, result: Mapping[str, Any], artifacts: bytes, waited_ms: float
) -> tuple[ResolvedVoice, dict[str, Any]]:
    """The voice in an answer of speaker_cache, and what `info` says of its origin.

    Args:
        waited_ms: for the answer. `encoder_ms` of `info` has no more than that of the encoder's time: the encoder may
            have been at work on the voice before.

    Raises:
        InvalidArgument: the request excludes x-vector cloning, but the voice has no transcript.
    """
    transcript = speech.reference_text if speech.reference_audio is not None else result.get("reference_text")
    if speech.x_vector_only is False and transcript is None:
        name = "this voice" if speech.voice is None else f"voice {speech.voice!r}"
        raise InvalidArgument(
            f"{name} has no transcript, so it cannot be cloned in context; leave out `x_vector_only false`, or "
            "register it again with `reference_text`"
        )
    source = {"cache": result["status"]}
    if result["status"] == "miss":
        source["encoder_ms"] = round(min(result["extraction_ms"], waited_ms), 3)
    if speech.voice is not None:
        source |= {"voice": result["name"], "generation": result["generation"], "voice_digest": result["digest"]}
        source |= {"loudness": result["loudness"]} if "loudness" in result else {}
    source |= {"style": result["style"]} if "style" in result else {}
    if result.get("warnings"):
        source["warnings"] = result["warnings"]
    return ResolvedVoice(load(artifacts), transcript, result["mode"], result["fingerprint"]), source


def check_ranges(values: Mapping[str, Any], prefix: str = "") -> None:
    """Check the numbers of a request against their ranges, as far as `values` has them.

    Args:
        prefix: of their names there; those with one are options of a family.

    Raises:
        InvalidArgument: one is out of range; the message gives its whole name.
    """
    for each in FIELDS:
        value = values.get(prefix + each.name) if each.range else None
        if value is not None and not each.has(value):
            name = f"{'options.' if prefix else ''}{prefix}{each.name}"
            raise InvalidArgument(f"`{name}` is {value}; it must be {each.range}")


def check_options(options: Mapping[str, Any], known: Mapping[str, type | tuple[type, ...]]) -> None:
    """Check the names and types of a family's own options.

    Args:
        known: the type of each option. A bool is not a number; an int is also a float.

    Raises:
        InvalidArgument: an option is unknown, or of another type; the message lists what is known.
    """
    for name, value in options.items():
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise InvalidArgument(f"`options`: {quoted(name)} is unknown; this model has {there}")
        kind = known[name]
        kinds = kind if isinstance(kind, tuple) else (kind,)
        allowed = (*kinds, int) if float in kinds else kinds
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(each.__name__ for each in kinds)
            raise InvalidArgument(f"`options.{name}` is {quoted(value)}; it must be of type {names}")


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


def language_code(asked: str | None) -> str | None:
    """The code of ISO 639-1, or 639-3 where it has none, of a language that a request names in any of the ways of
    `find_language`. One that is not known stays as it is named; None: the request names none."""
    name = (asked or "auto").strip().lower()
    if name == "auto":
        return None
    tag = _TAG.fullmatch(name)
    named = _NAMES.get(tag[1], name) if tag else name
    return _CODES[named].split()[0] if named in _CODES else name


def list_languages(known: Collection[str]) -> str:
    """The languages of a checkpoint with their codes, for a message."""
    codes = {name: f" ({_CODES[name].split()[0]})" for name in known if name in _CODES}
    return ", ".join(name.title() + codes.get(name, "") for name in known)


def parse_object(name: str, text: str | None) -> dict[str, Any]:
    """The JSON object in `text`; an empty one if there is no text.

    Args:
        name: of the input, for the error.

    Raises:
        InvalidArgument: it is not JSON, or not an object; NaN and infinity are not JSON, and a lone surrogate, which
            JSON can write as an escape, is no text.
    """
    try:
        value = json.loads(text or "{}", parse_constant=_refuse, parse_float=_finite)
        if text and "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # RecursionError: nested too deep
        value = None
    if not isinstance(value, dict):
        raise InvalidArgument(f"`{name}` must be a JSON object")
    return value


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def synthesizer_digest(talker: str, decoder: str) -> str:
    """The digest of all that makes a family's sound, of those of its talker and its decoder; see `synthesizer`."""
    return hashlib.sha256(f"{talker} {decoder}".encode()).hexdigest()[:32]
