"""llm.pt, flow.pt and hift.pt to safetensors: what is accepted, and that a hostile pickle runs nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.families.checkpoint_faults import Trap
from tests.support.families.cosyvoice3 import make_cosyvoice3
from voice_clone.errors import CheckpointError
from voice_clone.families.cosyvoice3.family import CARD
from voice_clone_server.convert_pickles import main
from voice_clone_server.families.cards import check_checkpoint
from voice_clone_server.families.cosyvoice3.fixed_noise import fixed_noise
from voice_clone_server.families.cosyvoice3.pickle_converter import convert

check = partial(check_checkpoint, CARD, "voice_clone.families.cosyvoice3")

pytestmark = pytest.mark.thorough

NAMES = ("llm", "flow", "hift")
TIED, ROTARY = "llm.model.lm_head.weight", "decoder.estimator.rotary_embed.inv_freq"
FLOW_NOISE, SOURCE_NOISE = "decoder.rand_noise", "m_source.l_sin_gen.sine_waves"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cosyvoice3(tmp_path_factory.mktemp("cosyvoice3") / "checkpoint")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """The same checkpoint, not converted yet; its pickles are copies."""
    made = tmp_path / "checkpoint"
    made.mkdir()
    for file in whole.iterdir():
        if file.suffix == ".pt":
            (made / file.name).write_bytes(file.read_bytes())
        elif file.suffix != ".safetensors":
            (made / file.name).symlink_to(file)
    return made


def tensors(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / f"{name}.pt", weights_only=True)
    return found


def change(folder: Path, name: str, **changed: Any) -> None:
    """Other tensors under these names, dots as underscores; None: none."""
    known = tensors(folder, name)
    for key, value in changed.items():
        [full] = [each for each in known if each.replace(".", "_") == key] or [key]
        known.pop(full, None)
        if value is not None:
            known[full] = value
    torch.save(known, folder / f"{name}.pt")


def test_three_files_become_three(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.split() == [str(folder / f"{name}.safetensors") for name in NAMES]
    check(folder)
    for name in NAMES:
        made, expected = load_file(folder / f"{name}.safetensors"), tensors(folder, name)
        made.pop(FLOW_NOISE, None)
        made.pop(SOURCE_NOISE, None)
        expected = {
            each.removeprefix("generator."): tensor for each, tensor in expected.items() if each not in (TIED, ROTARY)
        }
        assert made.keys() == expected.keys() and all(torch.equal(made[each], expected[each]) for each in made)


def test_the_fixed_noise_is_the_same_in_every_checkpoint(whole: Path) -> None:
    """And that of a network which is built behind official's seed."""
    before = torch.get_rng_state()
    fixed_noise()
    assert torch.equal(before, torch.get_rng_state()), "the numbers of other callers stay"
    flow = load_file(whole / "flow.safetensors")[FLOW_NOISE]
    source = load_file(whole / "hift.safetensors")[SOURCE_NOISE]
    torch.manual_seed(0)
    assert torch.equal(flow, torch.randn(1, 80, 15000))
    torch.set_rng_state(before)
    assert source.shape == (1, 60 * 24000, 9) and float(source.min()) >= 0 and float(source.max()) < 1
    assert abs(float(source.mean()) - 0.5) < 1e-3


def test_any_kind_of_float_is_kept(folder: Path) -> None:
    for name in NAMES:
        torch.save({each: tensor.half() for each, tensor in tensors(folder, name).items()}, folder / f"{name}.pt")
    for file in convert(folder):
        kinds = {tensor.dtype for each, tensor in load_file(file).items() if each not in (FLOW_NOISE, SOURCE_NOISE)}
        assert kinds == {torch.float16}


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_pickle_is_refused_and_runs_nothing(folder: Path, tmp_path: Path, name: str) -> None:
    change(folder, name, evil=Trap(tmp_path / "sprung"))
    with pytest.raises(CheckpointError, match=f"{name}.pt: refused, it holds more than tensors; nothing of it was run"):
        convert(folder)
    assert (
        not (tmp_path / "sprung").exists() and not [*folder.glob("*.safetensors")] and not [*folder.glob("*.partial")]
    )


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("llm", {"llm_decoder_weight": None}, "llm.pt: refused, tensor llm_decoder.weight is missing"),
        ("llm", {"strange": torch.zeros(3)}, "llm.pt: refused, it holds 'strange', which no llm of this family has"),
        (
            "llm",
            {"speech_embedding_weight": torch.zeros(6561, 64)},
            r"speech_embedding.weight: shape \(6561, 64\), expe",
        ),
        ("flow", {"input_embedding_weight": torch.zeros(6561, 81)}, r"input_embedding.weight: shape \(6561, 81\)"),
        ("flow", {"spk_embed_affine_layer_bias": None}, "flow.pt: refused, tensor spk_embed_affine_layer.bias is miss"),
        (
            "flow",
            {"decoder_estimator_input_embed_proj_weight": None},
            "decoder.estimator.input_embed.proj.weight is mi",
        ),
        ("hift", {"strange": torch.zeros(3)}, "hift.pt: refused, it holds 'strange', which no hift of this family has"),
        ("hift", {"conv_pre.bias": torch.zeros(32)}, "hift.pt: refused, 'conv_pre.bias' is there twice"),
        ("hift", {"generator_f0_predictor_classifier_weight": 3.0}, "classifier.weight' is no plain tensor"),
    ],
)
def test_what_is_refused(folder: Path, name: str, changed: dict[str, Any], message: str) -> None:
    change(folder, name, **changed)
    with pytest.raises(CheckpointError, match=message):
        convert(folder)
    assert not [*folder.glob("*.safetensors")]
