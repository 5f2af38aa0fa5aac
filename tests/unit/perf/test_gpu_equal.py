"""perf/gpu_equal: equal nets are equal; a tie is told and passes; what rounding does not explain fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from perf import gpu_engines, gpu_equal
from perf.engines import Ours
from perf.families.qwen3_tts import Qwen3TTS
from tests.support.factories import CheckpointFactory
from tests.support.pretend_gpu import pretend_gpu
from tools.families.qwen3_tts.checkpoint_maker import make_endless
from voice_clone import compute
from voice_clone.autoregressive.talker import TalkerRequest

STREAMS, FRAMES = 4, 8
TWINS = 1e-5  # how much the weights of two codes differ, as a share

Change = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def endless(checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_endless(checkpoint_folder("tiny", 0), tmp_path_factory.mktemp("equal") / "endless")


@pytest.fixture(scope="module")
def with_ties(endless: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every second code of codebook 0 is almost as likely as the one before it."""
    folder = make_endless(endless, tmp_path_factory.mktemp("ties") / "endless")
    tensors = load_file(folder / "model.safetensors")
    head = tensors["talker.codec_head.weight"].float()
    half = len(head) // 2  # the end of speech is behind
    head[1:half:2] = head[0 : half - 1 : 2] * (1 - TWINS)
    tensors["talker.codec_head.weight"] = head
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def pair(endless: Path) -> Iterator[tuple[Ours[Qwen3TTS], Ours[Qwen3TTS]]]:
    yield (
        Ours(Qwen3TTS, endless, "fp32", max_length=256),
        Ours(Qwen3TTS, endless, "fp32", slots=STREAMS, max_length=256),
    )


def change(engine: Ours[Qwen3TTS], part: str, how: Change) -> None:
    exact = getattr(engine.model.native, part)
    setattr(engine.model.native, part, lambda *given: how(exact(*given)))


def noise(size: float) -> Change:
    """In standard deviations of the logits."""
    generator = torch.Generator().manual_seed(0)
    return lambda logits: logits + size * logits.std() * torch.randn(logits.shape, generator=generator)


def test_equal_nets(pair: tuple[Ours[Qwen3TTS], Ours[Qwen3TTS]]) -> None:
    found = gpu_equal.compare(*pair, STREAMS, FRAMES)
    assert found["equal"] == STREAMS and found["tied"] == found["parted"] == 0 and found["codes"] == 1
    assert gpu_engines.as_good_as_equal(found, "fp32")


def test_streams_do_not_speak_the_same(pair: tuple[Ours[Qwen3TTS], Ours[Qwen3TTS]]) -> None:
    prompts = [pair[0].model.a_prompt(stream) for stream in range(64)]
    assert len({prompt.reference_codes.tobytes() for prompt in prompts}) == 64
    assert len({prompt.speaker_embedding.tobytes() for prompt in prompts}) == 64


def test_swapped_rows_do_not_pass(pair: tuple[Ours[Qwen3TTS], Ours[Qwen3TTS]]) -> None:
    change(pair[1], "head", lambda logits: logits[[1, 0, *range(2, len(logits))]])
    found = gpu_equal.compare(*pair, STREAMS, FRAMES)
    assert (found["equal"], found["tied"], found["parted"]) == (STREAMS - 2, 0, 2)
    assert found["worst_margin"] > 0.1 and not gpu_engines.as_good_as_equal(found, "fp32")


def test_a_tie_is_told_and_passes(with_ties: Path) -> None:
    reference, tested = (Ours(Qwen3TTS, with_ties, "fp32", max_length=256) for _ in range(2))
    change(tested, "head", noise(1e-4))
    found = gpu_equal.compare(reference, tested, STREAMS, FRAMES)
    assert found["tied"] > 0 and found["parted"] == 0 and found["equal"] == STREAMS - found["tied"]
    assert 0 < found["worst_margin"] < Qwen3TTS.tie
    assert {each["book"] for each in found["differences"]} == {0}
    assert gpu_engines.as_good_as_equal(found, "fp32")
    assert f"{found['tied']} parted at a tie, 0 by more" in gpu_equal.told(found)


def test_more_than_rounding_does_not_pass(with_ties: Path) -> None:
    reference, tested = (Ours(Qwen3TTS, with_ties, "fp32", max_length=256) for _ in range(2))
    change(tested, "head", noise(0.5))
    found = gpu_equal.compare(reference, tested, STREAMS, FRAMES)
    assert found["parted"] > 0 and found["worst_margin"] > 10 * Qwen3TTS.tie
    assert not gpu_engines.as_good_as_equal(found, "fp32")


def test_a_fault_of_the_code_predictor_does_not_pass(pair: tuple[Ours[Qwen3TTS], Ours[Qwen3TTS]]) -> None:
    """The margin is that of the codebook that differs, by its own logits."""

    def last_differs(codes: torch.Tensor) -> torch.Tensor:
        other = codes.clone()
        other[2, 9] = (other[2, 9] + 1) % 32
        return other

    change(pair[1], "complete", last_differs)
    found = gpu_equal.compare(*pair, STREAMS, FRAMES)
    [difference] = found["differences"]
    assert (difference["stream"], difference["frame"], difference["book"]) == (2, 0, 9)
    assert difference["margin"] > Qwen3TTS.tie and found["parted"] == 1


def test_values_that_are_not_finite_do_not_pass(pair: tuple[Ours[Qwen3TTS], Ours[Qwen3TTS]]) -> None:
    change(pair[1], "head", lambda logits: logits / 0)
    found = gpu_equal.compare(*pair, STREAMS, FRAMES)
    assert found["parted"] == STREAMS and not gpu_engines.as_good_as_equal(found, "fp32")
    assert [each["margin"] for each in found["differences"]] == [None] * STREAMS


def test_the_margin_after_a_past(pair: tuple[Ours[Qwen3TTS], Ours[Qwen3TTS]]) -> None:
    """The same as of streams side by side, and no margin over itself."""
    change(pair[1], "head", lambda logits: logits.flip(0))
    found = gpu_equal.compare(*pair, 1 + 1, 1)
    reference = pair[0]
    codes = reference.generator(2)
    prompts = [reference.model.a_prompt(stream) for stream in range(2)]
    for stream, prompt in enumerate(prompts):
        codes.start(stream, TalkerRequest(prompt, Qwen3TTS.sampling(drawn=False), 2))
    made = [frame.payload for frame in codes.step(range(2))]
    assert made[0] is not None and made[1] is not None
    margin = gpu_equal.margin_after(reference, prompts[0], made[0][None], made[1])
    assert margin == pytest.approx(found["differences"][0]["margin"], rel=1e-3)


def test_a_gpu_against_a_cpu(endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensors of both devices meet; margins are found on either side."""
    monkeypatch.setattr(compute, "prepare", lambda settings: None)  # it asks CUDA for more than is pretended
    cpu = Ours(Qwen3TTS, endless, "fp32", max_length=256)
    with pretend_gpu():
        gpu = Ours(Qwen3TTS, endless, "fp32", "cuda", max_length=256)
        found = gpu_equal.compare(cpu, gpu, 3, 4)
        assert found["equal"] == 3 and found["waveform"] > 0 and gpu_engines.as_good_as_equal(found, "fp32")
        change(cpu, "head", lambda logits: logits.flip(0))  # of three rows, two are swapped
        for reference, tested in ((cpu, gpu), (gpu, cpu)):
            assert gpu_equal.compare(reference, tested, 3, 2)["parted"] == 2
