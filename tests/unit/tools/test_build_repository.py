"""A built repository: filled in, whole or not there, and refused where a configuration does not fit its graph."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from tritonclient.grpc import model_config_pb2

from tests.support.families.factories import CheckpointFactory
from tests.support.families.qwen3_encoders import TOLERANCE, Loaded, speech
from tools.settings_table import parameters
from voice_clone.compute import encoder_threads
from voice_clone.errors import CheckpointError, Internal, InvalidArgument, Unsupported
from voice_clone.families.qwen3_tts import encoder as encoder_stage
from voice_clone.settings import EncoderSettings, Settings
from voice_clone_server.build_repository import by_stage, main, parse
from voice_clone_server.config_file import ConfigFile
from voice_clone_server.families.qwen3_tts.repository import PRECISIONS
from voice_clone_server.families.recognition import models_of
from voice_clone_server.new_folder import new_folder
from voice_clone_server.repository_config import PLATFORMS, BuildError, check_repository, read
from voice_clone_server.triton_server import MODELS, OPTIONS, ROOT

pytestmark = pytest.mark.thorough

ENCODER = "qwen3_tts_voice_encoder"
GRAPHS = ("qwen3_tts_speaker_encoder_graph", "qwen3_tts_codec_encoder_graph")


@pytest.fixture(scope="module")
def checkpoint(checkpoint_folder: CheckpointFactory) -> Path:
    return checkpoint_folder("tiny", 0)


@pytest.fixture(scope="module")
def native(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with native encoders; not to be changed."""
    output = tmp_path_factory.mktemp("native") / "models"
    options = [
        "--native-encoders",
        "onnx",
        "--provider",
        "cuda",
        "--instances",
        "2",
        "--served-checkpoint",
        "/checkpoint",
    ]
    assert main(["--checkpoint", str(checkpoint), "--output", str(output), *options]) == 0
    return output


def setting(repository: Path, model: str, name: str) -> str:
    value: str = read(repository / model).parameters[name].string_value
    return value


