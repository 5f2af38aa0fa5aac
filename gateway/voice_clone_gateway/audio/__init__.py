"""The gateway's output audio: speed, sample rate and file format of a speech, while the server makes it.

    encoder = Encoder("mp3", first_chunk.sample_rate, sample_rate_out=44100, speed=1.25)
    headers["content-type"] = encoder.media_type
    for chunk in speech:
        body.write(encoder.encode(chunk.samples))
    body.write(encoder.finish())

Latency, the length of the input before the first output, at 24 kHz: wav and pcm 0 ms, flac and opus 40 ms, mp3 48 ms,
aac 86 ms, mulaw and alaw 74 ms (their resampling to 8 kHz). Another sample rate adds 40 ms, 8 kHz 74 ms. A speed adds
40 to 70 ms between 0.25 and 2, up to 200 ms at 4; the limiter 1.8 ms. An open encoder takes 0.5 to 1 MB, of flac 8 MB.

`encoder` is the pipeline from samples to bytes; `formats` lists the formats; `containers` writes their bytes;
`resampler` and `voice_clone_sound` process the samples.
"""

from .encoder import Encoder
from .formats import FORMATS, SAMPLE_RATES, Format, find_format

__all__ = ["FORMATS", "SAMPLE_RATES", "Encoder", "Format", "find_format"]
