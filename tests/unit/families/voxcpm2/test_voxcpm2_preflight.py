"""What is found wrong with a checkpoint folder of VoxCPM2 before a server starts."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.support.families.checkpoint_faults import Fault, configured, cut, without
from tests.support.families.voxcpm2_whole import make_voxcpm2
from tools.families.cards import check_checkpoint
from voice_clone.errors import CheckpointError
from voice_clone.families.voxcpm2.family import CARD

check = partial(check_checkpoint, CARD, "voice_clone.families.voxcpm2")

pytestmark = pytest.mark.thorough

CASES: dict[str, tuple[Fault, str]] = {
    "no configuration": (without("config.json"), r"config\.json: the file is missing"),
    "VoxCPM 1": (configured("", architecture="voxcpm"), "architecture is 'voxcpm', not 'voxcpm2'"),
    "scaled by muP": (configured("lm_config", use_mup=True), r"lm_config\.use_mup is True; only False is known"),
    "mean velocity": (configured("dit_config", mean_mode=True), r"dit_config\.mean_mode is True"),
    "mean velocity as official reads it": (configured("dit_config", dit_mean_mode=True), r"dit_mean_mode is True"),
    "RoPE in the residual model": (configured("", residual_lm_no_rope=False), "residual_lm_no_rope is False"),
    "another AudioVAE": (configured("audio_vae_config", depthwise=False), "depthwise is False; only True is known"),
    "no tokenizer": (without("tokenizer.json"), r"tokenizer\.json: the file is missing"),
    "no weights": (without("model.safetensors"), r"model\.safetensors: the file is missing"),
    "half of the weights": (cut("model.safetensors", 100_000), r"model\.safetensors: not a whole safetensors file"),
    "not converted": (without("audiovae.safetensors"), r"audiovae\.pth is not converted yet; run once: tools/convert"),
    "no AudioVAE": (without("audiovae.safetensors", "audiovae.pth"), r"audiovae\.safetensors: the file is missing"),
    "half an AudioVAE": (cut("audiovae.safetensors", 100_000), r"audiovae\.safetensors: not a whole safetensors file"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voxcpm2(tmp_path_factory.mktemp("voxcpm2") / "checkpoint")


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong(whole: Path, tmp_path: Path, case: str) -> None:
    folder = shutil.copytree(whole, tmp_path / "checkpoint")
    check(folder)
    change, message = CASES[case]
    change(folder)
    with pytest.raises(CheckpointError, match=message):
        check(folder)
