"""VoxCPM2's talker: a stream in company, steps of fixed shapes, precisions, ends, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.families.voxcpm2_talker import (
    load_voxcpm2_talker,
    made_frames,
    some_prompt,
)
from tests.support.families.voxcpm2_whole import make_voxcpm2
from tests.support.pretend_gpu import pretend_gpu
from voice_clone.errors import CheckpointError, InvalidArgument
from voice_clone.families.voxcpm2.audio_vae_config import CONTEXT_FRAMES
from voice_clone.families.voxcpm2.config import load_config
from voice_clone.families.voxcpm2.networks.patch_head import PatchHead, SamplingParameters, Steps
from voice_clone.families.voxcpm2.prompt import TARGET_TOKENS
from voice_clone.families.voxcpm2.talker import Talker, VoxCPM2Talker, load_network, load_talker
from voice_clone.layers.graphs import GraphRunner
from voice_clone.settings import Precision, Settings

pytestmark = pytest.mark.thorough

FRAMES = 6
EIGHT = [  # a prompt and how it is drawn, each another way
    (
        some_prompt(5 + number, (0, 6, 0, 4)[number % 4], (0, 0, 5, 2)[number % 4], number),
        SamplingParameters(number, 1 + number / 4, (4, 30, 10, 7, 20, 6, 11, 10)[number], 1 - number / 20),
    )
    for number in range(8)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voxcpm2(tmp_path_factory.mktemp("voxcpm2") / "checkpoint")


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[Tensor]:
    return made_frames(load_voxcpm2_talker(folder), EIGHT, FRAMES)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_seven_others_change_no_bit(folder: Path, alone: list[Tensor], precision: Precision) -> None:
    """Of other numbers of steps, other guidance, other modes: native code, in which each precision is near the next."""
    talker = load_voxcpm2_talker(folder, precision)
    mine, beside = made_frames(talker, EIGHT, FRAMES), made_frames(talker, EIGHT, FRAMES, together=True)
    for one, other in zip(mine, beside, strict=True):
        assert torch.equal(one, other)
    error = max(float((one - exact)[0].std() / exact[0].std()) for one, exact in zip(mine, alone, strict=True))
    limits = {"fp32": (0, 1e-4), "bf16": (1e-4, 0.1), "int8": (1e-3, 0.2), "int4": (1e-3, 0.5)}
    least, most = limits[precision]
    assert least <= error < most


def test_deterministic_torch_streams_keep_their_bits(folder: Path) -> None:
    talker = load_voxcpm2_talker(folder)
    beside = made_frames(talker, EIGHT, FRAMES, together=True, deterministic=True)
    for one, other in zip(made_frames(talker, EIGHT, FRAMES, deterministic=True), beside, strict=True):
        assert torch.equal(one, other)


def test_steps_of_fixed_shapes_equal_the_others(folder: Path, alone: list[Tensor]) -> None:
    environ = {"CHECKPOINT_DIR": str(folder), "DEVICE": "cuda", "PRECISION": "fp32"}
    with pretend_gpu():
        talker: Talker = load_network(Settings({}, {f"VOICE_CLONE_{name}": value for name, value in environ.items()}))
        talker.stack.prepare(True)
        made = made_frames(talker, EIGHT, FRAMES, together=True, runner=GraphRunner())
    for fixed, exact in zip(made, alone, strict=True):
        assert float((fixed - exact).abs().max()) < 1e-4 * float(exact.std())


def test_the_frame_that_ends_a_speech_is_heard(folder: Path) -> None:
    """From the fourth on; another number of frames is the client's, or the budget's."""
    talker = load_voxcpm2_talker(folder)
    made = [
        made_frames(talker, [(some_prompt(9, seed=seed), SamplingParameters(seed))], 40, endless=False)[0]
        for seed in range(12)
    ]
    lengths = [len(frames) for frames in made]
    assert min(lengths) >= 4 and len(set(lengths)) > 3
    longest = made_frames(talker, [(some_prompt(9, seed=0), SamplingParameters(0))], 40)[0]
    assert torch.equal(made[0], longest[: lengths[0]])


def test_a_row_takes_the_smallest_variant_that_covers_it() -> None:
    wanted = {4: 6, 6: 6, 7: 10, 10: 10, 11: 20, 21: 30, 30: 30}
    for steps, most in wanted.items():
        assert next(each for each in PatchHead.variants if each.covers(Steps(steps))) == Steps(most)


def stage(folder: Path) -> VoxCPM2Talker:
    environ = {"VOICE_CLONE_CHECKPOINT_DIR": str(folder), "VOICE_CLONE_DEVICE": "cpu"}
    return load_talker(Settings({"max_streams": "2", "max_length": "256"}, environ))


def test_frames_that_a_text_is_granted(folder: Path) -> None:
    """Official: 6 for each token and 10 more."""
    made, prompt = stage(folder), some_prompt(9, 4, 5)

    def frames(target: Any, **knobs: int) -> tuple[int, bool]:
        request = made.request({**vars(prompt), TARGET_TOKENS: target}, {"seed": 0, **knobs}, {})
        return request.max_frames, request.budgeted

    tokens = np.array([7], np.int32)
    assert frames(tokens) == (52, True)
    assert frames(np.array([1000], np.int32)) == (made.source.max_length - prompt.length, True)
    assert frames(tokens, max_frames=20) == (20, False)
    assert frames(tokens, max_frames=400) == (52, True)
    for target in (np.array([0], np.int32), np.array([7])):
        with pytest.raises(InvalidArgument):
            frames(target)


def test_plans(folder: Path) -> None:
    made = stage(folder)
    prompt = some_prompt(9, 4, 5)
    tensors = {**vars(prompt), TARGET_TOKENS: np.array([3], np.int32)}
    plan = made.plan(tensors, {"seed": 5, "temperature": 0.5}, {"cfg_value": 1.5, "inference_timesteps": 6})
    assert plan.request.sampling == SamplingParameters(5, 1.5, 6, 0.5)
    assert (plan.request.max_frames, plan.request.budgeted) == (28, True)
    assert np.array_equal(plan.context, prompt.prompt_latents[-CONTEXT_FRAMES:])
    assert not len(made.plan({**tensors, "prompt_latents": prompt.prompt_latents[:0]}, {"seed": 0}, {}).context)
    bad = prompt.reference_latents.copy()
    bad[0, 0] = np.nan
    for wrong in ({"reference_latents": bad}, {"text_ids": np.array([5000], np.int32)}, {"prompt_latents": bad[:, :9]}):
        with pytest.raises(InvalidArgument, match=next(iter(wrong))):
            made.plan({**tensors, **wrong}, {"seed": 0}, {})


def changed(folder: Path, made: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A copy with another config.json."""
    made.mkdir()
    for file in folder.iterdir():
        (made / file.name).symlink_to(file)
    values = json.loads((folder / "config.json").read_text())
    change(values)
    (made / "config.json").unlink()
    (made / "config.json").write_text(json.dumps(values))
    return made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values["lm_config"].update(use_mup=True), "use_mup"),
        (lambda values: values["dit_config"].update(mean_mode=True), "mean_mode"),
        (lambda values: values["dit_config"].update(dit_mean_mode=True), "dit_mean_mode"),
        (lambda values: values.update(residual_lm_no_rope=False), "residual_lm_no_rope"),
        (lambda values: values.update(patch_size=2), "patch_size"),
        (lambda values: values.update(architecture="voxcpm"), "architecture"),
        (lambda values: values["lm_config"]["rope_scaling"].update(short_factor=[1.0] * 7), "short_factor"),
        (lambda values: values["lm_config"]["rope_scaling"].update(type="yarn"), "longrope"),
        (lambda values: values["lm_config"].update(max_position_embeddings=65536), "original_max_position_embeddings"),
        (lambda values: values["lm_config"].pop("hidden_size"), "hidden_size"),
        (lambda values: values["lm_config"].update(num_key_value_heads=3), "num_key_value_heads"),
        (lambda values: values.update(residual_lm_num_layers=0), "residual_lm_num_layers"),
        (lambda values: values["lm_config"].update(vocab_size=104), "vocab_size"),
    ],
)
def test_other_networks_are_refused(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_config(changed(folder, tmp_path / "changed", change))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("stop_head.weight", lambda tensors: tensors.pop("stop_head.weight")),
        ("fsq_layer.in_proj.bias", lambda tensors: tensors.pop("fsq_layer.in_proj.bias")),
        ("lora_A", lambda tensors: tensors.update(lora_A=torch.zeros(1))),
        ("stop_proj.bias", lambda tensors: tensors.update({"stop_proj.bias": torch.zeros(3)})),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    folder: Path, tmp_path: Path, name: str, change: Callable[[dict[str, Tensor]], Any]
) -> None:
    """Official loads them, and leaves random numbers in their places."""
    made = changed(folder, tmp_path / "changed", lambda values: None)
    tensors = load_file(made / "model.safetensors")
    change(tensors)
    (made / "model.safetensors").unlink()
    save_file(tensors, made / "model.safetensors")
    with pytest.raises(CheckpointError, match=name):
        stage(made)


def test_frames_are_encoded_only_where_they_are_read(folder: Path) -> None:
    """A prompt of tokens alone asks the encoder of frames for nothing."""
    talker, rows = load_voxcpm2_talker(folder), []
    encode = talker.stack.encode

    def watched(frames: Tensor) -> Tensor:
        rows.append(len(frames))
        return encode(frames)

    talker.stack.encode = watched
    made_frames(talker, [(some_prompt(5), SamplingParameters(0))], 1)
    assert rows == []
    made_frames(talker, [(some_prompt(5, 4, 3), SamplingParameters(0))], 2)
    assert rows == [7, 1]
