"""Where the files begin of which an audio file was joined, as programs join them: one behind the other.

libsndfile reads the first of them alone, or takes all for one stream.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterator

_MOST_PARTS = 64  # of a file that was joined
_WAV = re.compile(rb"(?:RIFF|RF64|RIFX)....WAVE", re.S)  # the beginning of a file
_FLAC = re.compile(rb"fLaC[\x00\x80]\x00\x00\x22")  # the beginning of a file and of its first block, STREAMINFO

FIRST_FRAME = re.compile(  # of an MP3 that is no sound but a header: sync, side information, number of frames
    rb"\xff[\xe2-\xff]..(?:..)?(?:.{9}|.{17}|.{32})(?:Xing|Info)...[\x01\x03\x05\x07\x09\x0b\x0d\x0f](?=....)", re.S
)
_MP3_FRAME = re.compile(rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb]")  # the first bytes: layer 3 of MPEG 2.5, 2 and 1
_KILOBITS = (  # a second, by a frame's index: of MPEG 1, of 2 and 2.5. Frames of index 0 do not tell their size
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
_MPEG_1, _MONO = 3, 3  # in the header of a frame
_MOST_CANDIDATES = 4096  # for the next frame: a picture in a tag has a few

_PAGE = struct.Struct("<4sBBqIIIB")  # the head of a page of an OGG file
_MOST_PAGES = 1 << 16  # that are looked at
_FIRST_PAGE = 2  # a page's flag


def parts(encoded: bytes, file_format: str) -> Iterator[bytes]:
    """The files of which a file was joined; mostly itself."""
    if file_format == "FLAC":
        starts = [each.start() for each in _FLAC.finditer(encoded)]
    elif file_format == "OGG":
        found = list(pages(encoded))
        starts = [
            at
            for (_, _, flags), (at, _, flag) in zip([(0, 0, 0), *found], found, strict=False)
            if flag & _FIRST_PAGE and not flags & _FIRST_PAGE
        ]
    elif file_format in ("WAV", "WAVEX"):
        starts = [each.start() for each in itertools.islice(_WAV.finditer(encoded), _MOST_PARTS)]
    else:
        starts = [0, *itertools.islice(_further_mp3s(encoded), _MOST_PARTS)]
    starts = [0, *starts[1:_MOST_PARTS]]  # what stands before the first belongs to it
    for start, end in zip(starts, [*starts[1:], len(encoded)], strict=True):
        yield encoded[start:end] if len(starts) > 1 else encoded


def after_tags(encoded: bytes, at: int = 0) -> int:
    """Where a file goes on after the ID3 tags at a place."""
    while encoded[at : at + 3] == b"ID3" and at + 10 <= len(encoded):
        size = 0
        for seven_bits in encoded[at + 6 : at + 10]:
            size = size << 7 | seven_bits & 0x7F
        at += 10 + size
    return at


def _mp3_frame(encoded: bytes, at: int) -> tuple[int, tuple[int, int, bool]] | None:
    """Where the MP3 frame at a place ends, and what all frames of a file have in common: version, sample rate, mono."""
    if not _MP3_FRAME.match(encoded, at) or at + 4 > len(encoded):
        return None
    version, rates, mode = encoded[at + 1] >> 3 & 3, encoded[at + 2] >> 2 & 3, encoded[at + 3] >> 6
    index, padding = encoded[at + 2] >> 4, encoded[at + 2] >> 1 & 1
    if index in (0, 15) or rates == 3:
        return None
    rate = (44_100, 48_000, 32_000)[rates] // {_MPEG_1: 1, 2: 2, 0: 4}[version]
    per_kilobit = 144_000 if version == _MPEG_1 else 72_000
    size = per_kilobit * _KILOBITS[version != _MPEG_1][index] // rate + padding
    return at + size, (version, rate, mode == _MONO)


def _begins_mp3(encoded: bytes, at: int) -> bool:
    """Whether a frame begins here, and another one of its file follows it, or the data ends with it."""
    frame = _mp3_frame(encoded, at)
    if frame is None:
        return False
    following = _mp3_frame(encoded, frame[0])
    return frame[0] == len(encoded) or (following is not None and following[1] == frame[1])


def _next_mp3(encoded: bytes, at: int) -> int | None:
    """Where, from a place on, a frame begins that others follow."""
    candidates = itertools.islice(_MP3_FRAME.finditer(encoded, at), _MOST_CANDIDATES)
    return next((each.start() for each in candidates if _begins_mp3(encoded, each.start())), None)


def _further_mp3s(encoded: bytes) -> Iterator[int]:
    """Where MP3 files begin that follow the first one: at a header, a frame of another kind, or after other bytes.

    libsndfile takes all for one stream: it stops where the sample rate or the number of channels changes, and after
    a kilobyte that is no frame.
    """
    at = _next_mp3(encoded, after_tags(encoded))
    while at is not None:
        last, frame = at, _mp3_frame(encoded, at)
        assert frame is not None
        end, kind = frame
        while (frame := _mp3_frame(encoded, end)) and frame[1] == kind and not FIRST_FRAME.match(encoded, end):
            last, end = end, frame[0]
        behind = after_tags(encoded, end)
        if behind > end:
            at = _next_mp3(encoded, behind)
        elif _begins_mp3(encoded, end):
            at = end
        else:
            at = _next_mp3(encoded, last + 4)  # the last frame may be cut off
        if at is not None:
            yield at


def pages(encoded: bytes) -> Iterator[tuple[int, int, int]]:
    """Place, end and flags of each page."""
    at = encoded.find(b"OggS")
    for _ in range(_MOST_PAGES):
        if not 0 <= at <= len(encoded) - _PAGE.size:
            return
        _, _, flags, _, _, _, _, segments = _PAGE.unpack_from(encoded, at)
        body = at + _PAGE.size + segments
        end = body + sum(encoded[at + _PAGE.size : body])
        yield at, end, flags
        at = encoded.find(b"OggS", at + 4)  # not at `end`: the page may be cut off
