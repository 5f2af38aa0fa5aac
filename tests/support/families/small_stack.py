"""A decoder stack small enough to be run in every way, with every option."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.protocol import StackConfig

PLAIN = StackConfig(
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=100.0,
)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"qk_norm": False},
    {"qkv_bias": True},
    {"rope_in_bf16": True},
    {"rope": "none"},
    {"norm": "layer"},
    {"norm": "layer", "mlp": "gelu_tanh", "qk_norm": False},
    {"rope_factors": (1.0, 2.5, 0.7, 9.0), "qk_norm": False},
    {"qk_norm": False, "qkv_bias": True},
]
LENGTH = 13  # positions of `inputs`


def make(config: StackConfig) -> DecoderStack:
    """On the CPU, with random weights, always the same."""
    stack = DecoderStack(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in sorted(stack.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = "norm" in name and not name.endswith("bias")
        parameter.copy_(1 + 0.2 * noise if is_norm else noise * parameter.shape[-1] ** -0.5)
    return stack


def on_gpu(config: StackConfig, dtype: torch.dtype = torch.float32) -> DecoderStack:
    """The same on the device cuda."""
    stack = DecoderStack(config).eval().requires_grad_(False)
    state = {name: tensor.to("cuda", dtype) for name, tensor in make(config).state_dict().items()}
    stack.load_state_dict(state, assign=True)
    return stack.requires_grad_(False)


def inputs(seed: int = 1) -> Tensor:
    return torch.randn(LENGTH, PLAIN.hidden_size, generator=torch.Generator().manual_seed(seed))
