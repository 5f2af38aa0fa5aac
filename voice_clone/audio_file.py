"""Every sample of an audio file, by libsndfile, whatever the file's headers say.

A header promises a length, and libsndfile believes it: it stops there, or estimates a length where there is none. But
recorders that stream do not know the length, other programs join files or cut them off, and the first frames of an
MP3 say little about the others. So each kind of file gets a header here that lets libsndfile read on to the end. What
is then missing, or cannot be decoded, is reported.
"""

from __future__ import annotations

import io
import math
import re
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from voice_clone.joined_files import FIRST_FRAME, after_tags, pages, parts

SoundFileError = soundfile.SoundFileError
MIME_TYPES = {
    "WAV": "audio/wav",
    "WAVEX": "audio/wav",
    "RF64": "audio/wav",
    "FLAC": "audio/flac",
    "OGG": "audio/ogg",
    "MP3": "audio/mpeg",
}
"""MIME types of the formats that are read, by libsndfile's names for these."""

MIN_RATE, MAX_RATE = 8_000, 192_000  # Hz
MAX_CHANNELS = 8

_BLOCK = 1 << 16  # frames decoded at a time: bounds memory whatever the number of channels
_CANCELLED = 0.5  # of the power that channels have in their mean if they are not alike
_WINDOW = 4096  # samples
_SPEECH = (200.0, 3000.0)  # Hz: hum is below, and above codecs do not keep the phase

_MOST_CHUNKS = 4096  # that are looked at, of a WAV file
_UNKNOWN_SIZE = 1 << 30  # bytes: more than a clip has. Recorders that stream write this, or any larger number
_MPEG_LAYER_3 = 0x55  # WAV files of this codec hold an MP3 file

_TOTAL_SAMPLES = 21  # bytes from the beginning of a FLAC file to their number
_FIRST_BYTES = 4096  # in which the first frame begins
_MANY_FRAMES = 1 << 24  # more than a clip has; the largest number that the decoder believes is 2^30
_PADDING = 4095  # samples at the end that the header of an MP3 may cut off
_MOST_READS = 50_000  # of a file: two a frame, of which the longest clip has a few thousand
_ENDLESS = 1 << 36  # bytes
_TAG_HEAD = 32  # bytes, of which the decoder may have taken some for a frame
_TAGS = (b"TAG", b"APETAGEX", b"LYRICSBEGIN", b"ID3")  # texts at the end of MP3 files


class Samples(NamedTuple):
    """What a file holds.

    Attributes:
        waveform: float32 [samples], mono: the mean of the channels, or one of them.
        rate: Hz.
        promised: samples by the header; None where it has no number that can be relied on.
        channel: the one that was taken, counted from 1, because the channels cancel each other out in their mean.
        missing: samples that the header promises and the file lacks, 0 if their number is not known; None: none lack.
        undecoded: bytes at the end that are no audio of this kind.
    """

    waveform: NDArray[np.float32]
    rate: int
    promised: int | None = None
    channel: int | None = None
    missing: int | None = None
    undecoded: int = 0


def openable(encoded: bytes) -> bytes:
    """The file with a header that libsndfile accepts, where it refuses the file's own for a wrong length."""
    if encoded[:4] not in _ENDIAN:
        return _with_many_frames(encoded)
    return _with_sizes(next(iter(parts(encoded, "WAV"))))


def read_samples(encoded: bytes, file_format: str, most: int) -> Samples:
    """The samples of a file, at most `most`; of joined files those of all, at the sample rate of the first.

    Args:
        file_format: libsndfile's name, a key of `MIME_TYPES`.

    Raises:
        SoundFileError: the file is damaged.
    """
    read = {"FLAC": _read_flac, "MP3": _read_mp3, "OGG": _read_ogg}.get(file_format, _read_wav)
    found: Samples | None = None
    for part in parts(encoded, file_format):
        if found is None:
            found = read(part, most)
        else:
            try:
                found = _joined(found, read(part, _most_of(part, found, most)))
            except SoundFileError:
                found = found._replace(undecoded=found.undecoded + len(part))
        if len(found.waveform) >= most:
            return found if part is encoded else found._replace(promised=None)
    assert found is not None
    return found


