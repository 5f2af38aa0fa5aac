"""A checkpoint tells its family, and a server loads the models of these families and no others."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support.families.factories import CheckpointFactory
from voice_clone_server import serve
from voice_clone_server.families.names import kind_of, owner
from voice_clone_server.families.recognition import (
    OPTIONAL,
    FamilyError,
    Mark,
    families,
    families_of,
    family_of,
    lent_models,
    models,
    models_of,
)
from voice_clone_server.preflight import check_backends, check_checkpoints, check_settings
from voice_clone_server.triton_binary import ServerFailed, server_command
from voice_clone_server.triton_server import MODELS, ROOT, TritonServer, free_ports

ONE, TWO, THREE = "config.json: model_type=one", "voices/two.yaml", "config.json: layers=3"


def write_family(repository: Path, name: str, mark: str, *stages: str) -> None:
    for model in (name, *(f"{name}_{stage}" for stage in stages)):
        (repository / model).mkdir(parents=True)
        (repository / model / "config.pbtxt").write_text(f'name: "{model}"\n')
    line = f'parameters {{ key: "checkpoint" value {{ string_value: "{mark}" }} }}\n'
    (repository / name / "config.pbtxt").write_text(f'name: "{name}"\n{line}')


def write_checkpoint(folder: Path, config: object = None) -> Path:
    folder.mkdir(parents=True)
    if config is not None:
        (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


@pytest.fixture
def repositories(tmp_path: Path) -> list[Path]:
    """Two of them: the families one and one_two, and the family three."""
    first, second = tmp_path / "first", tmp_path / "second"
    write_family(first, "one", ONE, "talker", "voice_encoder")
    write_family(first, "one_two", TWO, "talker")
    write_family(second, "three", THREE, "talker")
    (first / "shared").mkdir()
    (first / "shared" / "config.pbtxt").write_text('name: "shared"\n')
    (first / "notes.txt").touch()
    return [first, second]


def test_every_family_of_ours_has_a_mark(checkpoint_folder: CheckpointFactory) -> None:
    assert set(families([MODELS])) == {
        owner(each.parent.name, families([MODELS])) for each in MODELS.glob("*_talker/1")
    }
    assert family_of(checkpoint_folder("tiny", 0), [MODELS]) == "qwen3_tts"


def test_a_model_that_is_given_twice_is_one(tmp_path: Path) -> None:
    for repository in ("a", "b"):
        (tmp_path / repository / "one").mkdir(parents=True)
        (tmp_path / repository / "one" / "config.pbtxt").touch()
    model = tmp_path / "a" / "one"
    assert models([model, model, tmp_path / "a"]) == {"one": model.resolve()}
    with pytest.raises(FamilyError, match=f"{tmp_path / 'a'} and in {tmp_path / 'b'}"):
        models([tmp_path / "a", tmp_path / "b"])


def test_a_checkpoint_shows_its_family(repositories: list[Path], tmp_path: Path) -> None:
    one = write_checkpoint(tmp_path / "a", {"model_type": "one"})
    two = write_checkpoint(tmp_path / "b")
    (two / "voices").mkdir()
    (two / "voices" / "two.yaml").touch()
    three = write_checkpoint(tmp_path / "c", {"layers": 3, "model_type": "other"})
    assert [family_of(each, repositories) for each in (one, two, three)] == ["one", "one_two", "three"]
    assert families_of([three, one], repositories) == {"three": three, "one": one}
    with pytest.raises(FamilyError, match=f"{one} and {one} are both checkpoints of one; a server has one of each"):
        families_of([one, three, one], repositories)
    (two / "config.json").write_text('{"layers": 3}')
    with pytest.raises(FamilyError, match="looks like a checkpoint of one_two and of three"):
        family_of(two, repositories)


@pytest.mark.parametrize(
    ("config", "here"),
    [
        ({}, "it has no model_type"),
        ({"model_type": "ones"}, "it is ones"),
        ({"layers": "three"}, "it has no model_type"),
        (["model_type", "one"], "it has no model_type"),
    ],
)
def test_a_folder_that_no_family_knows(repositories: list[Path], tmp_path: Path, config: object, here: str) -> None:
    folder = write_checkpoint(tmp_path / "a", config)
    (folder / "README.md").touch()
    with pytest.raises(FamilyError) as caught:
        family_of(folder, repositories)
    assert str(caught.value).startswith(f"{folder} is no checkpoint of a family in")
    assert f"one has config.json with model_type = one, here {here}; one_two has voices/two.yaml, here" in str(
        caught.value
    )


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"README.md": ""}, "no config.json"),
        ({"model.safetensors": "weights"}, "no config.json .*only weights"),
        ({"model-Q4.gguf": "weights"}, "no config.json .*only GGUF files"),
        ({"config.json": '{"model_type": "on'}, "config.json cannot be read as JSON; download it again"),
        ({"config.json": POINTER}, "config.json only stands for .*git lfs pull"),
        ({"config.json": "{}", "codec/model.safetensors": POINTER}, "codec/model.safetensors only stands for"),
        ({".cache/huggingface/download/model.incomplete": ""}, "not finished; run the same hf download again"),
        ({"Model/config.json": '{"model_type": "one"}'}, "give the folder .*a/Model$"),
        ({"m/snapshots/0/config.json": '{"model_type": "one"}'}, "give the folder .*a/m/snapshots/0$"),
    ],
)
def test_what_a_folder_lacks_is_said_at_once(
    repositories: list[Path], tmp_path: Path, files: dict[str, str], words: str
) -> None:
    for name, text in files.items():
        file = tmp_path / "a" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with pytest.raises(FamilyError, match=words) as caught:
        family_of(tmp_path / "a", repositories)
    assert len(str(caught.value)) < len(str(tmp_path)) * 2 + 200


def test_a_download_that_is_not_whole_is_said_with_the_file_it_lacks(
    checkpoint_folder: CheckpointFactory, tmp_path: Path
) -> None:
    folder = tmp_path / "a"
    shutil.copytree(checkpoint_folder("tiny", 0), folder)
    (folder / "model.safetensors").write_text(POINTER)
    with pytest.raises(FamilyError, match=r"git lfs pull .*\(model.safetensors: "):
        check_checkpoints({"qwen3_tts": folder}, [MODELS])


def test_a_family_that_computes_in_torch_is_refused_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for family in ("voxtral", "qwen3_tts"):
        with pytest.raises(FamilyError) as refused:
            check_checkpoints({family: tmp_path}, [MODELS])
        assert ("torch" in str(refused.value)) == (family == "voxtral")


def test_an_aligner_without_an_engine_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = {"aligner": OPTIONAL / "aligner"}
    with pytest.raises(FamilyError, match="its extra alignment"):
        check_settings(found, (), {})
    check_settings(found, (), {"VOICE_CLONE_ALIGNER_CHECKPOINT_DIR": str(tmp_path)})


def test_a_folder_that_is_empty_and_a_file(repositories: list[Path], tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").touch()
    with pytest.raises(FamilyError, match="a is empty; download"):
        family_of(tmp_path / "a", repositories)
    with pytest.raises(FamilyError, match="b is a file; give the folder"):
        family_of(tmp_path / "b", repositories)


def test_a_folder_that_is_not_there(repositories: list[Path], tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match=r"there is no folder .*nowhere; give that of a checkpoint"):
        family_of(tmp_path / "nowhere", repositories)
    with pytest.raises(FamilyError, match=r"there is no model repository .*nowhere"):
        family_of(tmp_path, [tmp_path / "nowhere"])


@pytest.mark.parametrize("mark", ["", "/config.json", "config.json:", "config.json: model_type", "config.json: =a"])
def test_a_mark_that_is_none(tmp_path: Path, mark: str) -> None:
    write_family(tmp_path, "one", mark)
    with pytest.raises(FamilyError, match=r"one: .* is neither FILE nor FILE: KEY=VALUE"):
        families([tmp_path])


def test_a_repository_that_does_not_fit(repositories: list[Path], tmp_path: Path) -> None:
    shutil.copytree(repositories[0], tmp_path / "copy")
    with pytest.raises(FamilyError, match=r"the model one is in .*copy and in .*first"):
        families([tmp_path / "copy", *repositories])
    (repositories[1] / "three" / "config.pbtxt").write_text('parameters { key: "checkpoint" ')
    with pytest.raises(FamilyError, match=r"three: .*config\.pbtxt cannot be read"):
        families(repositories)


def test_the_models_of_a_family(repositories: list[Path]) -> None:
    assert set(models_of(["one"], repositories)) == {"one", "one_talker", "one_voice_encoder", "shared"}
    assert set(models_of(["one_two", "three"], repositories)) == {
        *("one_two", "one_two_talker", "three", "three_talker", "shared")
    }
    assert owner("one_two_talker", ["one", "one_two"]) == "one_two" and owner("ones", ["one"]) is None
    assert Mark.parse("a.json: b = c: d=e") == Mark("a.json", "b", "c: d=e")


@pytest.fixture
def lending(repositories: list[Path]) -> list[Path]:
    """The same repositories; one lends its talker to one_two and to three."""
    for family, folder in (("one_two", repositories[0]), ("three", repositories[1])):
        config = folder / family / "config.pbtxt"
        steps = ", ".join(f'{{ model_name: "{model}" }}' for model in (f"{family}_talker", "one_talker", "shared"))
        config.write_text(config.read_text() + f"ensemble_scheduling {{ step [ {steps} ] }}\n")
    return repositories


def test_a_model_that_another_family_lends(lending: list[Path]) -> None:
    assert lent_models(["one_two"], lending) == {"one_talker": "one_two"}
    assert lent_models(["three", "one_two"], lending) == {"one_talker": "three"} and lent_models(["one"], lending) == {}
    assert set(models_of(["three"], lending)) == {"three", "three_talker", "one_talker", "shared"}
    assert kind_of("one_two", ["three", "one_two", "one"]) == "one" and kind_of("ones", ["one"]) == "ones"


def test_a_lent_model_gets_the_checkpoint_of_its_family_or_of_who_borrows_it(
    lending: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VOICE_CLONE_CHECKPOINT_DIR", raising=False)
    one = write_checkpoint(tmp_path / "a", {"model_type": "one"})
    two = write_checkpoint(tmp_path / "b" / "voices").parent
    (two / "voices" / "two.yaml").touch()
    three = write_checkpoint(tmp_path / "c", {"layers": 3})
    for given, lender in (([two, one], one), ([three, two], three)):
        server = TritonServer(given, models=lending)
        server.stop()
        assert server.environment["VOICE_CLONE_ONE_CHECKPOINT_DIR"] == str(lender)
        assert server.environment["VOICE_CLONE_ONE_TWO_CHECKPOINT_DIR"] == str(two)


@pytest.fixture
def checkpoints(tmp_path: Path) -> list[Path]:
    return [write_checkpoint(tmp_path / "a", {"model_type": "one"}), write_checkpoint(tmp_path / "c", {"layers": 3})]


def given(server: TritonServer, option: str) -> list[str]:
    return [word.partition("=")[2] for word in server.command if word.startswith(f"--{option}=")]


def test_a_server_of_two_families(
    repositories: list[Path], checkpoints: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VOICE_CLONE_CHECKPOINT_DIR", raising=False)
    server = TritonServer(checkpoints, models=repositories)
    try:
        assert server.families == dict(zip(("one", "three"), checkpoints, strict=True))
        [repository] = map(Path, given(server, "model-repository"))
        loaded = {model.name: model.resolve() for model in repository.iterdir()}
        assert loaded == models_of(["one", "three"], repositories) and "one_two" not in loaded
        variables = server.environment
        for name, checkpoint in server.families.items():
            assert variables[f"VOICE_CLONE_{name.upper()}_CHECKPOINT_DIR"] == str(checkpoint)
        assert "VOICE_CLONE_CHECKPOINT_DIR" not in variables
        assert not given(server, "model-control-mode"), "callers could load models, code included"
    finally:
        server.stop()
    assert not repository.exists() and all((each / "config.pbtxt").is_file() for each in loaded.values())


def test_a_server_of_one_family(repositories: list[Path], checkpoints: list[Path]) -> None:
    server = TritonServer(checkpoints[0], models=repositories)
    try:
        assert server.families == {"one": checkpoints[0]}
        assert server.environment["VOICE_CLONE_CHECKPOINT_DIR"] == str(checkpoints[0])
    finally:
        server.stop()


def test_a_server_of_all_there_is(repositories: list[Path]) -> None:
    server = TritonServer(models=repositories)
    try:
        [linked] = given(server, "model-repository")
        assert server.families == {} and sorted(each.name for each in Path(linked).iterdir()) == sorted(
            models(repositories)
        )
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--checkpoint=a", "--checkpoint=a"], "a and a are both checkpoints of one"),
        (["--checkpoint=nowhere"], "there is no folder nowhere"),
        (["--checkpoint=b"], "b is no checkpoint: it has no config.json"),
        (["--checkpoint=a", "--repository=nowhere"], "there is no model repository nowhere"),
    ],
)
def test_serve_says_what_is_wrong(
    repositories: list[Path],
    checkpoints: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "README.md").touch()
    ports = [f"--{kind}-port={port}" for kind, port in zip(("grpc", "http", "metrics"), free_ports(3), strict=True)]
    assert serve.main(["--models=first", "--repository=second", *ports, *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("tools/serve: ") and error.count("\n") == 1


def test_serve_without_a_checkpoint(
    repositories: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VOICE_CLONE_CHECKPOINT_DIR", raising=False)
    ports = [f"--{kind}-port={port}" for kind, port in zip(("grpc", "http", "metrics"), free_ports(3), strict=True)]
    with pytest.raises(SystemExit):
        serve.main([f"--models={repositories[0]}", *ports])
    assert "give --checkpoint DIR" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-TTS-12Hz-0.6B-Base", "fishaudio/s2-pro", "https://huggingface.co/fishaudio/s2-pro/tree/main"]
)
def test_a_name_on_the_hub_is_answered_with_the_download(repositories: list[Path], name: str) -> None:
    with pytest.raises(FamilyError) as caught:
        family_of(Path(name), repositories)
    name = name.removeprefix("https://huggingface.co/").removesuffix("/tree/main")
    own = name.partition("/")[2]
    assert f"hf download {name} --local-dir {own}; then give the folder {own}" in str(caught.value)


@pytest.mark.parametrize("path", ["/no/folder", "a/b/c", "folder", "./folder"])
def test_a_path_is_not_taken_for_a_name_on_the_hub(repositories: list[Path], path: str) -> None:
    with pytest.raises(FamilyError) as caught:
        family_of(Path(path), repositories)
    assert "there is no folder" in str(caught.value) and "hf download" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("PRECISION", "int3", "qwen3_tts_talker: the setting precision is 'int3'; it must be one of auto, fp32"),
        ("QWEN3_TTS_PRECISION", "tf32", "qwen3_tts_talker: the setting precision is 'tf32'"),
        ("DEVICE", "gpu", "the setting device is 'gpu'; it must be one of auto, cpu, cuda"),
        ("MAX_QUEUE", "many", "qwen3_tts_talker: the setting max_queue is 'many'; it must be an integer > 0"),
        ("CHUNK_FRAMES", "1,x", "the setting chunk_frames is '1,x'; it must be integers > 0 separated by commas"),
        ("CUDA_GRAPHS", "no", "the setting cuda_graphs is 'no'; it must be one of true, false"),
    ],
)
def test_a_setting_that_cannot_be_is_found_before_a_server_starts(
    checkpoint_folder: CheckpointFactory, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(f"VOICE_CLONE_{variable}", value)
    with pytest.raises(FamilyError) as caught:
        TritonServer(checkpoint_folder("tiny", 0))
    assert message in str(caught.value)


def test_a_broken_configuration_is_found_before_a_server_starts_if_it_is_loaded(
    repositories: list[Path], checkpoints: list[Path]
) -> None:
    (repositories[0] / "one_two_talker" / "config.pbtxt").write_text("no configuration")
    TritonServer(checkpoints[0], models=repositories).stop()
    (repositories[0] / "one_talker" / "config.pbtxt").write_text("no configuration")
    with pytest.raises(FamilyError, match=r"one_talker: config\.pbtxt cannot be read"):
        TritonServer(checkpoints[0], models=repositories)


def test_settings_of_other_families_and_those_that_fit_are_no_hindrance(
    checkpoint_folder: CheckpointFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FISH_SPEECH_PRECISION": "int3", "PRECISION": "int8", "WARM_UP_SECONDS": "0.5"}.items():
        monkeypatch.setenv(f"VOICE_CLONE_{name}", value)
    assert set(TritonServer(checkpoint_folder("tiny", 0)).families) == {"qwen3_tts"}


def test_packages_on_the_caller_s_path_are_found_by_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/families")
    paths = server_command(tmp_path)[1]["PYTHONPATH"].split(os.pathsep)
    assert paths[0] == str(ROOT) and paths[-1] == "/families" and len(paths) == 3
    monkeypatch.delenv("PYTHONPATH")
    assert len(server_command(tmp_path / "again")[1]["PYTHONPATH"].split(os.pathsep)) == 2


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('platform: "onnxruntime_onnx"', "backend onnxruntime, and this Triton has python"),
        ('backend: "vllm"', "backend vllm, and this Triton has python"),
        ('platform: "tensorrt_plan" default_model_filename: "model.plan"', "backend tensorrt"),
        ('backend: "python" instance_group { kind: KIND_GPU }', "on a GPU, and here is none"),
        ('platform: "ensemble"', None),
        ('backend: "python" instance_group { kind: KIND_CPU }', None),
    ],
)
def test_what_a_triton_lacks_is_found_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, words: str | None
) -> None:
    monkeypatch.setattr("voice_clone_server.preflight.has_driver", lambda: False)
    (tmp_path / "backends" / "python").mkdir(parents=True)
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "config.pbtxt").write_text(f'name: "net" {config}\n')

    def check(backends: str) -> None:
        check_backends({"net": tmp_path / "net"}, tmp_path / backends)

    if words is None:
        check("backends")
        return
    with pytest.raises(ServerFailed, match=words):
        check("backends")
    (tmp_path / "backends" / "tensorrt").mkdir()
    if "plan" in config:
        with pytest.raises(ServerFailed, match=r"no 1/model\.plan"):
            check("backends")
    elif "GPU" not in config:
        check("unknown")
