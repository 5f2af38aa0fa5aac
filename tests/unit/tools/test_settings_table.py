"""Settings stand in three places, and these agree: the classes of the stages, config.pbtxt, docs/settings.md."""

from __future__ import annotations

import ast
import re
from dataclasses import fields

import pytest
from voice_clone_gateway.settings import PREFIX as GATEWAY_PREFIX
from voice_clone_gateway.settings import Settings as GatewaySettings

from tools.settings_table import (
    OTHERS,
    STAGES,
    gateway_table,
    others_table,
    parameters,
    variables_only,
)
from voice_clone.server_settings import AlignerSettings, settings_of
from voice_clone.settings import REQUIRED, Settings
from voice_clone_server.families.recognition import families
from voice_clone_server.triton_server import MODELS, ROOT

VARIABLE = re.compile(r"\bVOICE_CLONE_[A-Z_]*[A-Z]\b")
SETTINGS_OF: dict[str, list[tuple[str, str, str]]] = {}  # name, default and meaning
for _model, _name, _default, _meaning in parameters():
    SETTINGS_OF.setdefault(_model, []).append((_name, _default, _meaning))


def names() -> set[str]:
    """The settings of all stages."""
    return {name for stage in STAGES.values() for name in stage.known()}


def test_the_configurations_offer_exactly_the_settings_of_the_stages() -> None:
    assert names() == {name for settings in SETTINGS_OF.values() for name, _, _ in settings} | set(variables_only())


@pytest.mark.parametrize("model", ["speaker_cache", "speech_whole", "text_front_end"])
def test_a_configuration_has_the_defaults_and_the_meanings_of_the_stage(model: str) -> None:
    stage = settings_of(model)
    for name, value, meaning in SETTINGS_OF[model]:
        setting = stage.known()[name]
        assert meaning == setting.meaning, name
        if value:
            read = stage.read(Settings({"parameters": {name: {"string_value": value}}}, {}), name)
            assert read == setting.default, name
        else:
            unset = setting.default in (None, "", (), REQUIRED)
            assert unset or callable(setting.default), name  # a function finds a folder


def test_the_aligner_has_settings_of_its_own() -> None:
    assert settings_of("aligner") is AlignerSettings


def test_no_setting_is_left_unread() -> None:
    """Each is an attribute of some `settings` in the code, or is read by its name."""
    read = set()
    for file in (ROOT / "voice_clone").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Call):
                read.add(node.attr)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "read":
                read |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    assert names() <= read


def test_every_variable_that_the_code_names_is_in_a_table() -> None:
    """A whole name in the code, or in what deploys it, is a setting's variable or one of the others.

    A setting may have the name of a family in front; F stands for any family.
    """
    prefixes = ("", "F_", *(f"{family}_" for family in families([MODELS])))
    servers = {f"VOICE_CLONE_{prefix}{name}".upper() for name in names() for prefix in prefixes}
    gateways = {f"{GATEWAY_PREFIX}{each.name}".upper() for each in fields(GatewaySettings)}
    packages = ("voice_clone", "model_repository", "client", "gateway")
    files = [file for package in packages for file in (ROOT / package).rglob("*.py")]
    files += [
        ROOT / "Dockerfile",
        ROOT / "docker-compose.yml",
        *(ROOT / "tools").glob("*.yml"),
        ROOT / "README.md",
        ROOT / "client" / "README.md",
        ROOT / "gateway" / "README.md",
    ]
    files += [*(ROOT / "docs").glob("*.md"), *(ROOT / "tools" / "kubernetes").rglob("*.yaml")]
    named = {name for file in files for name in VARIABLE.findall(file.read_text(encoding="utf-8"))}
    assert named and named <= servers | gateways | set(OTHERS)
    assert set(VARIABLE.findall(others_table())) == set(OTHERS)
    assert all(f"| `{each.name}` |" in gateway_table() for each in fields(GatewaySettings))