def _most_of(part: bytes, found: Samples, most: int) -> int:
    """How many samples of a further file there is room for.

    Raises:
        SoundFileError: the file is damaged, or not of a kind that is taken.
    """
    with soundfile.SoundFile(io.BytesIO(openable(part))) as file:
        if not MIN_RATE <= file.samplerate <= MAX_RATE or file.channels > MAX_CHANNELS:
            raise SoundFileError("a sample rate or a number of channels that no clip has")
        return math.ceil((most - len(found.waveform)) * int(file.samplerate) / found.rate)


def riff_codec(encoded: bytes) -> int | None:
    """The number of a WAV file's codec; None if it is no such file."""
    if encoded[:4] not in _ENDIAN or encoded[8:12] != b"WAVE":
        return None
    codec: int | None = None
    endian = _ENDIAN[encoded[:4]]
    for name, at, size in _chunks(encoded, 12, endian):
        if name == b"fmt " and size >= 16 and at + 16 <= len(encoded):
            (codec,) = struct.unpack_from(endian + "H", encoded, at)
            if codec == 0xFFFE and at + 26 <= len(encoded):  # WAVE_FORMAT_EXTENSIBLE
                (codec,) = struct.unpack_from(endian + "H", encoded, at + 24)
            break
    return codec


def _joined(first: Samples, second: Samples) -> Samples:
    """Two files as one, at the sample rate of the first."""
    scale = first.rate / second.rate
    waveform = second.waveform if scale == 1 else soxr.resample(second.waveform, second.rate, first.rate, quality="HQ")
    missing = [] if first.missing is None else [first.missing]
    missing += [] if second.missing is None else [round(second.missing * scale)]
    promised = None if second.promised is None else round(second.promised * scale)
    return Samples(
        np.concatenate([first.waveform, waveform]),
        first.rate,
        None if first.promised is None or promised is None else first.promised + promised,
        first.channel or second.channel,
        sum(missing) if missing else None,
        first.undecoded + second.undecoded,
    )


def _mono(source: io.BytesIO, most: int, whole: bool = False) -> Samples:
    """At most `most` samples of a file, and as promised the number that libsndfile believes that it has.

    Args:
        whole: decode in one piece: the last bit of MP3 samples depends on how they are read.
    """
    samples, cancelled = _mixed(source, most, whole, None)
    return samples if cancelled is None else _mixed(source, most, whole, cancelled)[0]


def _mixed(source: io.BytesIO, most: int, whole: bool, channel: int | None) -> tuple[Samples, int | None]:
    """One channel, or the mean of all; then with the loudest of them if they cancel each other out."""
    source.seek(0)
    with soundfile.SoundFile(source) as file:
        rate, channels, believed = int(file.samplerate), int(file.channels), int(file.frames)
        if file.seekable():
            file.seek(0)
        waveform, found = np.empty(min(most, believed), np.float32), 0
        power, power_of_mean = np.zeros(channels), 0.0
        for block in _blocks(file, len(waveform), whole):
            if channels == 1 or channel is not None:
                waveform[found : found + len(block)] = block[:, channel or 0]
            else:
                waveform[found : found + len(block)] = np.mean(block, axis=-1)
                of_channels, of_mean = _speech_power(block, rate)
                power, power_of_mean = power + of_channels, power_of_mean + of_mean
            found += len(block)
    cancelled = int(power.argmax()) if power_of_mean * channels**2 < _CANCELLED * power.sum() else None
    waveform = waveform if found == len(waveform) else waveform[:found].copy()
    return Samples(waveform, rate, believed, None if channel is None else channel + 1), cancelled


