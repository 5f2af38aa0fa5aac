"""The bytes of each format.

A streamed file is sent before it is complete, so its header cannot have the length:

- `wav` and its kin: both sizes are 0xFFFFFFFF. FFmpeg (which writes the same to a pipe) and libsndfile read such a
  file to its end; with sizes of 0, libsndfile would find no samples.
- `flac`: the number of samples and the checksum of STREAMINFO are 0, the format's value for unknown.
- `mp3`: there is no Xing frame, so decoders cannot cut the encoder's delay of 1105 samples at the start.
- `aac`: ADTS has no field for a length or for the delay of 1024 samples, streamed or not.
- `opus`: always exact: each Ogg page has its time, and the last one the position of the cut.

A comment stands in the header: in an ID3 tag (`mp3`), a Vorbis comment (`flac`, `opus`) or a list INFO (`wav`). The
others have no place for one. It delays no sample, and the bytes behind it are the same as without.

Every page or frame is sent when the codec returns it. Encoders buffer one frame: 40 ms of FLAC; 20 ms of Opus and
another 20 ms, because Ogg marks its last page; 1152 samples of MP3 (576 below 32 kHz), and 1024 of AAC, both with
another frame of look-ahead.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Protocol, cast

import av
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from numpy.typing import NDArray
from voice_clone_client.wav import WavWriter, pcm16
from voice_clone_provenance.statements import open_tagged


class Container(Protocol):
    """Writes one mono file of 16-bit samples."""

    @property
    def size(self) -> int:
        """The bytes that it keeps."""

    def write(self, samples: NDArray[np.float32]) -> bytes:
        """Add samples [n] in [-1, 1]; returns the bytes that are complete."""

    def finish(self) -> bytes:
        """The remaining bytes."""


def open_container(
    name: str,
    sample_rate: int,
    streaming: bool,
    comment: str | None,
    bit_rate: int | None = None,
    path: Path | None = None,
) -> Container:
    """A new file.

    Args:
        name: of the format.
        sample_rate: Hz.
        streaming, comment, bit_rate, path: see `Encoder`.
    """
    sink = _Stream() if streaming else _File() if path is None else _OnDisk(path)
    if name == "pcm":
        return _Pcm(sink)
    if name == "wav":
        return _Wav(sink, sample_rate, comment)
    return _Muxed(sink, _CODECS[name], sample_rate, comment, bit_rate)


class _Stream(io.BytesIO):
    """A file that cannot seek: its bytes are sent as soon as they are written."""

    def seekable(self) -> bool:
        return False

    def take(self) -> bytes:
        taken = self.getvalue()
        self.seek(0)
        self.truncate()
        return taken


class _File(io.BytesIO):
    """A file whose header is corrected at its end: its bytes are sent as a whole."""

    def take(self) -> bytes:
        return b""


class _OnDisk(io.BufferedRandom):
    """The same on the disk: nothing is kept or sent."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "w+b"))

    def take(self) -> bytes:
        return b""

    def getvalue(self) -> bytes:
        self.close()
        return b""

    def getbuffer(self) -> memoryview:
        return memoryview(b"")


_Sink = _Stream | _File | _OnDisk


class _Pcm:
    def __init__(self, sink: _Sink) -> None:
        self._sink = sink

    @property
    def size(self) -> int:
        return self._sink.getbuffer().nbytes

    def write(self, samples: NDArray[np.float32]) -> bytes:
        self._sink.write(pcm16(samples))
        return self._sink.take()

    def finish(self) -> bytes:
        return self._sink.getvalue()


class _Wav(_Pcm):
    def __init__(self, sink: _Sink, sample_rate: int, comment: str | None) -> None:
        super().__init__(sink)
        self._writer = WavWriter(sink, sample_rate, comment)

    def write(self, samples: NDArray[np.float32]) -> bytes:
        self._writer.write(samples)
        return self._sink.take()


@dataclass(frozen=True)
class _Codec:
    """FFmpeg's parameters of a format."""

    container: str
    encoder: str
    sample_format: str
    bit_rate: int | None = None
    """Bits a second, where none are asked for; at low sample rates 4 bits a sample."""
    frame_ms: int | None = None
    """Frame size of an encoder that supports any."""
    encoder_options: Mapping[str, str] = field(default_factory=dict)
    container_options: Mapping[str, str] = field(default_factory=dict)
    stream_options: Mapping[str, str] = field(default_factory=dict)
    """Options of the container if the file is streamed."""


