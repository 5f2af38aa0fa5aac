"""Engines side by side: equal ones are equal; a tie is named and passes; what rounding does not explain fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from perf.bench.engine import Ours
from perf.bench.families import FAMILIES
from perf.bench.families.family import Family, code_head
from perf.bench.families.qwen3_tts import Qwen3TTS
from perf.bench.families.voxcpm2 import VoxCPM2
from perf.bench.families.voxtral import Voxtral
from perf.on_gpu import engines, equality
from tests.support.pretend_gpu import FLASH, pretend_gpu
from tools.families.qwen3_tts.checkpoint_maker import make_endless
from tools.families.toolkit import checkpoint_maker
from voice_clone import compute
from voice_clone.array_kinds import in_kind_of
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.layers.graphs import GraphRunner

pytestmark = pytest.mark.thorough

STREAMS, FRAMES, LENGTH = 4, 8, 320
TWINS = 1e-5  # how much the weights of two codes differ, as a share

Change = Callable[[Any], Any]


@pytest.fixture(scope="module", params=FAMILIES.values(), ids=FAMILIES)
def family(request: pytest.FixtureRequest) -> type[Family]:
    found: type[Family] = request.param
    return found


@pytest.fixture(scope="module")
def endless(family: type[Family], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("equal")
    maker = checkpoint_maker(family.name)
    maker.make_checkpoint("tiny", 0, folder / "checkpoint")
    return maker.make_endless(folder / "checkpoint", folder / "endless")


@pytest.fixture(scope="module")
def with_ties(endless_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every second code of codebook 0 is almost as likely as the one before it."""
    folder = make_endless(endless_checkpoint, tmp_path_factory.mktemp("ties") / "endless")
    tensors = load_file(folder / "model.safetensors")
    head = tensors["talker.codec_head.weight"].float()
    half = len(head) // 2  # the end of speech is behind
    head[1:half:2] = head[0 : half - 1 : 2] * (1 - TWINS)
    tensors["talker.codec_head.weight"] = head
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def pair(family: type[Family], endless: Path) -> tuple[Ours[Any], Ours[Any]]:
    return (
        Ours(family, endless, "fp32", max_length=LENGTH),
        Ours(family, endless, "fp32", slots=STREAMS, max_length=LENGTH),
    )


def change(of: Any, part: str, how: Change) -> None:
    exact = getattr(of, part)
    setattr(of, part, lambda *given: how(exact(*given)))


def change_logits(engine: Ours[Any], how: Change) -> None:
    """Of codebook 0; where there are none, what the frames are made of."""
    if isinstance(engine.model, VoxCPM2):
        change(engine.model.talker.stack, "parts", lambda parts: tuple(map(how, parts)))
    elif isinstance(engine.model, Voxtral):
        change(engine.model.talker.head, "semantic", how)
    else:
        change(code_head(engine.model.talker), "logits", how)


def noise(size: float) -> Change:
    """In standard deviations of the logits."""
    generator = torch.Generator().manual_seed(0)
    return lambda logits: (
        logits
        + in_kind_of(logits, (size * float(logits.std()) * torch.randn(logits.shape, generator=generator)).numpy())
    )


def test_equal_nets(pair: tuple[Ours[Any], Ours[Any]]) -> None:
    found = equality.compare(*pair, STREAMS, FRAMES)
    assert found["equal"] == STREAMS and found["tied"] == found["parted"] == 0 and found["codes"] == 1
    assert engines.as_good_as_equal(found, "fp32")


def test_streams_do_not_speak_the_same(pair: tuple[Ours[Any], Ours[Any]]) -> None:
    prompts = [pair[0].model.a_prompt(stream) for stream in range(64)]
    names = [
        name
        for name in ("reference_codes", "codec_codes", "reference_latents", "speaker_embedding")
        if hasattr(prompts[0], name)
    ]
    assert len(names) == 1 + pair[0].model.embeddings
    for name in names:
        assert len({getattr(prompt, name).tobytes() for prompt in prompts}) == 64


def test_swapped_rows_do_not_pass(pair: tuple[Ours[Any], Ours[Any]]) -> None:
    change_logits(pair[1], lambda logits: logits[[1, 0, *range(2, len(logits))]])
    found = equality.compare(*pair, STREAMS, FRAMES)
    assert (found["equal"], found["tied"], found["parted"]) == (STREAMS - 2, 0, 2)
    assert found["worst_margin"] > 0.1 and not engines.as_good_as_equal(found, "fp32")


def test_a_tie_is_named_and_passes(with_ties: Path) -> None:
    reference, tested = (Ours(Qwen3TTS, with_ties, "fp32", max_length=LENGTH) for _ in range(2))
    change_logits(tested, noise(1e-4))
    found = equality.compare(reference, tested, STREAMS, FRAMES)
    assert found["tied"] > 0 and found["parted"] == 0 and found["equal"] == STREAMS - found["tied"]
    assert 0 < found["worst_margin"] < Qwen3TTS.tie
    assert {each["book"] for each in found["differences"]} == {0}
    assert engines.as_good_as_equal(found, "fp32")
    assert f"{found['tied']} parted at a tie, 0 by more" in equality.counts(found)


def test_more_than_rounding_does_not_pass(with_ties: Path) -> None:
    reference, tested = (Ours(Qwen3TTS, with_ties, "fp32", max_length=LENGTH) for _ in range(2))
    change_logits(tested, noise(0.5))
    found = equality.compare(reference, tested, STREAMS, FRAMES)
    assert found["parted"] > 0 and found["worst_margin"] > 10 * Qwen3TTS.tie
    assert not engines.as_good_as_equal(found, "fp32")


