"""Causal convolutions: chunked output equals whole output, and no output depends on later inputs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from voice_clone.layers.convolution import CausalConv1d, CausalConvTranspose1d

TOLERANCE = 1e-5
Convolution = CausalConv1d | CausalConvTranspose1d


def stream(module: Convolution, x: Tensor, sizes: list[int]) -> Tensor:
    state, out = module.new_state(x.shape[0]), []
    for chunk in torch.split(x, sizes, dim=-1):
        y, state = module.stream(chunk, state)
        out.append(y)
    return torch.cat(out, dim=-1)


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    kernel=st.integers(1, 8),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 9),
    groups=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_streamed_convolution_equals_whole(
    sizes: list[int], kernel: int, stride: int, dilation: int, groups: int, seed: int
) -> None:
    torch.manual_seed(seed)
    stride = min(stride, kernel)
    module = CausalConv1d(4, 8, kernel, stride, dilation, groups).requires_grad_(False)
    sizes = [size * stride for size in sizes]
    x = torch.randn(3, 4, sum(sizes))
    whole = module(x)
    assert whole.shape == (3, 8, sum(sizes) // stride)
    torch.testing.assert_close(stream(module, x, sizes), whole, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("pad_mode", ["replicate", "reflect"])
@pytest.mark.parametrize("sizes", [[8] * 5, [8, 1, 2, 3, 26], [40], [9, 31]], ids=str)
def test_streams_that_begin_with_their_own_samples(pad_mode: str, sizes: list[int]) -> None:
    """Streams of a batch are at different places: each begins with a chunk of its own."""
    torch.manual_seed(0)
    module = CausalConv1d(4, 6, 7, pad_mode=pad_mode).requires_grad_(False)
    x = torch.randn(2, 4, 40)
    expected = module.conv(torch.nn.functional.pad(x, (6, 0), mode=pad_mode))
    torch.testing.assert_close(module(x), expected, rtol=0, atol=0)
    state, out, first = module.new_state(2), [], True
    for chunk in torch.split(x, sizes, dim=-1):
        begins = torch.tensor([first, first])
        later = module.stream(
            torch.cat([chunk, chunk[:1]]), torch.cat([state, state[:1]]), torch.tensor([first, first, True])
        )
        y, state = module.stream(chunk, state, begins)
        torch.testing.assert_close(later[0][:2], y, rtol=0, atol=TOLERANCE)
        if chunk.shape[-1] > module.padding:
            torch.testing.assert_close(later[0][2:], module(chunk[:1]), rtol=0, atol=TOLERANCE)
        out.append(y)
        first = False
    torch.testing.assert_close(torch.cat(out, dim=-1), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("length", range(1, 9))
def test_short_signals_are_reflected_with_zeros_behind_them(length: int) -> None:
    module = CausalConv1d(1, 1, 7, bias=False, pad_mode="reflect").requires_grad_(False)
    x = torch.arange(1.0, length + 1).view(1, 1, -1)
    whole = [*x.flatten().tolist(), *[0.0] * 7]
    before = torch.tensor([*reversed(whole[1:7]), *x.flatten().tolist()]).view(1, 1, -1)
    torch.testing.assert_close(module(x), module.conv(before))


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    stride=st.integers(1, 8),
    extra=st.integers(0, 17),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_streamed_transposed_convolution_equals_whole(
    sizes: list[int], stride: int, extra: int, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    module = CausalConvTranspose1d(4, 3, stride + extra, stride, bias).requires_grad_(False)
    x = torch.randn(2, 4, sum(sizes))
    whole = module.conv(x)[..., : sum(sizes) * stride]
    torch.testing.assert_close(stream(module, x, sizes), whole, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("module", [CausalConv1d(2, 3, 5, dilation=3), CausalConv1d(2, 3, 4, stride=2)])
def test_no_output_depends_on_later_inputs(module: CausalConv1d) -> None:
    module.requires_grad_(False)
    x = torch.randn(1, 2, 24)
    changed = x.clone()
    changed[..., 12:] += 1
    before, after = module(x), module(changed)
    half = before.shape[-1] // 2
    assert torch.equal(before[..., :half], after[..., :half])
    assert not torch.allclose(before[..., half:], after[..., half:])


@pytest.mark.parametrize("length", range(1, 14))
@pytest.mark.parametrize("pad_mode", ["constant", "replicate"])
def test_whole_length_is_rounded_up_to_the_stride(length: int, pad_mode: str) -> None:
    module = CausalConv1d(1, 1, 8, stride=4, bias=False, pad_mode=pad_mode).requires_grad_(False)
    module.conv.weight.fill_(1.0)
    out = module(torch.ones(1, 1, length))
    assert out.shape[-1] == -(-length // 4)
    if pad_mode == "replicate":  # a constant signal stays constant beyond both of its ends
        assert torch.equal(out, torch.full_like(out, 8.0))
    else:
        assert out[0, 0, 0] == min(length, 4)


def test_state_is_untouched_and_shares_no_memory_with_the_chunk() -> None:
    for module in (CausalConv1d(2, 2, 3), CausalConvTranspose1d(2, 2, 4, 2)):
        module.requires_grad_(False)
        state = module.new_state(1) + 1
        kept = state.clone()
        _, following = module.stream(torch.randn(1, 2, 9), state)
        assert torch.equal(state, kept)
        assert following.untyped_storage().nbytes() == following.nbytes