def test_settings_are_filled_in_and_nothing_else_changes(checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "models"
    options = ["--precision", "bf16", "--precision", "talker=int8", "--instances", "3"]
    assert main(["--checkpoint", str(checkpoint), "--output", str(output), *options]) == 0
    assert sorted(each.name for each in output.iterdir()) == sorted(models_of(["qwen3_tts"], [MODELS]))
    for made in output.glob("*/config.pbtxt"):
        source = MODELS / made.parent.name / "config.pbtxt"
        ours, theirs = read(made.parent), read(source.parent)
        if "checkpoint_dir" in theirs.parameters:
            assert ours.parameters["checkpoint_dir"].string_value == str(checkpoint)
            theirs.parameters["checkpoint_dir"].string_value = str(checkpoint)
        if "precision" in theirs.parameters:
            theirs.parameters["precision"].string_value = "int8" if source.parent.name.endswith("talker") else "bf16"
        if source.parent.name == ENCODER:
            theirs.instance_group[0].count = 3
            assert ours.model_warmup[0].batch_size == 1 and ours.model_warmup[0].inputs["waveform"].dims == [72000]
            rate = (output / source.parent.name / "warmup" / "sample_rate").read_bytes()
            assert np.frombuffer(rate, "<i4").tolist() == [24000]
            ours.ClearField("model_warmup")
        assert ours == theirs, source.parent.name
    assert not list(output.rglob("__pycache__")) and not list(output.rglob("*.onnx"))


@pytest.mark.parametrize("kind", ["onnx", "tensorrt"])
def test_native_encoders(native: Path, checkpoint: Path, tmp_path: Path, kind: str, capfd: Any) -> None:
    """Networks behind the encoders: batched, warmed up, on what was asked for, with the encoders' own tensors."""
    output = native
    if kind == "tensorrt":
        output = tmp_path / "models"
        options = ["--native-encoders", "tensorrt", "--instances", "2", "--served-checkpoint", "/data"]
        assert main(["--checkpoint", str(checkpoint), "--output", str(output), *options]) == 0
        commands = re.findall(r"trtexec .*--onnx=(\S+) --saveEngine=(\S+) .*", capfd.readouterr().out)
        assert [Path(plan).parent for _, plan in commands] == [output / name / "1" for name in GRAPHS]
        assert all(Path(graph).is_file() for graph, _ in commands)
    front, source = read(output / ENCODER), read(MODELS / ENCODER)
    assert (front.input, front.output) == (source.input, source.output)  # the contract itself is untouched
    assert len(setting(output, ENCODER, "network_fingerprint").split()) == len(GRAPHS)
    assert front.instance_group[0].count == 1 and not front.model_warmup
    for network in GRAPHS:
        config = read(output / network)
        assert config.platform == PLATFORMS[kind] and config.name == network
        assert config.max_batch_size > 1 and config.HasField("dynamic_batching")
        assert config.instance_group[0].count == 2
        assert config.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_GPU
        assert config.model_warmup[0].batch_size == 1 and config.model_warmup[0].inputs["waveform"].zero_data
        known = {each.name: each for each in (*front.input, *front.output)}
        for tensor in (*config.input, *config.output):
            assert tensor.data_type == known[tensor.name].data_type
            assert len(tensor.dims) == len(known[tensor.name].dims)
        alone = read(output / network.replace("_graph", "_network"))  # what others than the encoder call
        assert (alone.input, alone.output, alone.max_batch_size) == (config.input, config.output, config.max_batch_size)
        assert [each.model_name for each in alone.ensemble_scheduling.step] == ["qwen3_tts_clip_check", network]


@pytest.mark.parametrize("network", GRAPHS)
def test_a_network_takes_only_what_its_encoder_takes(native: Path, network: str) -> None:
    """A wrong length is an error that says so; wrong samples do no harm to the others in the batch."""
    config = read(native / network)
    session = onnxruntime.InferenceSession(str(native / network / "1" / config.default_model_filename))
    for samples in (0, 100, 23_999, 30 * 24_000 + 2, 60 * 24_000):
        with pytest.raises(Exception, match="invalid_argument: the waveform must have 24000 to 7200"):
            session.run(None, {"waveform": np.zeros((1, samples), np.float32)})
    clip = speech(1.0, 24000).numpy()[None]
    wrong = [clip + np.float32(change) for change in (np.nan, np.inf, 1e6)]
    [alone] = session.run(None, {"waveform": clip})
    [batch] = session.run(None, {"waveform": np.concatenate([clip, *wrong])})
    np.testing.assert_allclose(batch[:1], alone, rtol=1e-5, atol=1e-6)
    assert np.isnan(batch[1:]).all() if batch.dtype == np.float32 else (batch[1:] == -1).all()


def test_the_networks_compute_what_the_torch_encoders_do(native: Path, checkpoint: Path) -> None:
    """By the names of the contract, several clips in a batch: each as if alone."""
    loaded = Loaded.of(checkpoint)
    clip = speech(2.0, 24000)
    batch = np.stack([clip.numpy(), clip.numpy()[::-1]])
    outputs = {}
    for network in GRAPHS:
        config = read(native / network)
        session = onnxruntime.InferenceSession(str(native / network / "1" / config.default_model_filename))
        [outputs[network]] = session.run([each.name for each in config.output], {config.input[0].name: batch})
    for index in range(2):
        waveform = torch.from_numpy(batch[index].copy())
        np.testing.assert_array_equal(outputs[GRAPHS[1]][index], loaded.codec_encoder.encode(waveform).numpy())
        expected = loaded.speaker_encoder.embed(waveform).numpy()
        error = np.abs(outputs[GRAPHS[0]][index] - expected).max()
        assert error <= TOLERANCE * np.sqrt(np.mean(expected**2))


@pytest.mark.parametrize(
    ("model", "change", "message"),
    [
        (GRAPHS[0], ('name: "waveform"', 'name: "audio"'), "has the input audio, the graph has waveform"),
        (GRAPHS[0], ("dims: 64", "dims: 65"), r"speaker_embedding is TYPE_FP32 \[-1, 65\].*\[-1, 64\]"),
        (GRAPHS[0], ("dims: 64", "dims: -1"), r"speaker_embedding is TYPE_FP32 \[-1, -1\]"),
        (GRAPHS[1], ("TYPE_INT32", "TYPE_INT64"), r"codec_codes is TYPE_INT64 .*, and TYPE_INT32"),
        (GRAPHS[1], ("dims: -1\n  dims: 16", "dims: 16"), r"codec_codes is TYPE_INT32 \[-1, 16\]"),
        (GRAPHS[1], ("max_batch_size: 4", "max_batch_size: 0"), r"waveform is TYPE_FP32 \[-1\] .*\[-1, -1\]"),
        (GRAPHS[1], ('name: "codec_codes"', 'name: "codes"'), "has the output codes, the graph has codec_codes"),
        (GRAPHS[1], (f'name: "{GRAPHS[1]}"', 'name: "other"'), "must have the folder's name"),
        (ENCODER, ('name: "codec_codes"', 'name: "codes"'), f"codec_codes is not as {ENCODER}"),
        (GRAPHS[1], ("max_batch_size", "max_batch"), 'cannot be read: .*"max_batch"'),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    native: Path, model: str, change: tuple[str, str], message: str
) -> None:
    check_repository(native)
    file = native / model / "config.pbtxt"
    text = file.read_text(encoding="utf-8")
    assert change[0] in text
    try:
        file.write_text(text.replace(*change), encoding="utf-8")
        with pytest.raises(BuildError, match=f"^{model}.*{message}|^{GRAPHS[1]}: {message}"):
            check_repository(native)
    finally:
        file.write_text(text, encoding="utf-8")


def test_an_encoder_asks_its_network_and_refuses_another_s(native: Path, checkpoint: Path) -> None:
    loaded = Loaded.of(checkpoint)
    asked = []

    def call(model: str, inputs: Any) -> dict[str, Any]:
        asked.append((model, inputs["waveform"].shape))
        codes = loaded.codec_encoder.encode(torch.from_numpy(inputs["waveform"][0])).numpy().astype(np.int32)
        return {"codec_codes": codes[None][:, :-1] if len(asked) > 1 else codes[None]}

    config = read(native / ENCODER)
    given = {"parameters": {name: {"string_value": value.string_value} for name, value in config.parameters.items()}}
    environ = {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint)}
    settings = Settings(given, environ=environ)
    encoder, _, fingerprint = encoder_stage.load_codec_encoder(settings, call)
    assert fingerprint == loaded.codec_fingerprint and encoder_threads(EncoderSettings.of(settings)) > 1
    clip = speech(1.1, 24000)
    np.testing.assert_array_equal(encoder.encode(clip), loaded.codec_encoder.encode(clip))
    assert asked == [(GRAPHS[1], (1, len(clip)))]
    with pytest.raises(Internal, match=GRAPHS[1]):
        encoder.encode(clip)
    with pytest.raises(Unsupported, match="networks are models of a server"):
        encoder_stage.load_codec_encoder(settings)
    speaker, codec = setting(native, ENCODER, "network_fingerprint").split()
    assert (speaker, codec) == (loaded.speaker_fingerprint, loaded.codec_fingerprint)
    settings = Settings(given, environ=environ | {"VOICE_CLONE_NETWORK_FINGERPRINT": speaker})
    with pytest.raises(CheckpointError, match=r"another checkpoint .*build-repository"):
        encoder_stage.load_encoder(settings, call)
    encoder = encoder_stage.load_speaker_encoder(settings, call)[0]
    for wrong in (torch.zeros(3), torch.full((24000,), torch.nan)):  # refused here: a graph would answer something
        with pytest.raises(InvalidArgument, match="reference audio"):
            encoder.embed(wrong)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--precision", "code2wav=int8"], "--precision code2wav=int8: it must be one of"),
        (["--instances", "0"], "--instances is 0; it must be at least 1"),
        (["--native-encoders", "tensorrt", "--provider", "cpu"], "leave --provider cpu out"),
        (["--checkpoint", "nowhere"], "there is no folder nowhere"),
        (["--checkpoint", str(ROOT / "docs")], "config.json"),
    ],
)
def test_a_repository_that_cannot_be_built_is_refused_in_one_line(
    checkpoint: Path, tmp_path: Path, options: list[str], message: str, capsys: Any
) -> None:
    assert main(["--checkpoint", str(checkpoint), "--output", str(tmp_path / "models"), *options]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_documented_commands_are_understood(checkpoint: Path, tmp_path: Path, monkeypatch: Any) -> None:
    document = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    [block] = [
        text
        for text in re.findall(r"```bash\n(.*?)```", document, re.DOTALL)
        if text.startswith("tools/build_repository")
    ]
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(line, comments=True) for line in block.replace("\\\n", "").splitlines()]
    plans = [parse([str(checkpoint) if word == "DIR" else word for word in command[1:]])[0] for command in commands]
    assert [command[0] for command in commands] == ["tools/build_repository"] * 2
    assert [plan.native for plan in plans] == [None, "onnx"]
    assert [dict(plan.precisions) for plan in plans] == [{"talker": "int8"}, {}]


