"""The noise that the converter writes for CosyVoice3 is what the official networks draw when they are built."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

from tests.support.oracles.cosyvoice3 import source
from tests.support.oracles.cosyvoice3_decoder import official_modules
from voice_clone_server.families.cosyvoice3.fixed_noise import fixed_noise

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.share("official packages"),
    pytest.mark.skipif(source() is None, reason="VOICE_CLONE_COSYVOICE names no checkout of the official code"),
]


def test_the_noise_is_that_of_the_official_networks() -> None:
    """Flow and vocoder, built in the order of the released configuration; the seed is set within the first."""
    modules = official_modules()
    options = {"sigma_min": 1e-6, "solver": "euler", "t_scheduler": "cosine"}
    rates = {"training_cfg_rate": 0.2, "inference_cfg_rate": 0.7}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1986)
        solver = modules.matching.CausalConditionalCFM(
            240, types.SimpleNamespace(**options, **rates), 1, 80, nn.Identity()
        )
        modules.flow.CausalMaskedDiffWithDiT(
            input_size=80, vocab_size=6561, spk_embed_dim=192, pre_lookahead_layer=nn.Identity(), decoder=solver
        )
        vocoder = modules.vocoder.CausalHiFTGenerator(
            sampling_rate=24000,
            upsample_rates=[8, 5, 3],
            upsample_kernel_sizes=[16, 11, 7],
            source_resblock_kernel_sizes=[7, 7, 11],
            source_resblock_dilation_sizes=[[1, 3, 5]] * 3,
            f0_predictor=modules.pitch.CausalConvRNNF0Predictor(),
        )
    flow_noise, source_noise = fixed_noise()
    assert torch.equal(flow_noise, solver.rand_noise)
    drawn = vocoder.m_source.l_sin_gen.sine_waves
    assert drawn.shape[1] == 300 * 24000
    assert torch.equal(source_noise, drawn[:, : source_noise.shape[1]])