def test_a_fault_in_another_codebook_does_not_pass(pair: tuple[Ours[Any], Ours[Any]]) -> None:
    """The margin is that of the codebook that differs, by what it was chosen from."""
    model = pair[1].model
    limits = np.broadcast_to(model.form.limits or 1 << 30, model.form.payload.width)

    def ninth_differs(codes: torch.Tensor) -> torch.Tensor:
        other = codes.clone()
        other[2, 9] = (other[2, 9] + 1) % limits[9]
        return other

    if isinstance(model, (Voxtral, VoxCPM2)):
        change(model.talker.head, "make", lambda made: made._replace(payload=ninth_differs(made.payload)))
    else:
        change(code_head(model.talker).predictor, "complete", lambda made: (ninth_differs(made[0]), made[1]))
    found = equality.compare(*pair, STREAMS, FRAMES)
    [difference] = found["differences"]
    assert (difference["stream"], difference["frame"], difference["book"]) == (2, 0, 9)
    assert difference["margin"] > Qwen3TTS.tie and found["parted"] == 1


def test_values_that_are_not_finite_do_not_pass(pair: tuple[Ours[Any], Ours[Any]]) -> None:
    change_logits(pair[1], lambda logits: logits / 0)
    found = equality.compare(*pair, STREAMS, FRAMES)
    assert found["parted"] == STREAMS and not engines.as_good_as_equal(found, "fp32")
    assert [each["margin"] for each in found["differences"]] == [None] * STREAMS


def test_the_margin_after_a_past(pair: tuple[Ours[Any], Ours[Any]]) -> None:
    """The same as of streams side by side."""
    change_logits(pair[1], lambda logits: logits.flip(0))  # each stream gets the other's codebook 0
    first = equality.compare(*pair, 1 + 1, FRAMES)["differences"][0]
    reference, stream = pair[0], first["stream"]
    prompts = [reference.model.a_prompt(each) for each in range(2)]
    generator, made = reference.generator(2), []
    for each, prompt in enumerate(prompts):
        generator.start(each, TalkerRequest(prompt, reference.model.sampling(drawn=False), FRAMES))
    for _ in range(first["frame"] + 1):
        made.append([frame.payload for frame in generator.step(range(2))])
    past = np.stack([codes[stream] for codes in made])
    margin = equality.margin_after(reference, prompts[stream], past, made[-1][1 - stream])
    assert first["book"] == 0 and margin == pytest.approx(first["margin"], rel=1e-3)


def test_a_gpu_against_a_cpu(family: type[Family], endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensors of both devices meet; margins are found on either side."""
    monkeypatch.setattr(compute, "prepare", lambda settings: None)  # it asks CUDA for more than is pretended
    cpu = Ours(family, endless, "fp32", max_length=LENGTH)
    with pretend_gpu():
        gpu = Ours(family, endless, "fp32", "cuda", max_length=LENGTH)
        found = equality.compare(cpu, gpu, 3, 4)
        assert found["equal"] == 3 and engines.as_good_as_equal(found, "fp32")
        in_torch = isinstance(cpu.model.decoder, torch.nn.Module)  # on the CPU, too, so that it makes the same
        assert (found["waveform"] == 0) == in_torch
        change_logits(cpu, lambda logits: logits[[*reversed(range(len(logits)))]])  # of three rows, two are swapped
        for reference, tested in ((cpu, gpu), (gpu, cpu)):
            assert equality.compare(reference, tested, 3, 2)["parted"] == 2


def test_own_lengths_in_half_precision_on_a_gpu(
    family: type[Family], endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against eager steps under masks, and only where that is asked for."""
    monkeypatch.setattr(compute, "prepare", lambda settings: None)
    monkeypatch.setattr(GraphRunner, "on", lambda device: GraphRunner())
    with pretend_gpu() as gpu:
        eager = Ours(family, endless, "bf16", "cuda", max_length=LENGTH)
        for masked in (False, True):
            fixed = Ours(family, endless, "bf16", "cuda", slots=2, max_length=LENGTH, masked=masked)
            gpu.launches.clear()
            found = equality.compare(eager, fixed, 2, 3)
            assert engines.as_good_as_equal(found, "bf16")
            assert bool(gpu.launches[str(FLASH)]) == fixed.model.talker.stack.varlen == (not masked)


def test_steps_of_fixed_shapes_on_a_gpu(family: type[Family], endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `engines` does there, but for the recording: compared, then spoken as served."""
    monkeypatch.setattr(compute, "prepare", lambda settings: None)
    monkeypatch.setattr(GraphRunner, "on", lambda device: GraphRunner())
    with pretend_gpu():
        eager = Ours(family, endless, "fp32", "cuda", max_length=LENGTH)
        fixed = Ours(family, endless, "fp32", "cuda", slots=2, max_length=LENGTH)
        found = equality.compare(eager, fixed, 2, 3)
        assert found["equal"] == 2 and engines.as_good_as_equal(found, "fp32")
        prompt = eager.model.a_prompt()
        assert fixed.generator(2).ahead and all(runner.replays for runner in fixed.runners)
        codes = [engine.speak(prompt, 3, 2, served=True)[0] for engine in (eager, fixed)]
        assert codes[0].shape == (3, eager.model.form.payload.width) and not eager.model.parted(*codes).any()
