"""The native SiLU gives the bits of torch's."""

from __future__ import annotations

import numpy as np
import torch

from voice_clone.families.qwen3_tts.networks.native_talker import silu_in_place


def test_it_is_torch_s_to_the_last_bit() -> None:
    """Of numbers of all sizes; both signs, zeros, denormal numbers, infinities and NaN among them."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 20, np.uint32)
    usual = np.random.default_rng(1).standard_normal(1 << 20).astype(np.float32) * 8
    limits = np.float32([0.0, -0.0, 1e-45, -1e-45, 104, -104, 100, -100, 88.7, -88.7, np.inf, -np.inf, np.nan] * 16)
    for x in (bits.view(np.float32), usual, limits):
        expected = torch.nn.functional.silu(torch.from_numpy(x.copy())).numpy()
        silu_in_place(x)
        known = ~np.isnan(expected)
        np.testing.assert_array_equal(x[known].view(np.uint32), expected[known].view(np.uint32))
        assert np.isnan(x[~known]).all()
