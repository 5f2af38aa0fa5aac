"""VoxCPM2's talker against voxcpm 2.0.3: random weights, fp32, our noise, all four modes.

A hidden state is rounded. Near the middle between two levels the last bits of a sum decide, and all that follows is
other: the streams that are compared have no such state, which a test looks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.families.voxcpm2_talker import latents, load_voxcpm2_talker, made_frames
from tests.support.families.voxcpm2_whole import make_voxcpm2
from tests.support.oracles.voxcpm import official_frames, official_ids, official_model
from tests.support.pretend_gpu import pretend_gpu
from voice_clone.families.voxcpm2.networks.patch_head import SamplingParameters
from voice_clone.families.voxcpm2.networks.talker import Quantizer
from voice_clone.families.voxcpm2.prompt import Prompt
from voice_clone.families.voxcpm2.talker import Talker, load_network
from voice_clone.layers.graphs import GraphRunner
from voice_clone.settings import Settings

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

TEXT, SAID = "Good morning, 你好 friend. How are you?", "Well then, we begin. "
FRAMES = 20
TOLERANCE = 1e-4  # of the frames' spread
TIE = 1e-5  # how near a number may lie to the middle between two levels
MODES = {"zero_shot": (0, 0), "reference": (7, 0), "continuation": (0, 5), "ref_continuation": (7, 5)}
SEEDS = (0, 1, 2)
OPTIONS: dict[str, dict[str, Any]] = {
    "zero_shot": {},
    "reference": {"inference_timesteps": 6, "cfg_value": 1.5},
    "continuation": {"inference_timesteps": 17, "cfg_value": 1.0},
    "ref_continuation": {"inference_timesteps": 30, "cfg_value": 3.0},
}


@pytest.fixture(scope="module", params=[pytest.param(seed, marks=pytest.mark.long if seed else []) for seed in SEEDS])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voxcpm2(tmp_path_factory.mktemp("voxcpm2") / "checkpoint", seed=request.param)


@pytest.fixture(scope="module")
def official(checkpoint: Path) -> Any:
    return official_model(checkpoint)


@pytest.fixture(scope="module")
def expected(official: Any) -> dict[str, tuple[Prompt, SamplingParameters, Tensor]]:
    """Of each mode the prompt, how it is drawn, and the official frames."""
    found = {}
    for number, (mode, (reference, before)) in enumerate(MODES.items()):
        ids = official_ids(official, SAID + TEXT if before else TEXT)
        prompt = Prompt(ids, latents(reference, number), latents(before, number + 9))
        sampling = SamplingParameters(seed=number + 40, **OPTIONS[mode])
        frames = official_frames(official, TEXT, prompt, SAID, sampling.seed, FRAMES, **OPTIONS[mode])
        found[mode] = prompt, sampling, frames
    return found


def close(ours: Tensor, theirs: Tensor) -> bool:
    return ours.shape == theirs.shape and float((ours - theirs).abs().max()) < TOLERANCE * float(theirs.std())


def test_frames_equal_the_official_ones(
    checkpoint: Path, expected: dict[str, tuple[Prompt, SamplingParameters, Tensor]]
) -> None:
    """Alone and beside streams of other numbers of steps and other guidance; in torch and native."""
    given = [(prompt, sampling) for prompt, sampling, _ in expected.values()]
    for native in (None, "fp32"):
        talker = load_voxcpm2_talker(checkpoint, native)
        for together in (False, True):
            made = made_frames(talker, given, FRAMES, together)
            for mode, ours in zip(expected, made, strict=True):
                assert close(ours, expected[mode][2]), f"{mode}, native {native}, together {together}"


@pytest.mark.parametrize("graphs", [False, True])
def test_frames_on_a_pretended_gpu_equal_the_official_ones(
    checkpoint: Path, expected: dict[str, tuple[Prompt, SamplingParameters, Tensor]], graphs: bool
) -> None:
    given = [(prompt, sampling) for prompt, sampling, _ in expected.values()]
    environ = {"CHECKPOINT_DIR": str(checkpoint), "DEVICE": "cuda", "PRECISION": "fp32"}
    with pretend_gpu():
        talker: Talker = load_network(Settings({}, {f"VOICE_CLONE_{name}": value for name, value in environ.items()}))
        talker.stack.prepare(graphs)
        made = made_frames(talker, given, FRAMES, True, GraphRunner() if graphs else None)
    for mode, ours in zip(expected, made, strict=True):
        assert close(ours, expected[mode][2]), mode


def test_no_state_lies_between_two_levels(
    checkpoint: Path, expected: dict[str, tuple[Prompt, SamplingParameters, Tensor]]
) -> None:
    """Else the comparisons above would depend on last bits. And what is compared depends on its prompt."""
    nearest: list[float] = []

    def watch(self: Quantizer, hidden: Tensor) -> Tensor:
        levels = torch.tanh(self.in_proj(hidden)) * self.scale
        nearest.append(float(((levels - levels.floor()) - 0.5).abs().min()))
        return original(self, hidden)

    original = Quantizer.forward
    talker = load_voxcpm2_talker(checkpoint)
    with mock.patch.object(Quantizer, "forward", watch):
        made_frames(talker, [(prompt, sampling) for prompt, sampling, _ in expected.values()], FRAMES)
    assert min(nearest) > TIE
    prompt, sampling, frames = expected["zero_shot"]
    other = Prompt(prompt.text_ids[::-1].copy(), prompt.reference_latents, prompt.prompt_latents)
    [changed] = made_frames(talker, [(other, sampling)], FRAMES)
    assert float((changed - frames).std()) > 0.05 * float(frames.std())


def test_speech_ends_where_the_official_does(tmp_path: Path) -> None:
    """With the frame that ends it, from the fourth on; or not before the limit."""
    folder = make_voxcpm2(tmp_path / "checkpoint")
    official, talker, lengths = official_model(folder), load_voxcpm2_talker(folder), []
    ids = official_ids(official, TEXT)
    for seed in range(8):
        theirs = official_frames(official, TEXT, Prompt(ids, latents(seed), latents(0)), "", seed, 40, stops=True)
        [ours] = made_frames(
            talker, [(Prompt(ids, latents(seed), latents(0)), SamplingParameters(seed))], 40, endless=False
        )
        assert close(ours, theirs), f"seed {seed}: {len(ours)} frames, official {len(theirs)}"
        lengths.append(len(ours))
    assert min(lengths) >= 4 and len(set(lengths)) > 3


@pytest.mark.long
def test_released_widths(tmp_path: Path) -> None:
    """Few layers of the released widths."""
    folder = make_voxcpm2(tmp_path / "checkpoint", shape="2b-2")
    official = official_model(folder)
    prompt = Prompt(official_ids(official, SAID + TEXT), latents(7), latents(5))
    theirs = official_frames(official, TEXT, prompt, SAID, 3, 12)
    del official
    for native in (None, "fp32"):
        talker = load_voxcpm2_talker(folder, native)
        [ours] = made_frames(talker, [(prompt, SamplingParameters(3))], 12)
        assert close(ours, theirs), native
        del talker
    assert np.isfinite(theirs.numpy()).all()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Of torch: the official networks are small here."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
