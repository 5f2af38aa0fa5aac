"""A long text in chunks that are spoken one after the other, and how many frames each has. Needs no torch.

Source: omnivoice 0.2.1, `utils/text.py` (`chunk_text_punctuation`, `add_punctuation`) and `models/omnivoice.py`
(`_preprocess_all`, `_generate_chunked`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from voice_clone.families.omnivoice.config import FRAME_RATE
from voice_clone.families.omnivoice.duration import estimate

LEAST = 3  # characters of a chunk
BREAKS = frozenset(".,;:!?。，；：！？")  # a sentence ends behind one
CLOSING = frozenset("\"'“”‘’）]》>」】")  # stay with the sentence before
ENDS = frozenset(";:,.!?…)]}\"'“”‘’；：，。！？、）】")  # with one of these a transcript ends
_ABBREVIATIONS = """
Mr. Mrs. Ms. Dr. Prof. Sr. Jr. Rev. Fr. Hon. Pres. Gov. Capt. Gen. Sen. Rep. Col. Maj. Lt. Cmdr. Sgt. Cpl. Co. Corp.
Inc. Ltd. Est. Dept. St. Ave. Blvd. Rd. Mt. Ft. No. Jan. Feb. Mar. Apr. Aug. Sep. Sept. Oct. Nov. Dec. i.e. e.g. vs.
Vs. Etc. approx. fig. def.
"""
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())


def is_chinese(text: str) -> bool:
    """Whether a text has a Chinese character."""
    return any("\u4e00" <= each <= "\u9fff" for each in text)


def with_end(transcript: str) -> str:
    """A transcript with a full stop behind it, if it ends without punctuation."""
    transcript = transcript.strip()
    if not transcript or transcript[-1] in ENDS:
        return transcript
    return transcript + ("。" if is_chinese(transcript) else ".")


@dataclass(frozen=True)
class Pace:
    """How long a text is spoken, and in chunks of what length.

    Attributes:
        speed: above 1 is faster; plays no part where there is a duration.
        duration: seconds of the whole; None: it is estimated.
        chunk_seconds: of a chunk, about.
        threshold_seconds: a longer text is spoken in chunks.
    """

    speed: float = 1.0
    duration: float | None = None
    chunk_seconds: float = 15.0
    threshold_seconds: float = 30.0


def plan_chunks(text: str, reference: tuple[str, int] | None, pace: Pace) -> list[tuple[str, int]]:
    """The chunks of a text, with the frames of each.

    Args:
        reference: as of `estimate`. Without one the first chunk is that of all others.
    """
    frames = estimate(text, reference, 1.0 if pace.duration is not None else pace.speed)
    speed = pace.speed
    if pace.duration is not None:
        wanted = max(1, int(pace.duration * FRAME_RATE))
        frames, speed = wanted, frames / wanted
    if frames <= int(pace.threshold_seconds * FRAME_RATE):
        return [(text, frames)]
    chunks = split(text, int(pace.chunk_seconds * FRAME_RATE / (frames / len(text))))
    lengths: list[int] = []
    for index, chunk in enumerate(chunks):
        if index == 1 and reference is None:
            reference = chunks[0], lengths[0]
        lengths.append(estimate(chunk, reference, speed))
    return list(zip(chunks, lengths, strict=True))


def split(text: str, most: int) -> list[str]:
    """A text in chunks of at most `most` characters, but no sentence is cut, and none is shorter than `LEAST`."""
    chunks: list[str] = []
    chunk = ""
    for sentence in _sentences(text):
        if len(chunk) + len(sentence) <= most:
            chunk += sentence
            continue
        chunks += [chunk] if chunk else []
        chunk = sentence
    chunks += [chunk] if chunk else []
    return [each.strip() for each in _joined(chunks) if each.strip()]


def _sentences(text: str) -> Iterable[str]:
    """What ends with a punctuation mark, with the marks that follow it."""
    sentences: list[str] = []
    sentence = ""
    for each in text:
        if not sentence and sentences and (each in BREAKS or each in CLOSING):
            sentences[-1] += each
            continue
        sentence += each
        if each in BREAKS and not (each == "." and sentence.split()[-1] in ABBREVIATIONS):
            sentences.append(sentence)
            sentence = ""
    return [*sentences, sentence] if sentence else sentences


def _joined(chunks: list[str]) -> list[str]:
    """No chunk too short: it joins the one before, and a first one the one behind."""
    short_first = bool(chunks) and len(chunks[0]) < LEAST
    joined: list[str] = []
    for index, chunk in enumerate(chunks):
        if joined and (len(chunk) < LEAST or (index == 1 and short_first)):
            joined[-1] += chunk
        else:
            joined.append(chunk)
    return joined
