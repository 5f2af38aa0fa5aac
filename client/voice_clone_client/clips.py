"""Clips in the formats of phones and browsers, made into WAV files, which the server reads.

The server itself takes WAV, FLAC, OGG and MP3. This module decodes MP4 (m4a, mp4, mov, 3gp), WebM and Matroska, AMR,
ADTS (aac), CAF, AIFF and WAV files with rare codecs with PyAV, which is FFmpeg. Without PyAV it says how to install it.
The server reports on the clip, so its faults are kept: two channels stay two, and if a clip is cut off, the header of
the WAV file has the length in the clip's header.
"""

from __future__ import annotations

import base64
import binascii
import io
import itertools
import os
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidArgument, Unsupported
from .sources import Source as Source
from .sources import name, opened, rest
from .wav import pcm16

SHORTEST, LONGEST = 1, 30
"""Seconds of a clip that the server takes."""
_PADDING = 0.1  # seconds: codecs fill up their last frame

_HEAD = 64  # bytes that show the kind of a file
_HEAD_OF_URL = 300  # of a data: URL
_MAX_RATE = 192_000  # Hz
_STEREO_RATE = 48_000  # Hz: two channels of more would make files that the server finds too big
_MOST_FRAMES = 20_000  # the shortest that a codec of speech has, of 2.5 ms, are fewer in the longest clip
_SHORT = 0.5  # seconds that a header may promise too much: codecs count their delay in different ways
_PROTECTED = ("enca", "drms")  # types of encrypted audio tracks in MP4
_SCHEME = (b"sinf", b"schm", b"frma")  # boxes that say how a track of an MP4 file is encrypted


class Kind(NamedTuple):
    """A kind of file that FFmpeg reads and the server does not."""

    name: str
    """For people."""
    demuxer: str
    """FFmpeg's name."""
    tells_length: bool = True
    """Whether its header has its length; FFmpeg guesses that of the others."""

    def may_have_sound(self, file: bytes) -> bool:
        """Whether a file of this kind can be read at all: one of MP4 without its table of contents cannot."""
        return self.demuxer != "mov" or b"moov" in file


_MP4 = Kind("an MP4 file", "mov")
_ADTS = Kind("an AAC file", "aac", False)
_WAV = Kind("a WAV file with a rare codec", "wav", False)
_WAV_CODECS = {  # by the number in the header: those that FFmpeg reads and the server does not
    0x20, 0x22, 0x42, 0x45, 0x50, 0x64, 0x65, 0x83, 0xFF, 0x028F, 0x2000, 0xF1AC,
}  # fmt: skip
_KINDS = (  # offset, first bytes, kind
    (4, b"ftyp", _MP4),
    (4, b"moov", _MP4),  # QuickTime files without a type
    (4, b"mdat", _MP4),
    (4, b"wide", _MP4),
    (0, b"\x1aE\xdf\xa3", Kind("a WebM or Matroska file", "matroska")),
    (0, b"#!AMR", Kind("an AMR file", "amr", False)),
    (0, b"caff", Kind("a CAF file", "caf")),
    (0, b"FORM", Kind("an AIFF file", "aiff")),
    (0, b"\xff\xf1", _ADTS),  # MP3 has other bits here
    (0, b"\xff\xf9", _ADTS),
)


def foreign_kind(clip: bytes) -> Kind | None:
    """The kind of a file, or of the one in a `data:` URL, if the server does not read it; else None."""
    head = _head_of_url(clip) if _is_url(clip) else clip[:_HEAD]
    if head[:4] == b"RIFF" and head[8:16] == b"WAVEfmt " and len(head) >= 46:
        codec, extended = struct.unpack_from("<H", head, 20)[0], struct.unpack_from("<H", head, 44)[0]
        return _WAV if (extended if codec == 0xFFFE else codec) in _WAV_CODECS else None
    return next((kind for offset, magic, kind in _KINDS if head.startswith(magic, offset)), None)


def readable(source: Source) -> bytes:
    """The bytes of a clip that the server reads: those of the file, or of a WAV file made of it.

    Args:
        source: path or bytes of a file, also of a pipe; an open file; or a `data:audio/...;base64,` URL in bytes.

    Raises:
        InvalidArgument: the file is too large; or it has a foreign format and cannot be decoded, or lasts too long.
        Unsupported: it has a foreign format, and PyAV is not installed.
        OSError: the file cannot be read.
    """
    if isinstance(source, str | os.PathLike):
        with opened(source) as file:
            return _readable(file, name(source))
    return _readable(opened(source), name(source))


def _readable(file: BinaryIO, called: str) -> bytes:
    if not file.seekable():  # a pipe
        file = io.BytesIO(rest(file, called))
    begin = file.tell()
    head = file.read(_HEAD_OF_URL)
    kind = foreign_kind(head)
    file.seek(begin)
    if kind is None:
        return rest(file, called)
    return to_wav(io.BytesIO(without_url(rest(file, called))) if _is_url(head) or begin else file, kind)