_CODECS = {
    "flac": _Codec("flac", "flac", "s16", frame_ms=40, container_options={"metadata_header_padding": "0"}),
    "mp3": _Codec(
        "mp3",
        "libmp3lame",
        "s16p",
        bit_rate=96_000,
        encoder_options={"reservoir": "0"},  # otherwise a frame waits for the next one to share its bits
        container_options={"id3v2_version": "0"},
        stream_options={"write_xing": "0"},
    ),
    "opus": _Codec("ogg", "libopus", "s16", bit_rate=48_000, container_options={"page_duration": "20000"}),
    "aac": _Codec("adts", "aac", "fltp", bit_rate=96_000),
    "mulaw": _Codec("mulaw", "pcm_mulaw", "s16"),
    "alaw": _Codec("alaw", "pcm_alaw", "s16"),
    "pcm_f32": _Codec("f32le", "pcm_f32le", "flt"),
    "wav_mulaw": _Codec("wav", "pcm_mulaw", "s16"),
    "wav_alaw": _Codec("wav", "pcm_alaw", "s16"),
    "wav_f32": _Codec("wav", "pcm_f32le", "flt"),
}


class _Muxed(_Pcm):
    """A format that FFmpeg encodes and muxes."""

    def __init__(self, sink: _Sink, codec: _Codec, sample_rate: int, comment: str | None, bit_rate: int | None) -> None:
        super().__init__(sink)
        self._format = codec.sample_format
        # bitexact: the serial number of an Ogg stream would be random
        options = {"fflags": "+bitexact", "flush_packets": "1", **codec.container_options}
        if not sink.seekable():
            options.update(codec.stream_options)
        self._file = open_tagged(sink, codec.container, comment, options)
        # File and stream refer to each other: an unfinished one would wait for the garbage collector.
        self._close = weakref.finalize(self, self._file.close)
        self._stream = self._file.add_stream(codec.encoder, rate=sample_rate, layout="mono", format=self._format)
        self._codec = cast(AudioCodecContext, self._stream.codec_context)
        self._codec.thread_count = 1
        self._codec.options = dict(codec.encoder_options)
        if codec.frame_ms is not None:
            self._codec.options["frame_size"] = str(sample_rate * codec.frame_ms // 1000)
        if codec.bit_rate is not None:
            self._codec.bit_rate = bit_rate or min(codec.bit_rate, 4 * sample_rate)
        self._file.start_encoding()
        self._time_base = Fraction(1, sample_rate)
        self._held = np.zeros(0, np.int16)  # less than a frame
        self._encoded = 0  # samples

    def write(self, samples: NDArray[np.float32]) -> bytes:
        self._held = np.concatenate([self._held, np.frombuffer(pcm16(samples), "<i2")])
        size = self._codec.frame_size or max(1, len(self._held))
        while len(self._held) >= size:
            self._encode(self._held[:size])
            self._held = self._held[size:]
        return self._sink.take()

    def finish(self) -> bytes:
        if len(self._held):
            self._encode(self._held)
        self._mux(None)
        self._close()
        return self._sink.getvalue()

    def _encode(self, samples: NDArray[np.int16]) -> None:
        planes = samples[None] if self._format[:3] != "flt" else samples[None].astype(np.float32) / 32768
        frame = av.AudioFrame.from_ndarray(planes, format=self._format, layout="mono")
        frame.sample_rate = self._time_base.denominator
        frame.time_base = self._time_base
        frame.pts = self._encoded
        self._encoded += len(samples)
        self._mux(frame)

    def _mux(self, frame: av.AudioFrame | None) -> None:
        # The public `encode` would send the frame through a filter graph with a thread pool of one thread per core, to
        # cut it to the codec's frame size; it already has that size.
        for packet in self._codec._send_frame_and_recv(frame):  # type: ignore[attr-defined]
            packet.stream = self._stream
            packet.time_base = self._time_base
            self._file.mux(packet)
