"""Settings: config.pbtxt, overridden by the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from voice_clone.errors import InvalidArgument
from voice_clone.settings import Settings


def settings(environ: dict[str, str] | None = None, **parameters: str) -> Settings:
    config = {"parameters": {name: {"string_value": value} for name, value in parameters.items()}}
    return Settings(config, environ or {})


def test_the_environment_overrides_the_parameter_and_empty_counts_as_not_set() -> None:
    given = settings({"VOICE_CLONE_DEVICE": "cuda", "VOICE_CLONE_EMPTY": ""}, device="cpu", empty="b", none="")
    assert given.text("device") == "cuda"
    assert given.text("empty") == "b"
    assert given.text("none", "default") == "default"
    assert given.text("unknown", "default") == "default"


def test_a_config_without_parameters() -> None:
    assert Settings({}, {}).integer("max_queue", 7) == 7


def test_kinds() -> None:
    given = settings(a="12", b="1, 2,4", c="0.5", d="immutable")
    assert given.integer("a", 1) == 12
    assert given.integers("b", (9,)) == (1, 2, 4) and given.integers("none", (9, 8)) == (9, 8)
    assert given.number("c", 2.0) == 0.5
    assert given.choice("d", ("replace", "immutable")) == "immutable" and given.choice("none", ("x", "y")) == "x"


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "１２", "1 2"])
def test_an_integer_says_what_is_wrong(value: str) -> None:
    with pytest.raises(InvalidArgument, match=r"max_queue.*integer > 0"):
        settings(max_queue=value).integer("max_queue", 1)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon"])
def test_a_number_says_what_is_wrong(value: str) -> None:
    with pytest.raises(InvalidArgument, match=r"timeout.*number > 0"):
        settings(timeout=value).number("timeout", 1.0)


@pytest.mark.parametrize("value", ["1,,2", "1,0", "a", "1;2"])
def test_a_list_says_what_is_wrong(value: str) -> None:
    with pytest.raises(InvalidArgument, match="separated by commas"):
        settings(chunk_frames=value).integers("chunk_frames", (1,))


def test_a_choice_says_what_is_right() -> None:
    with pytest.raises(InvalidArgument, match="cpu, cuda"):
        settings(device="tpu").choice("device", ("cpu", "cuda"))


def test_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # A12
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert settings().voice_dir == tmp_path / "voice-clone" / "voices"
    assert settings(voice_dir="/somewhere").voice_dir == Path("/somewhere")
    assert settings({"VOICE_CLONE_VOICE_DIR": "/else"}, voice_dir="/somewhere").voice_dir == Path("/else")
    with pytest.raises(InvalidArgument, match="VOICE_CLONE_CHECKPOINT_DIR"):
        _ = settings().checkpoint_dir


def test_a_secret_comes_from_the_environment_alone() -> None:
    assert settings({"VOICE_CLONE_WRITE_TOKEN": "s3cret~!"}).secret("write_token") == "s3cret~!"
    assert settings({"VOICE_CLONE_WRITE_TOKEN": ""}, write_token="").secret("write_token") == ""
    with pytest.raises(InvalidArgument, match=r"callers can read; set VOICE_CLONE_WRITE_TOKEN instead") as caught:
        settings({}, write_token="s3cret").secret("write_token")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("value", ["s3cret\n", "s3 cret", "s3crét", "s3cret\x7f"])
def test_a_secret_that_no_header_carries_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(InvalidArgument, match="VOICE_CLONE_WRITE_TOKEN must be printable ASCII") as caught:
        settings({"VOICE_CLONE_WRITE_TOKEN": value}).secret("write_token")
    assert "s3" not in str(caught.value)