def _speech_power(block: NDArray[np.float32], rate: int) -> tuple[NDArray[np.float64], float]:
    """The power at the frequencies of speech, of each channel and of their mean."""
    channels = block.shape[1]
    windows = block[: len(block) // _WINDOW * _WINDOW].reshape(-1, _WINDOW, channels)
    low, high = (round(edge * _WINDOW / rate) for edge in _SPEECH)
    with np.errstate(over="ignore", invalid="ignore"):
        speech = np.stack([np.fft.rfft(windows[:, :, each])[:, low:high] for each in range(channels)], axis=-1)
        return np.square(np.abs(speech)).sum(axis=(0, 1)), float(np.square(np.abs(speech.mean(axis=-1))).sum())


def _blocks(file: soundfile.SoundFile, most: int, whole: bool) -> Iterator[NDArray[np.float32]]:
    """Blocks of samples, float32 [samples, channels]; never more are asked for than there are."""
    while most > 0:
        block = file.read(most if whole else min(_BLOCK, most), dtype="float32", always_2d=True)
        if not len(block):
            return
        yield block
        most -= len(block)


# WAV

_ENDIAN = {b"RIFF": "<", b"RF64": "<", b"RIFX": ">"}


def _chunks(encoded: bytes, at: int, endian: str = "<") -> Iterator[tuple[bytes, int, int]]:
    """Names, places and sizes of the chunks of a WAV file, from one on."""
    for _ in range(_MOST_CHUNKS):
        if at + 8 > len(encoded):
            return
        name, (size,) = encoded[at : at + 4], struct.unpack_from(endian + "I", encoded, at + 4)
        yield name, at + 8, size
        at += 8 + size + size % 2


def _data_chunk(encoded: bytes, start: int = 0) -> tuple[int, int | None] | None:
    """Place and promised size of the samples; no size if the header does not know it. None: there are no samples."""
    endian, long_size = _ENDIAN[encoded[start : start + 4]], 0
    for name, at, size in _chunks(encoded, start + 12, endian):
        if name == b"ds64" and at + 16 <= len(encoded):  # sizes that need more than 32 bits
            (long_size,) = struct.unpack_from("<Q", encoded, at + 8)
        if name == b"data":
            size = long_size if size == 0xFFFFFFFF else size
            known = size < _UNKNOWN_SIZE and (size > 0 or _is_tail(encoded, at, endian))
            return at, size if known else None
    return None


def _is_tail(encoded: bytes, at: int, endian: str) -> bool:
    """Whether the file ends here, or goes on with whole chunks; the last pad byte may lack."""
    for name, place, size in _chunks(encoded, at, endian):
        if not all(32 <= letter < 127 for letter in name):
            return False
        at = place + size + size % 2
    return at - 1 <= len(encoded) <= at


def _with_sizes(encoded: bytes) -> bytes:
    """A WAV file with the sizes that it has, if its header has others."""
    chunk = _data_chunk(encoded)
    if chunk is None or (chunk[1] is not None and chunk[0] + chunk[1] <= len(encoded)):
        return encoded
    endian, mended = _ENDIAN[encoded[:4]], bytearray(encoded)
    mended[:4] = b"RIFF" if endian == "<" else b"RIFX"  # RF64 has the sizes elsewhere
    struct.pack_into(endian + "I", mended, 4, len(encoded) - 8)
    struct.pack_into(endian + "I", mended, chunk[0] - 4, len(encoded) - chunk[0])
    return bytes(mended)


def _read_wav(encoded: bytes, most: int) -> Samples:
    encoded = encoded[after_tags(encoded) :]  # libsndfile skips them, too, but then misses the end of the file
    if encoded[:4] not in _ENDIAN:
        raise SoundFileError("no WAV file where the tags end")
    endian, chunk = _ENDIAN[encoded[:4]], _data_chunk(encoded)
    if chunk is None:
        return _mono(io.BytesIO(encoded), most)
    at, promised = chunk
    rest = len(encoded) - at
    size = rest if promised is None else min(promised, rest)
    if riff_codec(encoded) == _MPEG_LAYER_3:
        samples = _read_mp3(encoded[at : at + size], most)
    else:
        samples = _mono(io.BytesIO(_with_sizes(encoded)), most)
    if promised is not None and promised > rest > 0 and len(samples.waveform) < most:
        samples = samples._replace(missing=round(len(samples.waveform) * (promised - rest) / rest))
    end = at + size
    whole = any(_is_tail(encoded, each, endian) for each in (end, end + size % 2))
    return samples if whole else samples._replace(undecoded=samples.undecoded + len(encoded) - end)


# FLAC


def _read_flac(encoded: bytes, most: int) -> Samples:
    """libsndfile reads a file of unknown length by seeking alone: so the last sample is looked for."""
    at = encoded.index(b"fLaC") + _TOTAL_SAMPLES  # 36 bits, the first four in the low half of a byte
    first, *others = encoded[at : at + 5]
    promised = (first & 0x0F) << 32 | int.from_bytes(bytes(others), "big")
    unknown = _with_total(encoded, at, 0)
    if 0 < promised <= most and _has_sample(unknown, promised - 1) and not _has_sample(unknown, promised):
        return _mono(io.BytesIO(encoded), most)
    least, beyond = 0, most + 1  # samples that there are, a number that there are not
    while beyond - least > 1:
        middle = (least + beyond) // 2
        least, beyond = (middle, beyond) if _has_sample(unknown, middle - 1) else (least, middle)
    samples = _mono(io.BytesIO(_with_total(encoded, at, least)), most)._replace(promised=promised or None)
    return samples._replace(missing=promised - least) if least < min(promised, most) else samples


def _with_total(encoded: bytes, at: int, total: int) -> bytes:
    data = bytearray(encoded)
    data[at : at + 5] = ((data[at] & 0xF0) << 32 | total).to_bytes(5, "big")
    return bytes(data)


def _has_sample(encoded: bytes, index: int) -> bool:
    try:
        with soundfile.SoundFile(io.BytesIO(encoded)) as file:
            file.seek(index)
    except SoundFileError:
        return False
    return True


# MP3


class _Endless(io.BytesIO):
    """A file that claims to be very long, so that a length that is estimated from its size bounds nothing.

    Attributes:
        whole: bytes up to the end of the last frame that is whole.
        torn: whether the next one is not.
    """

    whole, torn = 0, False
    _reads = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        return super().seek(_ENDLESS + offset) if whence == io.SEEK_END else super().seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        at, wanted = self.tell(), len(buffer)
        if at > _ENDLESS - 4096:  # a text at the end is looked for: zeros are none
            buffer[:] = bytes(wanted)
            self.seek(at + wanted)
            return wanted
        self._reads += 1
        if self._reads > _MOST_READS:
            return 0
        given = super().readinto(buffer)
        if wanted > 4:  # a frame but for its header, which has four
            self.torn = given < wanted
            self.whole = self.whole if self.torn else at + given
        elif 0 < given < wanted:
            self.torn = bytes(buffer[:1]) == b"\xff"  # the beginning of a header
        return given


def _header(encoded: bytes) -> re.Match[bytes] | None:
    """The header of an MP3 file up to its number of frames."""
    start = after_tags(encoded)
    return FIRST_FRAME.search(encoded, start, start + _FIRST_BYTES)


def _with_many_frames(encoded: bytes) -> bytes:
    header = _header(encoded)
    if header is None:
        return encoded
    return encoded[: header.end()] + struct.pack(">I", _MANY_FRAMES) + encoded[header.end() + 4 :]


def _promised_frames(encoded: bytes) -> int | None:
    """The number of samples by the header of an MP3 file; None if it has none, or one that cannot be."""
    header = _header(encoded)
    if header is None or not 0 < struct.unpack_from(">I", encoded, header.end())[0] < _MANY_FRAMES:
        return None
    try:
        with soundfile.SoundFile(io.BytesIO(encoded)) as file:
            return int(file.frames)
    except SoundFileError:
        return None


def _read_mp3(encoded: bytes, most: int) -> Samples:
    """A number of frames in the header is used if it turns out to be right; else all frames count."""
    promised, data = _promised_frames(encoded), _with_many_frames(encoded)
    source = _Endless(data)
    try:
        samples = _mono(source, most, whole=True)
    except SoundFileError:  # no further frame: the last one is cut off, or what follows is no MP3
        if not source.whole:
            raise
        samples = _mono(_Endless(data[: source.whole]), most, whole=True)
    found, end = len(samples.waveform), source.whole
    if found >= most:
        return samples._replace(promised=promised if promised is not None and promised > found else None)
    missing = 0 if source.torn else None
    if promised is not None and promised <= found <= promised + _PADDING:
        missing, samples = None, samples._replace(waveform=samples.waveform[:promised])
    elif promised is not None and promised > found:
        missing = promised - found
    tail = encoded[end:].lstrip(b"\0")
    tagged = source.torn or any(tag in encoded[end - _TAG_HEAD : end] + tail[:_TAG_HEAD] for tag in _TAGS)
    return samples._replace(promised=None, missing=missing, undecoded=0 if tagged else len(tail))


# OGG


def _read_ogg(encoded: bytes, most: int) -> Samples:
    samples = _mono(io.BytesIO(encoded), most)
    end = max((end for _, end, _ in pages(encoded)), default=0)
    return samples._replace(missing=0) if end > len(encoded) else samples