def test_the_printed_command_is_complete_and_can_be_pasted(checkpoint: Path, tmp_path: Path, capsys: Any) -> None:
    """A shell runs it as it stands, with a folder's name in quotes and the options that the models need."""
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin" / "tritonserver"
    stand_in.write_text('#!/bin/bash\nprintf "%s\\n" "$OMP_WAIT_POLICY" "$@"\n')
    stand_in.chmod(0o755)
    models = tmp_path / "my models"
    assert main(["--checkpoint", str(checkpoint), "--output", str(models)]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "tritonserver --model" in line.replace("'", "")]
    environment = {**os.environ, "PATH": f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-ec", line], env=environment, capture_output=True, text=True, timeout=30)
    policy, repository, *options = done.stdout.splitlines()
    assert (policy, repository) == ("PASSIVE", f"--model-repository={models}") and options == list(OPTIONS)


def test_existing_files_are_not_overwritten(checkpoint: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "models"
    output.mkdir()
    command = ["--checkpoint", str(checkpoint), "--output", str(output)]
    assert main(command) == 0  # an empty folder is no obstacle
    assert main(command) == 1 and "is not empty" in capsys.readouterr().err
    assert main([*command, "--force", "--served-checkpoint", "/elsewhere"]) == 0
    assert setting(output, "qwen3_tts_prompt", "checkpoint_dir") == "/elsewhere"
    (output / "notes").mkdir()
    assert main([*command, "--force"]) == 1 and "holds something else than models" in capsys.readouterr().err
    assert main(["--checkpoint", str(checkpoint), "--output", str(MODELS), "--force"]) == 1
    assert main(["--checkpoint", str(checkpoint), "--output", str(tmp_path / "a" / "b")]) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["models"]


def test_a_folder_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    output = tmp_path / "models"
    output.mkdir()
    (output / "old").touch()
    with pytest.raises(KeyboardInterrupt), new_folder(output) as folder:
        (folder / "half").touch()
        raise KeyboardInterrupt
    assert [each.name for each in tmp_path.rglob("*")] == ["models", "old"]
    with new_folder(output) as folder:
        (folder / "whole").touch()
    assert [each.name for each in tmp_path.rglob("*")] == ["models", "whole"]


def test_a_signal_right_after_its_making_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = os.mkdir

    def stopped(*args: Any) -> None:
        mkdir(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "mkdir", stopped)
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "models"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_configuration_is_changed_and_keeps_its_comments() -> None:
    text = '# What it is.\nname: "it"\n# Why one.\ninstance_group [ { count: 1 } ]\n# Overridden.\n'
    text += 'parameters { key: "b" value { string_value: "" } }  # why\n'
    text += 'parameters { key: "a" value { string_value: "x" } }\n# The end.\n'
    odd = 'C:\\models "new" ü'
    file = ConfigFile(text)
    file.set("b", odd)
    again = ConfigFile(file.text())
    assert again.message == file.message and again.parameters == {"b": odd, "a": "x"}
    assert [line for line in file.text().splitlines() if line.startswith("#")] == re.findall(
        r"^#.*", text, re.MULTILINE
    )
    assert again.meanings == {"b": "why", "a": ""} and again.text() == file.text()
    with pytest.raises(ValueError, match="no parameter c"):
        file.set("c", "1")


@pytest.mark.parametrize("model", sorted(MODELS.iterdir()), ids=lambda model: model.name)
def test_no_comment_of_ours_is_lost(model: Path) -> None:
    source = (model / "config.pbtxt").read_text(encoding="utf-8")
    written = ConfigFile(source).text()
    assert ConfigFile(written).message == read(model)
    for comment in re.findall(r"^#.*|^parameters .*(#.*)", source, re.MULTILINE):
        assert comment in written


def test_a_family_without_options_of_its_own(checkpoint: Path, tmp_path: Path, capsys: Any) -> None:
    """Only its models are copied, beside those of no family; only its checkpoint is filled in."""
    elsewhere = tmp_path / "elsewhere"
    for name, lines in {
        "other": 'parameters { key: "checkpoint" value { string_value: "other.yaml" } }',
        "other_talker": 'parameters { key: "checkpoint_dir" value { string_value: "" } }',
    }.items():
        (elsewhere / name).mkdir(parents=True)
        tensors = "".join(
            f'{way} [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} ]\n' for way in ("input", "output")
        )
        (elsewhere / name / "config.pbtxt").write_text(f'name: "{name}"\n{tensors}{lines}\n')
    theirs = tmp_path / "checkpoint"
    theirs.mkdir()
    (theirs / "other.yaml").touch()
    command = ["--checkpoint", str(theirs), "--output", str(tmp_path / "models"), "--repository", str(elsewhere)]
    assert main(command) == 0
    copied = sorted(each.name for each in (tmp_path / "models").iterdir())
    assert copied == ["other", "other_talker", "speaker_cache", "speech_whole"]
    assert setting(tmp_path / "models", "other_talker", "checkpoint_dir") == str(theirs)
    for wrong in (["--precision", "fp32"], ["--native-encoders", "onnx"]):
        assert main([*command, "--force", *wrong]) == 1
        error = capsys.readouterr().err
        assert wrong[0] in error and error.count("\n") == 1


def test_a_stage_s_values_are_those_that_its_setting_takes(tmp_path: Path) -> None:
    """The tool offers no precision that a stage would refuse at load."""
    known = {(model.removeprefix("qwen3_tts_"), name) for model, name, _, _ in parameters()}
    assert {(stage, "precision") for stage in PRECISIONS} <= known
    assert by_stage("--precision", ["int8"], PRECISIONS) == {"talker": "int8"}
