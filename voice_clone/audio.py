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

from voice_clone import file_kinds
from voice_clone.audio_file import (
    MAX_CHANNELS,
    MAX_RATE,
    MIME_TYPES,
    MIN_RATE,
    Samples,
    SoundFileError,
    openable,
    read_samples,
    riff_codec,
)
from voice_clone.errors import InvalidArgument

_SILENT = 1e-3  # -60 dBFS: a clip whose loudest sample is softer is inaudible
MAX_PEAK = 100.0  # 40 dB above full scale: float files may exceed 1 a little, and what is far beyond is no audio


_WAV_CODECS_READ = frozenset({0x01, 0x02, 0x03, 0x06, 0x07, 0x11, 0x31, 0x38, 0x40, 0x55})
_WAV_CODECS = {  # by the number in the header
    0x14: "G.723",
    0x15: "DSP Group TrueSpeech G.723",
    0x16: "G.723",
    0x20: "Yamaha ADPCM",
    0x22: "TrueSpeech",
    0x42: "G.723.1",
    0x45: "G.726",
    0x50: "MPEG layer 1 or 2",
    0x64: "G.726",
    0x65: "G.722",
    0x83: "G.729",
    0xFF: "AAC",
    0x0130: "ACELP",
    0x0160: "Windows Media Audio",
    0x0161: "Windows Media Audio",
    0x0162: "Windows Media Audio",
    0x0163: "Windows Media Audio",
    0x028F: "G.722",
    0x1610: "AAC",
    0x2000: "AC-3",
    0xA109: "Speex",
    0xF1AC: "FLAC",
}


@dataclass(frozen=True)
class ClipLimits:
    """Limits of a reference clip: bytes of its file, and seconds."""

    max_bytes: int = 10 << 20
    min_seconds: float = 1.0
    max_seconds: float = 30.0


@dataclass(frozen=True)
class Losses:
    """What of a file is not in its clip.

    Attributes:
        channel: the only channel that was taken, counted from 1, because the channels cancel each other out.
        missing_seconds: of the audio that the file lacks at its end, 0 if it is not known how much; None: it is whole.
        undecoded_bytes: at the end of the file, which are no audio.
    """

    channel: int | None = None
    missing_seconds: float | None = None
    undecoded_bytes: int = 0


@dataclass(frozen=True, eq=False)
class Clip:
    """A decoded reference clip.

    Attributes:
        waveform: float32 [samples], mono: the mean of the channels, or one of them where they cancel each other out.
        sample_rate: Hz, the file's own.
        mime_type: of the file, e.g. `audio/wav`.
        encoded: the bytes of the file, without the data URL around it.
        losses: what of the file is not in the waveform.
        takes: the files of further recordings of the same speaker.
    """

    waveform: NDArray[np.float32]
    sample_rate: int
    mime_type: str
    encoded: bytes
    losses: Losses = Losses()
    takes: tuple[bytes, ...] = ()

    @property
    def seconds(self) -> float:
        return len(self.waveform) / self.sample_rate


def decode(data: bytes, limits: ClipLimits | None = None) -> Clip:
    """Decode a WAV, FLAC, OGG (Vorbis, Opus) or MP3 file, or its `data:audio/...;base64,` URL.

    Raises:
        InvalidArgument: it is not such a file, damaged, too short, too long, too big, or holds NaN or infinity.
    """
    limits = limits or ClipLimits()
    if not data:
        raise InvalidArgument("the `audio` is empty; it must be a WAV, FLAC, OGG or MP3 file")
    encoded = _from_data_url(data, limits) if data[:5].lower() == b"data:" else data
    if len(encoded) > limits.max_bytes:
        raise InvalidArgument(f"the `audio` has {len(encoded)} bytes; at most {limits.max_bytes} are allowed")
    try:
        with soundfile.SoundFile(io.BytesIO(openable(encoded))) as file:
            _check_format(file, encoded)
            form, rate = file.format, int(file.samplerate)
        samples = read_samples(encoded, form, math.floor(limits.max_seconds * rate) + 1)
    except (SoundFileError, TypeError, ValueError):  # TypeError: a headerless format, which asks for more
        raise InvalidArgument(_undecodable(encoded)) from None
    if len(samples.waveform) > limits.max_seconds * rate:
        raise InvalidArgument(_too_long(samples, limits))
    check_waveform(samples.waveform, rate, limits)
    missing = None if samples.missing is None else samples.missing / rate
    losses = Losses(samples.channel, missing, samples.undecoded)
    return Clip(samples.waveform, rate, MIME_TYPES[form], encoded, losses)


