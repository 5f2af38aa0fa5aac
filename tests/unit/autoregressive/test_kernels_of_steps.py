"""What the kernels of a step are given on a GPU: nothing that they must copy or convert first."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.families.talkers import read_config
from tests.support.pretend_gpu import pretend_gpu
from voice_clone.autoregressive.code_head import CodeVariant
from voice_clone.autoregressive.sampling import USUAL
from voice_clone.autoregressive.static_step import StaticStep
from voice_clone.autoregressive.steps import FrameModel
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.layers.graphs import GraphRunner

pytestmark = pytest.mark.thorough

BATCH, LENGTH = 8, 64


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Qwen3TTSConfig:
    return read_config("equal", tmp_path_factory.mktemp("checkpoint") / "folder")


def test_norms_and_masks(config: Qwen3TTSConfig) -> None:
    """Of a batch, at the second run: what is made once is there."""
    seen: Counter[str] = Counter()

    def observe(function: Any, read: list[Tensor], written: list[Tensor]) -> None:
        name = function.overloadpacket.__name__
        if name == "rms_norm":
            seen[name] += 1
            seen[f"{name} of a part"] += not read[0].is_contiguous()
        if name == "scaled_dot_product_attention":
            seen["bool masks"] += any(each.dtype == torch.bool for each in read)
            seen["added masks"] += len(read) > 3
        seen["cache"] += name in ("index_put_", "copy_") and written[0].shape[-1:] == (config.talker.head_dim,)
        seen["maxima"] += name in ("argmax", "amax", "max")
        seen["masks"] += name in ("tril", "triu", "masked_fill") and written[0].dtype == torch.bool

    with pretend_gpu(empty=True, observer=observe), torch.inference_mode():
        with torch.device("cuda"):
            talker = Talker(config).requires_grad_(False)
        runner = GraphRunner()
        StaticStep(FrameModel(talker, BATCH, LENGTH, idle_rows=True), runner, False, 32).prepare()
        found = {}
        for key in (("talker", BATCH, LENGTH), ("frames", BATCH, CodeVariant(USUAL, USUAL))):
            runner.replays[key]()
            seen.clear()
            runner.replays[key]()
            found[key[0]] = +seen
    layers, predicted = config.talker.num_hidden_layers, config.talker.num_code_groups - 1
    below = config.talker.code_predictor_config.num_hidden_layers
    assert found["talker"] == {"rms_norm": 3 * layers + 1, "cache": layers, "added masks": layers}
    # Its projections write to the cache. Its first two positions are a pair: the norm of the last state takes a copy.
    assert found["frames"] == {
        "rms_norm": (3 * below + 1) * predicted,
        "rms_norm of a part": 1,
        "added masks": below,
        "maxima": config.talker.num_code_groups,  # one finds the most likely code and its logit
    }
