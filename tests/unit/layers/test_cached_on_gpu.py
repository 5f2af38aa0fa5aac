"""What modules cache on a GPU, shown on one that is pretended, and not elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from tests.support.pretend_gpu import pretend_gpu
from voice_clone.families.fish_speech.codec_decoder import DecoderQuantizer
from voice_clone.families.fish_speech.config import CodecConfig
from voice_clone.layers.attention import additive_mask
from voice_clone.layers.graphs import CachedOnGpu
from voice_clone.layers.rvq import SplitResidualDecoder
from voice_clone.layers.vocoder import Snake, SnakeBeta

CHANNELS = 6


def filled(make: Callable[[], nn.Module], device: str) -> nn.Module:
    with torch.device(device):
        module = make().requires_grad_(False)
    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.copy_(torch.rand(parameter.shape, device="cpu").to(device) + 0.5)
    return module


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda: Snake(CHANNELS), torch.linspace(-2, 2, 4 * CHANNELS).view(1, CHANNELS, 4)),
        (lambda: SnakeBeta(CHANNELS), torch.linspace(-2, 2, 4 * CHANNELS).view(1, CHANNELS, 4)),
    ],
)
def test_the_second_run_computes_less_and_gives_the_same(make: Callable[[], nn.Module], x: Tensor) -> None:
    expected = filled(make, "cpu")(x)
    with pretend_gpu() as gpu, torch.inference_mode():
        module = filled(make, "cuda")
        runs = []
        for _ in range(2):
            gpu.launches.clear()
            got = module(x.to("cuda"))
            runs.append(gpu.launches.copy())
            assert torch.equal(got.cpu(), expected)
    assert sum(runs[1].values()) < sum(runs[0].values())
    assert not any("exp" in name or "reciprocal" in name or "div" in name for name in runs[1])


def split_decoder() -> nn.Module:
    return SplitResidualDecoder(5, 1, 7, 4, CHANNELS)


def fish_quantizer() -> nn.Module:
    sizes = SimpleNamespace(
        latent_dim=64,
        semantic_codes=9,
        residual_books=4,
        residual_codes=7,
        codebook_dim=4,
        quantizer_intermediate=32,
        quantizer_layers=0,
    )
    return DecoderQuantizer(cast(CodecConfig, sizes))


@pytest.mark.parametrize("make", [split_decoder, fish_quantizer])
def test_codes_are_looked_up_in_one_table(make: Callable[[], Any]) -> None:
    """Of both families: one look-up and one sum, within rounding of codebook by codebook."""
    codes = torch.randint(7, (2, 5, 3), generator=torch.Generator().manual_seed(0))

    def run(module: Any, codes: Tensor) -> Tensor:
        if isinstance(module, SplitResidualDecoder):
            return module.decode(codes)
        latent: Tensor = module(codes, None, torch.zeros(2, dtype=torch.int64, device=codes.device))
        return latent

    with torch.inference_mode():
        expected = run(filled(make, "cpu"), codes)
    with pretend_gpu() as gpu, torch.inference_mode():
        module, codes = filled(make, "cuda"), codes.to("cuda")
        runs = []
        for _ in range(2):
            gpu.launches.clear()
            torch.testing.assert_close(run(module, codes).cpu(), expected, rtol=1e-5, atol=1e-6)
            runs.append(gpu.launches["aten.embedding.default"] + gpu.launches["aten.sum.dim_IntList"])
            assert not gpu.launches["aten.linear.default"] or len(runs) == 1
    assert runs == [2, 2]


def test_nothing_is_cached_on_a_cpu_or_while_weights_require_grad() -> None:
    made: list[int] = []

    def compute() -> int:
        made.append(len(made))
        return made[-1]

    cached: CachedOnGpu[int] = CachedOnGpu()
    assert [cached.get(torch.ones(1), compute) for _ in range(2)] == [0, 1]
    with pretend_gpu():
        learns, stays = torch.ones(1, device="cuda", requires_grad=True), torch.ones(1, device="cuda")
        assert [cached.get(learns, compute) for _ in range(2)] == [2, 3]
        assert [cached.get(stays, compute) for _ in range(2)] == [4, 4]


@pytest.mark.parametrize("size", [8, 11])
def test_rows_of_masks_begin_at_multiples_of_8_on_a_gpu(size: int) -> None:
    seen = torch.ones(2, 1, 3, size, dtype=torch.bool).tril()
    expected = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    assert torch.equal(additive_mask(seen, torch.float32), expected)
    with pretend_gpu(), torch.inference_mode():
        mask = additive_mask(seen.to("cuda"), torch.float32)
        assert torch.equal(mask.cpu(), expected) and all(stride % 8 == 0 for stride in mask.stride()[:-1])
