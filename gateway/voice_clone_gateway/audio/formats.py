"""The file formats of the gateway: names, media types and sample rates.

All formats are mono and can be streamed.

- `pcm` is signed 16-bit little-endian without a header, as the OpenAI API has it. `audio/L16` would be big-endian.
- `mulaw` and `alaw` are G.711 without a header, by default at 8000 Hz as the recommendation says. The types
  `audio/PCMU` and `audio/PCMA` (RFC 4856) name the law and the rate. `wav_mulaw` and `wav_alaw` have a header.
- `pcm_f32` is 32-bit little-endian float without a header, `wav_f32` the same as a WAV file. Their values are those of
  the 16-bit samples.
- `opus` is Ogg Opus (RFC 7845). Its decoders run at 48 kHz for any input, so ffprobe shows 48000; the requested rate is
  in the header and limits the bandwidth. The codec does not support 22050 and 44100 Hz.
- `aac` is AAC-LC in ADTS frames, `flac` has 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from voice_clone_client.errors import InvalidArgument, quoted

SAMPLE_RATES = (8000, 16000, 22050, 24000, 32000, 44100, 48000)
"""Hz; the output rates of most formats."""


@dataclass(frozen=True)
class Format:
    """A file format.

    Attributes:
        name: in requests.
        base_type: media type without the parameter `rate`.
        sample_rates: Hz, ascending.
        default_rate: Hz, where none is asked for; None: the source's, or else the next higher one.
        headerless: the file does not contain the sample rate, so the media type does.
        quick: encoding a second of audio takes less than a millisecond, at any rate.
    """

    name: str
    base_type: str
    sample_rates: tuple[int, ...] = SAMPLE_RATES
    default_rate: int | None = None
    headerless: bool = False
    quick: bool = False

    def media_type(self, sample_rate: int) -> str:
        """The value of a Content-Type header."""
        return f"{self.base_type};rate={sample_rate}" if self.headerless else self.base_type

    def choose_rate(self, requested: int | None, source: int) -> int:
        """The sample rate of the output.

        Args:
            requested: Hz, or None for the default.
            source: Hz of the input samples.

        Raises:
            InvalidArgument: this format does not support the requested rate.
        """
        if requested is None:
            if self.default_rate is not None:
                return self.default_rate
            return next((rate for rate in self.sample_rates if rate >= source), self.sample_rates[-1])
        self.check_rate(requested)
        return requested

    def check_rate(self, rate: int) -> None:
        """Check a requested sample rate in Hz.

        Raises:
            InvalidArgument: this format does not support it.
        """
        if rate not in self.sample_rates:
            rates = ", ".join(map(str, self.sample_rates))
            raise InvalidArgument(f"`sample_rate` of {self.name} must be one of {rates} Hz, not {rate}")


FORMATS = {
    entry.name: entry
    for entry in (
        Format("wav", "audio/wav", quick=True),
        Format("pcm", "audio/pcm", headerless=True, quick=True),
        Format("flac", "audio/flac"),
        Format("mp3", "audio/mpeg"),
        Format("opus", "audio/ogg;codecs=opus", sample_rates=(8000, 16000, 24000, 48000)),
        Format("aac", "audio/aac"),
        Format("mulaw", "audio/PCMU", default_rate=8000, headerless=True, quick=True),
        Format("alaw", "audio/PCMA", default_rate=8000, headerless=True, quick=True),
        Format("pcm_f32", "audio/x-pcm-f32", headerless=True, quick=True),
        Format("wav_mulaw", "audio/wav", default_rate=8000, quick=True),
        Format("wav_alaw", "audio/wav", default_rate=8000, quick=True),
        Format("wav_f32", "audio/wav", quick=True),
    )
}


def find_format(name: str) -> Format:
    """The format with a name.

    Raises:
        InvalidArgument: the name is unknown; the message lists all.
    """
    if name not in FORMATS:
        raise InvalidArgument(f"`response_format` must be one of {', '.join(FORMATS)}, not {quoted(name)}")
    return FORMATS[name]
