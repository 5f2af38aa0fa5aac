"""Rotary tables on a GPU that is none: their frequencies are a CPU's."""

from __future__ import annotations

import torch

from tests.support.pretend_gpu import pretend_gpu
from voice_clone.layers.attention import rotary_cos_sin, rotary_frequencies
from voice_clone.layers.streaming import ChunkPass, streaming_slots
from voice_clone.layers.window_transformer import WindowConfig, WindowTransformer

HEAD_DIM, THETA = 16, 10000.0
CONFIG = WindowConfig(32, 48, 2, 2, 2, HEAD_DIM, 8, 1e-6, THETA)


def powers(launches: dict[str, int]) -> list[str]:
    return [name for name in launches if "pow" in name]


def test_no_power_runs_on_a_gpu() -> None:
    expected = rotary_cos_sin(torch.arange(2000, 2005), HEAD_DIM, THETA)
    with pretend_gpu() as gpu, torch.inference_mode():
        got = rotary_cos_sin(torch.arange(2000, 2005, device="cuda"), HEAD_DIM, THETA)
        assert gpu.launches and not powers(gpu.launches)
        assert all(torch.equal(table.cpu(), cpu) for table, cpu in zip(got, expected, strict=True))


def test_they_are_those_of_hugging_face() -> None:
    expected = 1.0 / THETA ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.int64).float() / HEAD_DIM)
    assert torch.equal(rotary_frequencies(HEAD_DIM, THETA, torch.device("cpu")), expected)
    assert rotary_frequencies(HEAD_DIM, THETA, torch.device("meta")).is_meta


def test_a_transformer_fetches_them_once() -> None:
    """What is recorded as a CUDA graph copies nothing from the host."""
    with pretend_gpu() as gpu, torch.inference_mode():
        with torch.device("cuda"):
            transformer = WindowTransformer(CONFIG).requires_grad_(False)
        x, position = torch.ones(1, 3, 32, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
        slots = streaming_slots(transformer)
        copies = []
        for _ in range(2):
            gpu.launches.clear()
            transformer(x, ChunkPass(slots, [module.new_state(1) for module in slots]), position)
            copies.append(gpu.launches["aten._to_copy.default"])
            assert not powers(gpu.launches)
        assert copies[1] == copies[0] - 1
