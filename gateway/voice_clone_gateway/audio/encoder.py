"""From the samples of a speech to the bytes of a file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from voice_clone_client.errors import Internal
from voice_clone_sound.limiter import Limiter
from voice_clone_sound.tempo import Tempo

from .containers import Container, open_container
from .formats import find_format
from .resampler import Resampler


class Encoder:
    """One speech as one file: float samples -> speed -> sample rate -> limiter -> 16 bits -> format.

    The bytes do not depend on the division into chunks. All formats are encoded from the same 16-bit samples,
    those of `voice_clone_client.wav.pcm16`. `n` samples become m = round(n / speed), then round(m * sample_rate /
    sample_rate_in).

    Not thread-safe; different encoders are independent. An encoder that is dropped before `finish` frees its memory.

    Args:
        format: a name in `FORMATS`.
        sample_rate_in: Hz of the input samples.
        sample_rate_out: Hz, one of the format's; None for `sample_rate_in` or the nearest that the format supports.
        speed: 0.25 to 4; the pitch is unchanged.
        streaming: return bytes as early as the format allows; the header then has no length. Otherwise `finish` returns
            all bytes, and the header is exact.
        bit_rate: bits a second of a format that has one; None for the default. The codec takes the nearest it has.
        limited: keep the true peaks at `limiter.CEILING` and below.
        comment: in ASCII, for the header, where the format has a place for it.
        path: of a new file to which all bytes go, in place of being returned; not while streaming.

    Raises:
        InvalidArgument: format, rate or speed is not supported; the message lists the valid values.
    """

    def __init__(
        self,
        format: str,
        sample_rate_in: int,
        sample_rate_out: int | None = None,
        speed: float = 1.0,
        *,
        streaming: bool = True,
        comment: str | None = None,
        bit_rate: int | None = None,
        limited: bool = False,
        path: Path | None = None,
    ) -> None:
        self.format = find_format(format)
        self.sample_rate = self.format.choose_rate(sample_rate_out, sample_rate_in)
        """Hz of the output."""
        self.samples = 0
        """Samples in the output so far."""
        self._tempo = Tempo(sample_rate_in, speed) if speed != 1.0 else None
        self._resampler = Resampler(sample_rate_in, self.sample_rate) if self.sample_rate != sample_rate_in else None
        self._limiter = Limiter(self.sample_rate) if limited else None
        self._quick = self.format.quick and speed == 1.0 and streaming  # else `finish` does all the work
        self._container: Container = open_container(
            self.format.name, self.sample_rate, streaming, comment, bit_rate, path
        )

    @property
    def media_type(self) -> str:
        return self.format.media_type(self.sample_rate)

    @property
    def size(self) -> int:
        """Bytes of the file that are kept for `finish`."""
        return self._container.size

    @property
    def seconds(self) -> float:
        """Duration of the output so far."""
        return self.samples / self.sample_rate

    def encode(self, samples: ArrayLike) -> bytes:
        """Add samples; returns the bytes that are complete, perhaps none.

        Args:
            samples: float32 [n], in [-1, 1]; values outside are clipped.

        Raises:
            Internal: a sample is infinite or NaN.
        """
        return self._container.write(self._process(np.asarray(samples, dtype=np.float32), final=False))

    def finish(self) -> bytes:
        """The rest of the file. The encoder cannot be used afterwards."""
        last = self._container.write(self._process(np.zeros(0, np.float32), final=True))
        return last + self._container.finish()

    async def encode_aside(self, samples: ArrayLike) -> bytes:
        """`encode` for an event loop: in a thread if it takes milliseconds, for which it would block the loop.

        If it takes less, a thread would cost more than the work. Then the loop runs its other tasks between two chunks,
        even if many chunks are queued.
        """
        if not self._quick:
            return await asyncio.to_thread(self.encode, samples)
        await asyncio.sleep(0)
        return self.encode(samples)

    async def finish_aside(self) -> bytes:
        return self.finish() if self._quick else await asyncio.to_thread(self.finish)

    def _process(self, samples: NDArray[np.float32], final: bool) -> NDArray[np.float32]:
        if not np.isfinite(samples).all():  # it would corrupt the filters for the rest of the speech
            raise Internal("the model made samples that are infinite or NaN")
        if self._tempo is not None:
            samples = self._tempo.push(samples, final)
        if self._resampler is not None:
            samples = self._resampler.push(samples, final)
        if self._limiter is not None:
            samples = self._limiter.push(samples, final)
        self.samples += len(samples)
        return samples