def to_wav(file: Any, kind: Kind) -> bytes:
    """A WAV file, 16 bits, one or two channels, of the first audio track in an open binary file.

    Raises:
        InvalidArgument: there is none, it is protected or damaged, or lasts more than `LONGEST` seconds.
        Unsupported: PyAV is not installed.
    """
    try:
        import av
    except ImportError:
        raise Unsupported(
            f"the `audio` is {kind.name}, and PyAV, which reads it, is not installed: pip install av, "
            "or send WAV, FLAC, OGG or MP3"
        ) from None
    blocks: list[NDArray[np.float32]] = []
    rate = 0
    try:
        # The kind is known: FFmpeg shall neither guess another one, such as a playlist, nor open what a file refers to.
        with av.open(
            file, format=kind.demuxer, metadata_errors="replace", options={"protocol_whitelist": ""}
        ) as opened:
            promised = _promised(opened) if kind.tells_length else 0.0
            for rate, block in _decoded(opened, kind, promised):  # noqa: B007
                blocks.append(block)
    except (av.FFmpegError, ValueError, MemoryError):
        seconds = sum(len(block) for block in blocks) / rate if rate else 0.0
        after = f" after {seconds:.1f} s" if blocks else ""
        message = f"the `audio` is {kind.name}, but damaged{after}; record or convert it again"
        file.seek(0)
        data = file.read()
        raise InvalidArgument(_protected(kind) if all(box in data for box in _SCHEME) else message) from None
    if not blocks:
        raise InvalidArgument(f"the `audio` is {kind.name} whose audio track is empty")
    samples = np.concatenate(blocks)[: LONGEST * rate]
    cut_off = len(samples) < LONGEST * rate and promised > len(samples) / rate + _SHORT
    return _wav(samples, rate, round(promised * rate) if cut_off else len(samples))


def _wav(samples: NDArray[np.float32], rate: int, promised: int) -> bytes:
    """A WAV file of samples, float32 [samples, channels], whose header promises another number of them."""
    channels = samples.shape[1]
    block = 2 * channels  # bytes
    data = promised * block
    header = struct.pack("<4sI4s4sI", b"RIFF", 36 + data, b"WAVE", b"fmt ", 16)
    form = struct.pack("<HHIIHH4sI", 1, channels, rate, rate * block, block, 16, b"data", data)
    return header + form + pcm16(samples)


def _promised(opened: Any) -> float:
    """The length of the first audio track by its header, in seconds, at most an hour; 0 if it has none."""
    for stream in opened.streams.audio[:1]:
        seconds = float(stream.duration * stream.time_base) if stream.duration else float(opened.duration or 0) / 1e6
        return min(max(seconds, 0.0), 3600.0)
    return 0.0


def _decoded(opened: Any, kind: Kind, promised: float) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Sample rate and samples, float32 [samples, channels], of each frame of the first audio track."""
    from av import AudioResampler

    if not opened.streams.audio:
        what = "a video without sound" if opened.streams.video else f"{kind.name} without an audio track"
        raise InvalidArgument(f"the clip is {what}; send a recording with sound")
    stream = opened.streams.audio[0]
    if kind is _MP4 and (stream.codec_context is None or stream.codec_context.codec_tag in _PROTECTED):
        raise InvalidArgument(_protected(kind))
    if stream.codec_context is None:
        raise InvalidArgument(f"the `audio` is {kind.name} whose codec is not known; convert it to PCM in a WAV file")
    stream.codec_context.thread_count = 1
    resampler: AudioResampler | None = None
    target: tuple[str, int] | None = None  # layout and sample rate, those of the first frame
    form: tuple[str, str, int] | None = None  # of the frames that the resampler takes
    samples = 0
    for count, frame in enumerate(itertools.chain(opened.decode(stream), [None])):  # None: what the resampler holds
        if count > _MOST_FRAMES:
            raise ValueError("frames of a few samples, which take too long to decode")
        if frame is not None and frame.sample_rate > _MAX_RATE:
            raise InvalidArgument(
                f"the `audio`'s sample rate is {frame.sample_rate} Hz; at most {_MAX_RATE} are allowed"
            )
        if target is None:
            if frame is None:
                return
            stereo = frame.layout.nb_channels > 1
            rate = min(frame.sample_rate, _STEREO_RATE) if stereo else frame.sample_rate
            target = ("stereo" if stereo else "mono", rate)
        resampled = []
        if frame is not None and form != (form := (frame.format.name, frame.layout.name, frame.sample_rate)):
            # A resampler takes frames of one form, and files of several may have been joined.
            resampled += [] if resampler is None else resampler.resample(None)
            resampler = AudioResampler("fltp", *target)
        assert resampler is not None
        for plain in [*resampled, *resampler.resample(frame)]:
            if (plain.layout.name, plain.sample_rate) != target:  # it lets through what it does not convert
                raise ValueError("another number of channels, or another sample rate")
            block = np.ascontiguousarray(plain.to_ndarray().T, np.float32)
            samples += len(block)
            if samples > (LONGEST + _PADDING) * plain.sample_rate:
                raise _too_long(f"{promised:.1f} s" if promised > LONGEST + _PADDING else f"more than {LONGEST} s")
            yield plain.sample_rate, block


def _too_long(length: str) -> InvalidArgument:
    return InvalidArgument(
        f"the `audio` is {length} long; it must be {SHORTEST} to {LONGEST} s. Where the server takes longer clips, "
        "send them as WAV, FLAC, OGG or MP3"
    )


def _protected(kind: Kind) -> str:
    return f"the `audio` is {kind.name} that is protected (DRM or a password); send a recording without protection"


def _is_url(clip: bytes) -> bool:
    return clip[:5].lower() == b"data:"


def _head_of_url(url: bytes) -> bytes:
    body = url[:_HEAD_OF_URL].partition(b",")[2][: _HEAD // 4 * 4]
    try:
        return base64.b64decode(body[: len(body) // 4 * 4], validate=True)
    except binascii.Error:
        return b""  # the server says what is wrong with it


def without_url(clip: bytes) -> bytes:
    """The file in a `data:` URL; another clip as it is.

    Raises:
        InvalidArgument: its base64 is invalid.
    """
    if not _is_url(clip):
        return clip
    try:
        return base64.b64decode(clip.partition(b",")[2], validate=True)
    except binascii.Error:
        raise InvalidArgument("the `audio`'s data URL is not valid base64") from None
