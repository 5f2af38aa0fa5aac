"""perf/kernels: it counts what it says, and a frame takes no more kernels than it did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from perf import kernels
from perf.kernels import Account, Counting, frame
from tests.support.pretend_gpu import pretend_gpu
from tools.families.qwen3_tts.checkpoint_config import SHAPES
from tools.families.qwen3_tts.checkpoint_maker import write_configuration
from voice_clone.families.qwen3_tts.config import load_config

MOST = 2150  # kernels of a frame of the 0.6B shape


def test_of_known_operators() -> None:
    counting = Counting(floor=1.0, bandwidth=100.0)
    with pretend_gpu(empty=True, observer=counting), torch.inference_mode():
        weight, x = torch.zeros(50, 10, device="cuda"), torch.zeros(2, 10, device="cuda")
        rows = torch.zeros(3, dtype=torch.int64, device="cuda")
        counting.account = Account()
        torch.nn.functional.linear(x, weight).view(-1)
        assert counting.account.bytes == 4 * (500 + 20 + 100)
        assert counting.account.seconds == pytest.approx(4 * 620 / 100)
        torch.nn.functional.embedding(rows, weight)
        x.topk(2)
        assert counting.account.kernels == {"linear": 1, "embedding": 1, "topk": 2}
        rows_read, picked = 4 * 30, 2 * 2 * (4 + 8)
        assert counting.account.bytes == 4 * 620 + (24 + 2 * rows_read) + (80 + picked)


def test_a_frame_of_the_released_shape(tmp_path: Path) -> None:
    write_configuration(SHAPES["0.6b"], tmp_path)
    counting = Counting(1e-6, 1e12)
    with pretend_gpu(empty=True, observer=counting), torch.inference_mode():
        parts = frame(load_config(tmp_path), 2, 512, counting)
    assert parts["talker"].kernels["scaled_dot_product_attention"] == 28
    assert parts["predictor"].kernels["scaled_dot_product_attention"] == 5 * 15
    assert 1900 < parts["talker"].count + parts["predictor"].count <= MOST


def test_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "figures.json"
    monkeypatch.setattr("sys.argv", ["kernels", "--shape", "tiny", "--batches", "1", "4", "--json", str(target)])
    assert kernels.main() == 0
    figures = json.loads(target.read_text())
    one, four = (figures["frames"][batch] for batch in ("1", "4"))
    assert figures["estimated"] and one["talker"]["kernels"] == four["talker"]["kernels"] > 50
    assert one["talker"]["bytes"] < four["talker"]["bytes"]
    assert set(figures["code2wav"]["4"]) == {"1", "2", "4", "8", "12"}
    assert "not measured" in capsys.readouterr().out
