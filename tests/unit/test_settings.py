"""Settings: config.pbtxt, overridden by the environment, checked and converted for a stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from voice_clone.errors import InvalidArgument
from voice_clone.server_settings import SpeakerCacheSettings
from voice_clone.settings import (
    CheckpointSettings,
    ComputeSettings,
    Settings,
    StageSettings,
    TalkerSettings,
    VoiceSettings,
    setting,
)


def given(environ: dict[str, str] | None = None, family: str = "", **parameters: str) -> Settings:
    config = {"parameters": {name: {"string_value": value} for name, value in parameters.items()}}
    return Settings(config, environ or {}, family)


class Example(StageSettings):
    count: int = setting(7, "")
    seconds: float = setting(2.5, "")
    share: float = setting(0.5, "", least=0.0)
    sizes: tuple[int, ...] = setting((9, 8), "")
    names: tuple[str, ...] = setting((), "")
    switch: bool = setting(True, "", choices=("true", "false"))
    kind: str = setting("x", "", choices=("x", "y"))
    most: int | None = setting(None, "")
    folder: Path | None = setting(None, "")


def test_the_environment_overrides_the_parameter_and_empty_counts_as_not_set() -> None:
    values = given({"VOICE_CLONE_KIND": "y", "VOICE_CLONE_COUNT": ""}, kind="x", count="3", most="")
    found = Example.of(values)
    assert (found.kind, found.count, found.most) == ("y", 3, None)
    assert values.text("unknown") == ""


def test_the_variable_of_a_family_wins() -> None:
    environ = {"VOICE_CLONE_F_COUNT": "1", "VOICE_CLONE_COUNT": "2"}
    assert Example.of(given(environ, "f")).count == 1
    assert Example.of(given(environ, "g")).count == Example.of(given(environ)).count == 2


def test_a_config_without_parameters_gives_the_defaults() -> None:
    assert Example.of(Settings({}, {})) == Example()


def test_types() -> None:
    found = Example.of(
        given(
            count="12", seconds="0.5", share="0", sizes="1, 2,4", names="a, b,", switch="false", most="5", folder="~/x"
        )
    )
    expected = Example(
        count=12,
        seconds=0.5,
        share=0.0,
        sizes=(1, 2, 4),
        names=("a", "b"),
        switch=False,
        most=5,
        folder=Path("~/x").expanduser(),
    )
    assert found == expected


def test_only_settings_that_there_are_can_be_given() -> None:
    for wrong, words in (({"folder": Path()}, "no setting folder$"), ({}, ": checkpoint_dir must be given$")):
        with pytest.raises(TypeError, match=f"CheckpointSettings.*{words}"):
            CheckpointSettings(**wrong)
    assert CheckpointSettings(checkpoint_dir=Path("x")) != CheckpointSettings(checkpoint_dir=Path("y"))


def test_settings_do_not_change() -> None:
    with pytest.raises(AttributeError, match="count"):
        Example().count = 3
    with pytest.raises(AttributeError, match="count"):
        del Example().count


def test_equal_settings_have_one_hash() -> None:
    first, second = Example(count=5, folder=Path("x")), Example(folder=Path("x"), count=5)
    assert first == second and hash(first) == hash(second)


@pytest.mark.parametrize("name", ["count", "most"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "１２", "1 2"])
def test_an_integer_says_what_is_wrong(name: str, value: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"the setting {name} is '{value}'; it must be an integer > 0"):
        Example.of(given(**{name: value}))


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon"])
def test_a_number_says_what_is_wrong(value: str) -> None:
    with pytest.raises(InvalidArgument, match=r"seconds.*number > 0"):
        Example.of(given(seconds=value))


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "soon"])
def test_a_number_that_may_be_0_says_what_is_wrong(value: str) -> None:
    with pytest.raises(InvalidArgument, match=r"share.*number >= 0"):
        Example.of(given(share=value))


@pytest.mark.parametrize("value", ["1,,2", "1,0", "a", "1;2"])
def test_a_list_says_what_is_wrong(value: str) -> None:
    with pytest.raises(InvalidArgument, match=r"sizes.*separated by commas"):
        Example.of(given(sizes=value))


def test_a_choice_says_what_is_right() -> None:
    with pytest.raises(InvalidArgument, match="auto, cpu, cuda"):
        ComputeSettings.of(given(device="tpu"))
    with pytest.raises(InvalidArgument, match="true, false"):
        Example.of(given(switch="yes"))


def test_one_setting_can_be_read_alone() -> None:
    assert TalkerSettings.read(given(max_queue="3", precision="none"), "max_queue") == 3


def test_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # A12
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert VoiceSettings.of(given()).voice_dir == tmp_path / "voice-clone" / "voices"
    assert VoiceSettings.of(given(voice_dir="/somewhere")).voice_dir == Path("/somewhere")
    environ = {"VOICE_CLONE_VOICE_DIR": "/else"}
    assert VoiceSettings.of(given(environ, voice_dir="/somewhere")).voice_dir == Path("/else")
    with pytest.raises(InvalidArgument, match="no checkpoint: set checkpoint_dir or VOICE_CLONE_F_CHECKPOINT_DIR"):
        CheckpointSettings.of(given(family="f"))


def test_a_secret_comes_from_the_environment_alone() -> None:
    found = SpeakerCacheSettings.of(given({"VOICE_CLONE_WRITE_TOKEN": "s3cret~!"}))
    assert found.write_token == "s3cret~!" and "s3cret" not in repr(found)
    assert SpeakerCacheSettings.of(given({"VOICE_CLONE_WRITE_TOKEN": ""}, write_token="")).write_token == ""
    with pytest.raises(InvalidArgument, match=r"callers can read; set VOICE_CLONE_WRITE_TOKEN instead") as caught:
        SpeakerCacheSettings.of(given(write_token="s3cret"))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("value", ["s3cret\n", "s3 cret", "s3crét", "s3cret\x7f"])
def test_a_secret_that_no_header_carries_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(InvalidArgument, match="VOICE_CLONE_WRITE_TOKEN must be printable ASCII") as caught:
        SpeakerCacheSettings.of(given({"VOICE_CLONE_WRITE_TOKEN": value}))
    assert "s3" not in str(caught.value)
