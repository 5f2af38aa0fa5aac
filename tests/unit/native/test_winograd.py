"""Winograd's convolutions: close to the exact ones, and a stream has the same bits in chunks of any size."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from voice_clone.native.codec import chain_builder, layer_table
from voice_clone.native.codec.chain import Chain
from voice_clone.native.codec.chain_builder import ChainBuilder, Snake
from voice_clone.native.codec.winograd import OUTPUTS, PRODUCTS, TAP_TRANSFORM, TAPS, groups_in_frame
from voice_clone.native.kernels.codec.winograd import group_place

LATENT = 12  # channels that come in
ERROR = 2e-6  # of the outputs' RMS
DILATIONS = pytest.mark.parametrize("dilation", [1, 3, 9])
ROWS = pytest.mark.parametrize("rows", [16, 17, 30, 32, 97])  # of a frame: most leave groups with fewer outputs
CHANNELS = pytest.mark.parametrize("channels", [24, 52])


def weights(rows: int, channels: int) -> tuple[Tensor, Tensor, Tensor]:
    """The weight of a layer that makes `rows` rows of each row, and the weight and bias of a convolution."""
    generator = torch.Generator().manual_seed(rows)
    stretch = torch.randn(LATENT, channels, rows, generator=generator) / LATENT**0.5
    weight = torch.randn(channels + 4, channels, TAPS, generator=generator) / (channels * TAPS) ** 0.5
    return stretch, weight, torch.randn(channels + 4, generator=generator)


@cache
def convolution(rows: int, channels: int, dilation: int, snake: bool = False) -> Chain:
    stretch, weight, bias = weights(rows, channels)
    ones = torch.ones(len(bias))
    builder = ChainBuilder(LATENT)
    builder.transposed(stretch, None, rows)
    builder.convolution(weight, bias, dilation, activation=Snake(ones, ones) if snake else None)
    return builder.build()


def kinds(chain: Chain) -> list[int]:
    """The kinds of a chain's layers."""
    return [int(kind) for kind in chain.arrays[0][:, layer_table.KIND]]


def exact(x: Tensor, rows: int, channels: int, dilation: int) -> Tensor:
    stretch, weight, bias = (each.double() for each in weights(rows, channels))
    stretched = F.conv_transpose1d(x.double().mT, stretch, stride=rows)
    return F.conv1d(F.pad(stretched, ((TAPS - 1) * dilation, 0)), weight, bias, dilation=dilation).mT


def streamed(chain: Chain, x: Tensor, sizes: list[int]) -> Tensor:
    state, position, out = chain.new_state(len(x)), np.zeros(len(x), np.int64), []
    for chunk in torch.split(x, sizes, dim=1):
        rows, state = chain(chunk.numpy(), state, position)
        out.append(rows.copy())
        position = position + chunk.shape[1]
    return torch.from_numpy(np.concatenate(out, axis=1))


def frames(batch: int, count: int) -> Tensor:
    return torch.randn(batch, count, LATENT, generator=torch.Generator().manual_seed(count))


def error(actual: Tensor, expected: Tensor) -> float:
    assert actual.shape == expected.shape
    return ((actual - expected).square().mean() / expected.square().mean()).sqrt().item()


@DILATIONS
@ROWS
@CHANNELS
def test_outputs_are_near_the_exact_ones(rows: int, channels: int, dilation: int) -> None:
    chain = convolution(rows, channels, dilation)
    assert layer_table.WINOGRAD in kinds(chain)
    x = frames(2, 5)
    assert error(streamed(chain, x, [5]), exact(x, rows, channels, dilation)) < ERROR


@DILATIONS
def test_rounding_costs_little_more_than_that_of_the_direct_form(
    dilation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, expected = frames(1, 20), exact(frames(1, 20), 40, 96, dilation)
    reduced = error(streamed(convolution(40, 96, dilation), x, [20]), expected)
    monkeypatch.setattr(chain_builder, "WINOGRAD_ROWS", 41)
    direct = error(streamed(convolution.__wrapped__(40, 96, dilation), x, [20]), expected)
    assert 0 < direct < reduced < 5 * direct


@DILATIONS
@ROWS
def test_a_stream_is_the_same_bit_for_bit_in_any_chunks_and_beside_any_streams(rows: int, dilation: int) -> None:
    chain = convolution(rows, 24, dilation, snake=True)
    x = frames(3, 9)
    whole = streamed(chain, x, [9])
    assert torch.equal(streamed(chain, x, [1] * 9), whole)
    assert torch.equal(streamed(chain, x, [2, 1, 5, 1]), whole)
    for stream in range(3):
        assert torch.equal(streamed(chain, x[stream : stream + 1], [4, 5]), whole[stream : stream + 1])


def test_few_rows_or_outputs_or_another_kernel_stay_direct() -> None:
    for rows, channels, kernel in ((15, 40, 7), (16, 40, 6), (16, 23, 7)):
        builder = ChainBuilder(LATENT)
        builder.transposed(torch.zeros(LATENT, channels, rows), None, rows)
        builder.convolution(torch.zeros(channels, channels, kernel), None)
        assert layer_table.WINOGRAD not in kinds(builder.build())


@pytest.mark.parametrize("dilation", [1, 2, 3, 9])
def test_groups_cover_a_frame_once(dilation: int) -> None:
    for rows in range(1, 100):
        layer = np.zeros(layer_table.FIELDS, np.int64)
        layer[[layer_table.RATE, layer_table.DILATION, layer_table.GROUPS]] = (
            rows,
            dilation,
            groups_in_frame(rows, dilation),
        )
        seen = []
        for group in range(2 * layer[layer_table.GROUPS]):
            frame, row = group_place.py_func(layer, group)
            assert row < rows
            seen += [frame * rows + n for n in range(row, row + OUTPUTS * dilation, dilation) if n < rows]
        assert sorted(seen) == list(range(2 * rows))


def test_transformed_taps_have_a_number_for_each_product() -> None:
    assert TAP_TRANSFORM.shape == (PRODUCTS, TAPS) and TAP_TRANSFORM.dtype == np.float64
    np.testing.assert_allclose(TAP_TRANSFORM[-1], np.eye(TAPS)[-1])  # infinity: the last tap
