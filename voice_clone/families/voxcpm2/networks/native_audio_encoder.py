"""As audio_encoder.py, in native code for a CPU. It computes without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from voice_clone.families.voxcpm2.audio_vae_config import PIECE_FRAMES, WIDTH
from voice_clone.native.arrays import Array
from voice_clone.native.codec.chain import Chain
from voice_clone.native.packed_file import NOWHERE, PackedFile

if TYPE_CHECKING:  # a process that finds the weights packed does without torch
    from voice_clone.families.voxcpm2.networks.audio_encoder import AudioEncoder


class NativeAudioEncoder:
    """As `AudioEncoder`; fp32.

    Args:
        load: the same encoder at each call, on the CPU; called if its weights are not found packed. They are packed
            one after the other and given up.
        packed: finds the packed weights.
    """

    def __init__(self, load: Callable[[], AudioEncoder], packed: PackedFile = NOWHERE) -> None:
        self._latents = Chain.restored(packed.part("latents")(lambda: load().chain().arrays))
        [samples] = packed.part("samples")(lambda: [np.array([load().frame_samples])])
        self._samples = int(samples[0])

    def encode(self, waveform: Array) -> Array:
        state, position, latents = self._latents.new_state(1), np.zeros(1, np.int64), []
        size = PIECE_FRAMES * self._samples
        for begin in range(0, len(waveform), size):
            rows, state = self._latents(waveform[None, begin : begin + size, None], state, position)
            latents.append(rows[0].copy())
        frames: Array = np.concatenate(latents).reshape(-1, WIDTH)
        return frames
