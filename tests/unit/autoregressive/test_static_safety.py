"""Steps of fixed shapes, of each family: nothing in them that a CUDA graph could not hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.support.families.fish import load_fish_talker, make_fish
from tests.support.families.graph_safety import NoSynchronisation
from tests.support.families.talkers import make_talker, read_config
from tests.support.families.voxtral import load_voxtral_talker, make_voxtral
from voice_clone.autoregressive import static_step
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.static_step import StaticStep
from voice_clone.autoregressive.steps import FrameModel
from voice_clone.families.fish_speech.checkpoint import Checkpoint
from voice_clone.families.fish_speech.prompt import Tokenizer
from voice_clone.families.fish_speech.talker_network import TalkerNetwork
from voice_clone.families.qwen3_tts.networks.talker import Talker as QwenTalker
from voice_clone.families.voxtral.checkpoint import Checkpoint as VoxtralCheckpoint
from voice_clone.families.voxtral.talker_network import TalkerNetwork as VoxtralNetwork
from voice_clone.layers.graphs import GraphRunner

pytestmark = pytest.mark.thorough

MAX_LENGTH = 96


def shapes(talker: Any) -> int:
    """Batches of 1, 2 and all: of 6 lengths, and of each kind of draw; steps that read prompts."""
    return 3 * (6 + len(talker.head.variants)) + 2 * 3 * 4


@dataclass(frozen=True)
class Family:
    talker: Any  # of a small checkpoint, in torch
    make: Callable[[], Any]  # one of the same shape, without weights


@pytest.fixture(scope="module", params=["qwen3_tts", "fish_speech", "voxtral"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    folder = tmp_path_factory.mktemp("checkpoint") / "folder"
    if request.param == "fish_speech":
        checkpoint = Checkpoint(make_fish(folder))
        end = Tokenizer(folder, checkpoint.config).end_token
        return Family(load_fish_talker(checkpoint), lambda: TalkerNetwork(checkpoint.config, end))
    if request.param == "voxtral":
        voxtral = VoxtralCheckpoint(make_voxtral(folder))
        return Family(load_voxtral_talker(voxtral), lambda: VoxtralNetwork(voxtral.config))
    config = read_config("projected", folder)
    return Family(make_talker(config, 0), lambda: QwenTalker(config))


@pytest.fixture(autouse=True)
def short_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths of 16, 24, 32, 48, 64 and 96 positions."""
    monkeypatch.setattr(static_step, "LEAST_LENGTH", 16)


def test_no_step_waits_for_the_device(family: Family) -> None:
    runner = GraphRunner()
    Generator(family.talker, 3, MAX_LENGTH, runner=runner).prepare()
    assert len(runner.replays) == shapes(family.talker)
    with torch.inference_mode():
        for step in runner.replays.values():
            step()  # as before a recording: what is made at the first use is there
            with NoSynchronisation() as mode:
                step()
            assert mode.kernels > 50


@pytest.mark.parametrize(
    "wait",
    [
        lambda: torch.ones(2)[0].item(),
        lambda: torch.ones(2)[torch.ones(2) > 0],
        lambda: torch.ones(2) + torch.tensor([1.0, 2.0]),
        lambda: torch.ones(2) if torch.ones(1) else None,
    ],
)
def test_the_watch_sees_what_waits(wait: Callable[[], object]) -> None:
    with pytest.raises(AssertionError, match="in a step"), torch.inference_mode(), NoSynchronisation():
        wait()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_need_no_values(family: Family, dtype: torch.dtype) -> None:
    """On a device without values: whatever wants one raises, and so does what mixes it with the CPU or mixes dtypes."""
    with torch.device("meta"):
        talker = family.make().to(dtype).requires_grad_(False)
    talker = talker.talker() if hasattr(talker, "talker") else talker
    runner = GraphRunner()
    model = FrameModel(talker, 4, MAX_LENGTH, idle_rows=True)
    with torch.inference_mode():
        StaticStep(model, runner, deterministic=False, prefill_chunk=256).prepare()
        for step in runner.replays.values():
            step()
    assert len(runner.replays) == shapes(talker)
