"""code2wav as native code, for a CPU. It does without torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from voice_clone.codec.native_decoder import NativeWindowedDecoder
from voice_clone.families.qwen3_tts.networks.codec_decoder_parts import CodecDecoderWeights
from voice_clone.native.arrays import Array
from voice_clone.native.packed_file import NOWHERE, PackedFile


class NativeCodecDecoder(NativeWindowedDecoder):
    """As `CodecDecoder`."""

    def __init__(self, load: Callable[[], CodecDecoderWeights], packed: PackedFile = NOWHERE) -> None:
        self._first = packed.part("first codebooks")(lambda: load().codebooks(first=True))
        self._rest = packed.part("other codebooks")(lambda: load().codebooks(first=False))
        super().__init__(load, packed)

    def rows(self, codes: Array) -> Array:
        """The sums of the codes' vectors, of both quantisers side by side."""
        books, sums = iter(codes.transpose(1, 0, 2)), []
        for vectors in (self._first, self._rest):
            total = vectors[0][next(books)]
            for others in vectors[1:]:
                total += others[next(books)]
            sums.append(total)
        return np.concatenate(sums, axis=-1)

    def bound(self, samples: Array) -> Array:
        return samples.clip(-1, 1)
