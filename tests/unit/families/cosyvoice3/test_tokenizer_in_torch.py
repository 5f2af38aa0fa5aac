"""The speech tokenizer in torch, by the weights of its ONNX file: the tokens of ONNX Runtime, or a clear error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from tests.support.families.cosyvoice3 import make_voice_encoder
from tests.support.families.speech_like import speech_like
from tests.support.pretend_gpu import pretend_gpu
from voice_clone.errors import CheckpointError, Unsupported
from voice_clone.families.cosyvoice3 import encoder as encoder_stages
from voice_clone.families.cosyvoice3.encoder import TokenStage, load_tokens
from voice_clone.families.cosyvoice3.tokenizer_graph import TorchGraph
from voice_clone.settings import Settings

pytestmark = pytest.mark.thorough

FILE = "speech_tokenizer_v3.onnx"
LENGTHS = (1600, 16000, 16001, 16639, 64160, 480000)  # samples; the last is the longest clip


def load(folder: Path, device: str, **more: str) -> TokenStage:
    given = {"CHECKPOINT_DIR": str(folder), "DEVICE": device, **more}
    return load_tokens(Settings({}, {f"VOICE_CLONE_{name}": value for name, value in given.items()}, "cosyvoice3"))


def tokens(stage: TokenStage, samples: int) -> NDArray[np.uint16]:
    made: NDArray[np.uint16] = stage.encode(speech_like(samples, 16000).numpy(), None)["speech_tokens"]
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voice_encoder(tmp_path_factory.mktemp("cosyvoice3") / "checkpoint")


@pytest.mark.parametrize("seed", [0, 1])
def test_the_tokens_of_onnx_runtime(tmp_path: Path, seed: int) -> None:
    folder = make_voice_encoder(tmp_path / "checkpoint", seed=seed)
    runtime = load(folder, "cpu")
    in_torch = TokenStage(TorchGraph(folder / FILE, torch.device("cpu")), "")
    seen = []
    for samples in LENGTHS:
        seen.append(tokens(runtime, samples))
        np.testing.assert_array_equal(tokens(in_torch, samples), seen[-1])
    assert len(np.unique(np.concatenate(seen))) > 20  # not one token again and again


def test_a_gpu_without_its_onnx_runtime_computes_them(folder: Path) -> None:
    """One wait a clip. Voices do not depend on what computes them."""
    runtime = load(folder, "cpu")
    with pretend_gpu() as gpu:
        in_torch = load(folder, "cuda")
        gpu.launches.clear()
        gpu.waits = 0
        got = tokens(in_torch, 64160)
        assert sum(gpu.launches.values()) > 50 and gpu.waits == 1
        on_request = load(folder, "cuda", ONNX_PROVIDER="cpu")
        gpu.launches.clear()
        tokens(on_request, 16000)
        assert not gpu.launches
    np.testing.assert_array_equal(got, tokens(runtime, 64160))
    assert in_torch.fingerprints == runtime.fingerprints


def test_a_gpu_with_its_onnx_runtime_needs_no_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_stages, "has_provider", lambda name: True)
    with (
        pretend_gpu(),
        pytest.raises(Unsupported, match="onnx_provider is cuda, which this ONNX Runtime does not have"),
    ):
        load(folder, "cuda")


def changed(folder: Path, new: Path, change: Callable[[ModelProto], None]) -> Path:
    """A folder with another graph."""
    new.mkdir()
    (new / "cosyvoice3.yaml").touch()
    model = onnx.load(folder / FILE)
    change(model)
    onnx.save(model, new / FILE)
    return new


def rename_node(model: ModelProto) -> None:
    next(node for node in model.graph.node if node.name == "/blocks.1/attn/key/MatMul").name = "/other/MatMul"


def rename_convolution(model: ModelProto) -> None:
    next(node for node in model.graph.node if node.name == "/conv1/Conv").name = "/front/Conv"


def narrow(model: ModelProto) -> None:
    """The last layer makes seven numbers."""
    for each in model.graph.initializer:
        if each.dims in ([128, 8], [8]):
            each.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(each)[..., :7], each.name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rename_node, r"the weight of /blocks.1/attn/key/MatMul is float32 \[0\], expected float32 \[128, 128\]"),
        (rename_convolution, "no node /conv1/Conv with the weights of a speech tokenizer"),
        (narrow, r"the weight of /quantizer/project_in/MatMul is float32 \[7, 128\], expected float32 \[8, 128\]"),
    ],
)
def test_a_graph_of_other_names_or_shapes(
    folder: Path, tmp_path: Path, change: Callable[[ModelProto], None], message: str
) -> None:
    made = changed(folder, tmp_path / "changed", change)
    with pytest.raises(CheckpointError, match=f"{FILE}: {message}; with onnx_provider set to cpu ONNX Runtime"):
        TorchGraph(made / FILE, torch.device("cpu"))


def test_another_network_with_the_same_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its rotary positions turn otherwise: no name or shape differs."""

    def change(model: ModelProto) -> None:
        constants = [each for node in model.graph.node for each in node.attribute if node.op_type == "Constant"]
        [turns] = [each.t for each in constants if each.t.dims == [32]]
        turns.CopyFrom(numpy_helper.from_array(np.full(32, 0.5, np.float32)))

    made = changed(folder, tmp_path / "changed", change)
    load(made, "cpu")
    with pretend_gpu(), pytest.raises(CheckpointError, match=r"torch makes \d+% of ONNX Runtime's speech tokens; with"):
        load(made, "cuda")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"\x08\x08" * 100 + b"\xff")
    with pytest.raises(CheckpointError, match=f"{FILE}: its weights cannot be read; with onnx_provider set to cpu"):
        TorchGraph(tmp_path / FILE, torch.device("cpu"))


def test_without_the_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(Unsupported, match=f"to compute {FILE} in torch install onnx==1.20.1; with onnx_provider"):
        TorchGraph(folder / FILE, torch.device("cpu"))
