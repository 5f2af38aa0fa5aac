"""The encoders on ONNX Runtime: what torch gives, and no graph that does not belong."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch

from tests.support.families.factories import CheckpointFactory
from tools.families.qwen3_tts.onnx_export import SECONDS, Loaded, compare, only_ties, speech
from voice_clone import compute
from voice_clone.errors import CheckpointError, InvalidArgument, Unsupported
from voice_clone.families.qwen3_tts import encoder as encoder_stage
from voice_clone.families.qwen3_tts.networks import onnx_graphs
from voice_clone.onnx.export import OPSET, export
from voice_clone.onnx.session import ONNX_RUNTIME, Runtime, Session
from voice_clone.settings import EncoderSettings, Settings

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def loaded(checkpoint_folder: CheckpointFactory) -> Loaded:
    return Loaded.of(checkpoint_folder("tiny", 0))


def test_every_graph_computes_what_torch_does_at_five_lengths(loaded: Loaded, onnx_folder: Path) -> None:
    rows = list(compare(loaded, Runtime(onnx_folder, "cpu", 1)))
    assert len(set(SECONDS)) == 5
    assert Counter(row.graph for row in rows) == dict.fromkeys(("speaker_encoder", "codec_encoder"), 5)
    assert not [str(row) for row in rows if not row.right or (row.what == "codes" and row.error)]


def test_the_comparison_can_fail(loaded: Loaded, onnx_folder: Path) -> None:
    bias = loaded.speaker_encoder.fc.bias
    assert bias is not None
    with torch.no_grad():
        bias.add_(1e-2)
        rows = list(compare(loaded, Runtime(onnx_folder, "cpu", 1), "speaker_encoder"))
        bias.sub_(1e-2)
    assert len(rows) == 5 and not any(row.right for row in rows)


def test_only_codes_at_equal_distances_may_differ(loaded: Loaded) -> None:
    clip = speech(1.0, 24000)
    codes = loaded.codec_encoder.encode(clip)
    assert only_ties(loaded.codec_encoder, clip, codes, codes)
    for book in (0, 1, 15):
        other = codes.clone()
        other[7, book] = (other[7, book] + 1) % 64
        assert not only_ties(loaded.codec_encoder, clip, other, codes)


def test_both_engines_have_one_fingerprint(checkpoint_folder: CheckpointFactory, onnx_folder: Path) -> None:
    """So a voice that was registered with one is not extracted again with the other."""
    environ = {
        "VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint_folder("tiny", 0)),
        "VOICE_CLONE_ONNX_DIR": str(onnx_folder),
    }
    torchs, onnxs = (Settings({}, {**environ, "VOICE_CLONE_ENGINE": engine}) for engine in ("torch", "onnx"))
    assert encoder_stage.load_speaker_encoder(torchs)[2] == encoder_stage.load_speaker_encoder(onnxs)[2]
    assert encoder_stage.load_codec_encoder(torchs)[2] == encoder_stage.load_codec_encoder(onnxs)[2]


def test_a_clip_that_torch_refuses_is_refused(checkpoint_folder: CheckpointFactory, onnx_folder: Path) -> None:
    environ = {
        "VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint_folder("tiny", 0)),
        "VOICE_CLONE_ONNX_DIR": str(onnx_folder),
    }
    encoder = encoder_stage.load_speaker_encoder(Settings({}, {**environ, "VOICE_CLONE_ENGINE": "onnx"}))[0]
    for wrong in (torch.zeros(3), torch.zeros(2, 24000), torch.full((24000,), torch.nan)):
        with pytest.raises(InvalidArgument, match="reference audio"):
            encoder.embed(wrong)


def test_the_graphs_fit_the_onnx_runtime_of_the_image(onnx_folder: Path) -> None:
    """1.19 takes opset 21 and IR version 10, and has no operators but the standard ones for every provider."""
    files = sorted(onnx_folder.glob("*.onnx"))
    assert files
    for file in files:
        model = onnx.load(file)
        assert [(each.domain, each.version) for each in model.opset_import] == [("", OPSET)]
        assert OPSET <= 20 and model.ir_version <= 10
        assert not {node.op_type for node in model.graph.node} & {"STFT", "DFT", "If", "Loop", "Scan"}
        shapes = {each.name: each.type.tensor_type.shape.dim for each in (*model.graph.input, *model.graph.output)}
        assert all(dims[0].dim_param == "batch" for dims in shapes.values()), file.name
        varying = {dim.dim_param for dims in shapes.values() for dim in dims} - {""}
        assert varying <= {"batch", "samples", "frames"}


def test_the_pinned_onnx_runtime_is_installed() -> None:
    project = (Path(__file__).parents[4] / "pyproject.toml").read_text()
    assert set(re.findall(r'"onnxruntime(?:-gpu)?==([^"]+)"', project)) == {ONNX_RUNTIME}
    assert onnxruntime.__version__ == ONNX_RUNTIME


def test_weights_go_to_a_file_of_their_own(loaded: Loaded, onnx_folder: Path, tmp_path: Path) -> None:
    graph = onnx_graphs.speaker_encoder(loaded.speaker_encoder)
    file = export(graph, tmp_path, "a", external_over=0)
    data = tmp_path / "speaker_encoder.onnx.data"
    assert sorted(tmp_path.iterdir()) == [file, data]
    assert file.stat().st_size < data.stat().st_size
    waveform, shapes = torch.rand(1, 24000) - 0.5, {"speaker_embedding": (1, loaded.config.speaker_encoder.enc_dim)}
    apart = Session(Runtime(tmp_path, "cpu", 1), graph.name, "a")
    whole = Session(Runtime(onnx_folder, "cpu", 1), graph.name, loaded.speaker_fingerprint)
    results = [session.run({"waveform": waveform}, shapes)["speaker_embedding"] for session in (apart, whole)]
    torch.testing.assert_close(*results)


def test_a_graph_of_another_checkpoint_or_version_is_refused(
    loaded: Loaded, onnx_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime(onnx_folder, "cpu", 1)
    with pytest.raises(CheckpointError, match=r"another checkpoint.*tools/export_onnx --checkpoint DIR"):
        Session(runtime, "codec_encoder", "0" * 64)
    with pytest.raises(CheckpointError, match=r"codec_encoder\.onnx: the graph is missing; .*tools/export_onnx"):
        Session(Runtime(tmp_path, "cpu", 1), "codec_encoder", loaded.codec_fingerprint)
    (tmp_path / "codec_encoder.onnx").write_bytes((onnx_folder / "codec_encoder.onnx").read_bytes()[:5000])
    with pytest.raises(CheckpointError, match=r"cannot open the graph; .*tools/export_onnx"):
        Session(Runtime(tmp_path, "cpu", 1), "codec_encoder", loaded.codec_fingerprint)
    monkeypatch.setattr("voice_clone.__version__", "9.9")
    with pytest.raises(CheckpointError, match=r"made by 0.* this is 9\.9; .*tools/export_onnx"):
        Session(runtime, "codec_encoder", loaded.codec_fingerprint)


def test_no_other_provider_than_the_one_asked_for(
    loaded: Loaded, onnx_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    assert not has_cuda, "this test is for the CPU build"
    for provider in ("cuda", "tensorrt"):
        with pytest.raises(Unsupported, match=f"onnx_provider is {provider}, .* does not have; it has cpu"):
            Session(Runtime(onnx_folder, provider, 1), "codec_encoder", loaded.codec_fingerprint)
    # Built in, but it cannot start: ONNX Runtime goes on with the CPU, and says so in a warning alone.
    everything = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: everything)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    for provider in ("cuda", "tensorrt"):
        with (
            pytest.raises(Unsupported, match=f"onnx_provider is {provider}, which wants a GPU .*; it has cpu"),
            pytest.warns(UserWarning, match="not in available provider"),
        ):
            Session(Runtime(onnx_folder, provider, 1), "codec_encoder", loaded.codec_fingerprint)
        assert os.environ["NVIDIA_TF32_OVERRIDE"] == ("0" if provider == "tensorrt" else "1")


@pytest.mark.parametrize("version", ["1.2.3", "1.18.1", "1.29.0", "2.19.0"])
def test_another_onnx_runtime_is_named(
    version: str, loaded: Loaded, onnx_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", version)
    with pytest.raises(Unsupported, match=f"onnxruntime is {version}; it must be 1.19 to 1.28: .*=={ONNX_RUNTIME}"):
        Session(Runtime(onnx_folder, "cpu", 1), "codec_encoder", loaded.codec_fingerprint)


def test_settings(tmp_path: Path) -> None:
    given = EncoderSettings(checkpoint_dir=tmp_path, device="cuda")
    assert compute.runtime(given) == Runtime(tmp_path / "onnx", "cuda", torch.get_num_threads())
    given = EncoderSettings(checkpoint_dir=tmp_path, onnx_dir=tmp_path / "o", onnx_provider="tensorrt", device="cpu")
    assert compute.runtime(given) == Runtime(tmp_path / "o", "tensorrt", torch.get_num_threads())
    environ = {"VOICE_CLONE_ONNX_PROVIDER": "rocm", "VOICE_CLONE_CHECKPOINT_DIR": "c"}
    with pytest.raises(InvalidArgument, match="onnx_provider is 'rocm'; it must be one of auto, cpu, cuda, tensorrt"):
        EncoderSettings.of(Settings({}, environ))
