"""Reference clips: from the bytes of an audio file to a mono waveform, and from one sample rate to another.

Clips are untrusted input: size, sample rate, channels and length are checked before the samples are decoded, and
decoding stops at the longest clip allowed, whatever the header says.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import struct
from dataclasses import dataclass

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from voice_clone.errors import InvalidArgument

MIN_RATE, MAX_RATE = 8_000, 192_000  # Hz
MAX_CHANNELS = 8
_SILENT = 1e-3  # -60 dBFS: nobody hears a clip whose loudest sample is softer
MAX_PEAK = 100.0  # 40 dB above full scale: float files may exceed 1 a little, and what is far beyond is no audio
_UNKNOWN = 1 << 62  # more samples than any file has: libsndfile does not know their number
_TOTAL_SAMPLES = 21  # bytes from the beginning of a FLAC file to their number
_BLOCK = 1 << 16  # frames decoded at a time: bounds memory whatever the number of channels
_FORMATS = {
    "WAV": "audio/wav",
    "WAVEX": "audio/wav",
    "RF64": "audio/wav",
    "FLAC": "audio/flac",
    "OGG": "audio/ogg",
    "MP3": "audio/mpeg",
}
MIME_TYPES = frozenset(_FORMATS.values())


_FOREIGN = (  # offset, first bytes and kind of files that phones and browsers make
    (4, b"ftyp", "an MP4 file (m4a, mp4, mov or 3gp)"),
    (0, b"\x1aE\xdf\xa3", "a WebM or Matroska file"),
    (0, b"#!AMR", "an AMR file"),
)


@dataclass(frozen=True)
class ClipLimits:
    """Limits of a reference clip: bytes of its file, and seconds."""

    max_bytes: int = 10 << 20
    min_seconds: float = 1.0
    max_seconds: float = 30.0


@dataclass(frozen=True, eq=False)
class Clip:
    """A decoded reference clip.

    Attributes:
        waveform: float32 [samples], mono: the mean of the channels.
        sample_rate: Hz, the file's own.
        mime_type: of the file, e.g. `audio/wav`.
        encoded: the bytes of the file, without the data URL around it.
    """

    waveform: NDArray[np.float32]
    sample_rate: int
    mime_type: str
    encoded: bytes

    @property
    def seconds(self) -> float:
        """Length of the clip."""
        return len(self.waveform) / self.sample_rate


def decode(data: bytes, limits: ClipLimits | None = None) -> Clip:
    """Decode a WAV, FLAC, OGG (Vorbis, Opus) or MP3 file, or its `data:audio/...;base64,` URL.

    Raises:
        InvalidArgument: it is not such a file, damaged, too short, too long, too big, or holds NaN or infinity.
    """
    limits = limits or ClipLimits()
    if not data:
        raise InvalidArgument("the audio is empty; send the bytes of a WAV, FLAC, OGG or MP3 file")
    encoded = _from_data_url(data, limits) if data[:5].lower() == b"data:" else data
    if len(encoded) > limits.max_bytes:
        raise InvalidArgument(f"the audio has {len(encoded)} bytes; at most {limits.max_bytes} are allowed")
    try:
        with soundfile.SoundFile(io.BytesIO(encoded)) as file:
            streamed = file.format == "FLAC" and file.frames > _UNKNOWN
            _check_format(file)
        data = _with_length(encoded, math.floor(limits.max_seconds * MAX_RATE) + 1) if streamed else encoded
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            mime_type = _FORMATS[file.format]
            rate = int(file.samplerate)
            _check_length(file.frames, rate, limits)
            waveform = _read_mono(file, math.floor(limits.max_seconds * rate) + 1)
    except (soundfile.SoundFileError, TypeError, ValueError):  # TypeError: a headerless format, which asks for more
        raise InvalidArgument(_undecodable(encoded)) from None
    check_waveform(waveform, rate, limits)
    return Clip(waveform, rate, mime_type, encoded)


def check_waveform(waveform: NDArray[np.float32], rate: int, limits: ClipLimits | None = None) -> None:
    """Check that a waveform, float32 [samples] at `rate` Hz, is one that `decode` could have made.

    Raises:
        InvalidArgument: it is too short, too long, of no usable sample rate, holds NaN or infinity, or its samples
            are of another scale.
    """
    _check_rate(rate)
    _check_length(len(waveform), rate, limits or ClipLimits())
    if not np.isfinite(waveform).all():
        raise InvalidArgument("the audio holds NaN or infinity; every sample must be finite")
    peak = float(np.abs(waveform).max())
    if peak > MAX_PEAK:
        raise InvalidArgument(f"the audio reaches {peak:.3g}, where full scale is 1; scale the samples to -1..1")


def check_audible(clip: Clip) -> None:
    """Check that there is something to hear.

    Raises:
        InvalidArgument: every sample is silent.
    """
    peak = float(np.abs(clip.waveform).max())
    if peak < _SILENT:
        loudest = f"its loudest sample is at {20 * math.log10(peak):.0f} dBFS" if peak else "every sample is 0"
        raise InvalidArgument(f"the audio is silent: {loudest}; send a clip in which somebody speaks")


def encode_wav(waveform: NDArray[np.float32], rate: int) -> bytes:
    """A WAV file of these samples, float32 [samples], mono: decoded again, they are the same to the bit."""
    data = waveform.astype("<f4").tobytes()
    kind, channels, size = 3, 1, waveform.itemsize  # 3: IEEE floats
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, kind, channels, rate, rate * size, size, 8 * size)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI", b"RIFF", len(body)) + body


def resample(waveform: NDArray[np.float32], rate: int, target: int) -> NDArray[np.float32]:
    """`waveform` (float32 [samples] at `rate` Hz) at `target` Hz: float32 [ceil(samples * target / rate)].

    Equals `librosa.resample` with its defaults (soxr, quality HQ).
    """
    if rate == target:
        return waveform
    length = math.ceil(len(waveform) * (float(target) / rate))
    resampled: NDArray[np.float32] = soxr.resample(waveform, rate, target, quality="HQ")[:length]
    return np.pad(resampled, (0, length - len(resampled)))


def _undecodable(encoded: bytes) -> str:
    """Why a file cannot be decoded, for the caller."""
    for offset, magic, kind in _FOREIGN:
        if encoded.startswith(magic, offset):
            return (
                f"the audio is {kind}; this server takes WAV, FLAC, OGG and MP3. Convert it, or upload it with the "
                "command voice-clone or the HTTP gateway: they convert it"
            )
    return "the audio cannot be decoded; send the bytes of an undamaged WAV, FLAC, OGG or MP3 file"


def _from_data_url(data: bytes, limits: ClipLimits) -> bytes:
    head, comma, body = data.partition(b",")
    parts = head[5:].lower().split(b";")
    if not comma or len(head) > 200 or not parts[0].startswith(b"audio/") or parts[-1].strip() != b"base64":
        raise InvalidArgument("the audio's data URL is malformed; it must begin with data:audio/<type>;base64,")
    if len(body) > limits.max_bytes * 3 // 2:
        raise InvalidArgument(f"the audio's data URL is too long; it may encode at most {limits.max_bytes} bytes")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error:
        raise InvalidArgument("the audio's data URL is not valid base64") from None


def _with_length(encoded: bytes, most: int) -> bytes:
    """A FLAC file with its length in the header, where one that was streamed has none; `most` samples count.

    libsndfile cannot read such a file to its end, but it can seek in it: the last sample is found by bisection.
    """
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        with soundfile.SoundFile(io.BytesIO(encoded)) as file:
            try:
                file.seek(middle - 1)
                least = middle
            except soundfile.SoundFileError:
                most = middle - 1
    data = bytearray(encoded)
    at = encoded.index(b"fLaC") + _TOTAL_SAMPLES  # 36 bits, the first four in the low half of a byte
    data[at : at + 5] = ((data[at] & 0xF0) << 32 | least).to_bytes(5, "big")
    return bytes(data)


def _check_format(file: soundfile.SoundFile) -> None:
    """Check the header against what is taken at all."""
    if file.format not in _FORMATS:
        raise InvalidArgument(f"the audio is a {file.format} file; send WAV, FLAC, OGG or MP3")
    _check_rate(file.samplerate)
    if file.channels > MAX_CHANNELS:
        raise InvalidArgument(f"the audio has {file.channels} channels; at most {MAX_CHANNELS} are allowed")


def _check_rate(rate: int) -> None:
    if not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidArgument(f"the audio's sample rate is {rate} Hz; it must be {MIN_RATE} to {MAX_RATE} Hz")


def _check_length(samples: int, rate: int, limits: ClipLimits) -> None:
    seconds = samples / rate
    if samples <= 0:
        raise InvalidArgument("the audio has no samples; send a clip of speech")
    if not limits.min_seconds <= seconds <= limits.max_seconds:
        raise InvalidArgument(
            f"the audio is {seconds:.2f} s long; it must be {limits.min_seconds:g} to {limits.max_seconds:g} s"
        )


def _read_mono(file: soundfile.SoundFile, most: int) -> NDArray[np.float32]:
    """At most `most` samples, float32 [samples]; bit-equal to those of `soundfile.read`."""
    # The last bit of MP3 samples depends on how they are read: after a seek and in one piece (at most two channels).
    file.seek(0)
    size = most if file.format == "MP3" else _BLOCK
    blocks = []
    while most > 0:
        block = file.read(min(size, most), dtype="float32", always_2d=True)  # [frames, channels]
        if not len(block):
            break
        blocks.append(block[:, 0] if block.shape[1] == 1 else np.mean(block, axis=-1))
        most -= len(block)
    return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