def check_waveform(waveform: NDArray[np.float32], rate: int, limits: ClipLimits) -> None:
    """Check that a waveform, float32 [samples] at `rate` Hz, is one that `decode` could have made.

    Raises:
        InvalidArgument: it is too short, too long, of no usable sample rate, holds NaN or infinity, or its samples
            are of another scale.
    """
    _check_rate(rate)
    _check_length(len(waveform), rate, limits)
    if not np.isfinite(waveform).all():
        raise InvalidArgument("the `audio` holds NaN or infinity; every sample must be finite")
    peak = float(np.abs(waveform).max())
    if peak > MAX_PEAK:
        raise InvalidArgument(f"the `audio` reaches {peak:.3g}, where full scale is 1; scale the samples to -1..1")


def check_audible(clip: Clip) -> None:
    """Check that there is something to hear.

    Raises:
        InvalidArgument: every sample is silent.
    """
    peak = float(np.abs(clip.waveform).max())
    if peak < _SILENT:
        loudest = f"its loudest sample is at {20 * math.log10(peak):.0f} dBFS" if peak else "every sample is 0"
        raise InvalidArgument(f"the `audio` is silent: {loudest}; send a clip in which somebody speaks")


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
    kind = file_kinds.converted(encoded) or file_kinds.sound(encoded)
    if kind is not None:
        return f"the `audio` is {kind}; this server takes WAV, FLAC, OGG and MP3, convert it"
    codec = riff_codec(encoded)
    if codec is not None and codec not in _WAV_CODECS_READ:
        name = _WAV_CODECS.get(codec, f"of number 0x{codec:04x}")
        return f"the `audio` is a WAV file with the codec {name}, which this server does not read; convert it to PCM"
    return f"the `audio` cannot be decoded: {file_kinds.fault(encoded)}"


def _too_long(samples: Samples, limits: ClipLimits) -> str:
    """Of a clip that was decoded up to the limit alone; its header may know its length."""
    seconds = max(samples.promised or 0, len(samples.waveform)) / samples.rate
    length = f"more than {limits.max_seconds:g} s" if samples.promised is None else f"{seconds:.2f} s"
    return f"the `audio` is {length} long; it must be {limits.min_seconds:g} to {limits.max_seconds:g} s"


def _from_data_url(data: bytes, limits: ClipLimits) -> bytes:
    head, comma, body = data.partition(b",")
    parts = head[5:].lower().split(b";")
    if not comma or len(head) > 200 or not parts[0].startswith(b"audio/") or parts[-1].strip() != b"base64":
        raise InvalidArgument("the `audio`'s data URL is malformed; it must begin with data:audio/<type>;base64,")
    if len(body) > limits.max_bytes * 3 // 2:
        raise InvalidArgument(f"the `audio`'s data URL is too long; it may encode at most {limits.max_bytes} bytes")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error:
        raise InvalidArgument("the `audio`'s data URL is not valid base64") from None


def _check_format(file: soundfile.SoundFile, encoded: bytes) -> None:
    """Check the header against what is taken at all."""
    if file.format not in MIME_TYPES:
        kind = file_kinds.converted(encoded) or file_kinds.sound(encoded) or f"a {file.format} file"
        raise InvalidArgument(f"the `audio` is {kind}; send WAV, FLAC, OGG or MP3")
    _check_rate(file.samplerate)
    if file.channels > MAX_CHANNELS:
        raise InvalidArgument(f"the `audio` has {file.channels} channels; at most {MAX_CHANNELS} are allowed")


def _check_rate(rate: int) -> None:
    if not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidArgument(f"the `audio`'s sample rate is {rate} Hz; it must be {MIN_RATE} to {MAX_RATE} Hz")


def _check_length(samples: int, rate: int, limits: ClipLimits) -> None:
    seconds = samples / rate
    if samples <= 0:
        raise InvalidArgument("the `audio` has no samples; send a clip of speech")
    if not limits.min_seconds <= seconds <= limits.max_seconds:
        raise InvalidArgument(
            f"the `audio` is {seconds:.2f} s long; it must be {limits.min_seconds:g} to {limits.max_seconds:g} s"
        )
