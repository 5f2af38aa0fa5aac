"""code2wav as native code, for a CPU. It does without torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from voice_clone.codec.native_decoder import NativeWindowedDecoder
from voice_clone.families.qwen3_tts.networks.codec_decoder_parts import CodecDecoderWeights
from voice_clone.native.arrays import Array
from voice_clone.native.packed_file import NOWHERE, MappedPages, PackedFile


class NativeCodecDecoder(NativeWindowedDecoder):
    """As `CodecDecoder`."""

    def __init__(self, load: Callable[[], CodecDecoderWeights], packed: PackedFile = NOWHERE) -> None:
        self._first = packed.part("first codebooks", sparse=True)(lambda: load().codebooks(first=True))
        self._rest = packed.part("other codebooks", sparse=True)(lambda: load().codebooks(first=False))
        self._pages = MappedPages(*self._first, *self._rest)
        super().__init__(load, packed)

    def rows(self, codes: Array) -> Array:
        """The sums of the codes' vectors, of both quantisers side by side."""
        width = self._first[0].shape[1]
        sums = np.zeros((codes.shape[0], codes.shape[2], 2 * width), np.float32)
        for book, vectors in enumerate((*self._first, *self._rest)):
            half = slice(0, width) if book < len(self._first) else slice(width, None)
            sums[..., half] += vectors[codes[:, book]]
            self._pages.give_back(book, book + 1)
        return sums

    def bound(self, samples: Array) -> Array:
        return samples.clip(-1, 1)
