"""Settings stand in three places, and these agree: the code that reads them, config.pbtxt, docs/settings.md."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest
from voice_clone_gateway.settings import PREFIX as GATEWAY_PREFIX
from voice_clone_gateway.settings import Settings as GatewaySettings

from tools.families.recognition import families
from tools.settings_table import (
    BEGIN,
    DOCUMENT,
    END,
    OTHERS,
    VARIABLES_ONLY,
    gateway_table,
    others_table,
    parameters,
    tables,
)
from tools.triton_server import MODELS, ROOT

KINDS = {"text", "integer", "number", "integers", "choice", "secret"}
PROPERTIES = {"checkpoint_dir", "voice_dir"}
VARIABLE = re.compile(r"\bVOICE_CLONE_[A-Z_]*[A-Z]\b")


def read_settings() -> set[str]:
    """Names with which the code asks a `Settings`, wherever it does."""
    files = [*(ROOT / "voice_clone").rglob("*.py"), *(ROOT / "model_repository").rglob("*.py")]
    return {name for file in files for name in asked(file)} | PROPERTIES


def asked(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KINDS):
            continue
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "settings":
            [name] = [argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)]
            found.add(name)
    return found


def test_the_configurations_offer_exactly_the_settings_that_the_code_reads() -> None:
    assert read_settings() == {name for _, name, _, _ in parameters()} | set(VARIABLES_ONLY)


@pytest.mark.parametrize(("model", "name", "default", "meaning"), parameters())
def test_a_setting_is_explained(model: str, name: str, default: str, meaning: str) -> None:
    assert meaning or not default, f"{model}: {name} has no comment"


def test_the_document_has_them_all() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == tables().strip()


def test_every_variable_that_the_code_names_is_in_a_table() -> None:
    """A whole name in the code, or in what deploys it, is a setting's variable or one of the others.

    A setting may have the name of a family in front; F stands for any family.
    """
    prefixes = ("", "F_", *(f"{family}_" for family in families([MODELS])))
    servers = {f"VOICE_CLONE_{prefix}{name}".upper() for name in read_settings() for prefix in prefixes}
    gateways = {f"{GATEWAY_PREFIX}{each.name}".upper() for each in fields(GatewaySettings)}
    packages = ("voice_clone", "model_repository", "client/voice_clone_client", "client/voice_clone_gateway")
    files = [file for package in packages for file in (ROOT / package).rglob("*.py")]
    files += [
        ROOT / "Dockerfile",
        ROOT / "docker-compose.yml",
        *(ROOT / "tools").glob("*.yml"),
        ROOT / "README.md",
        ROOT / "client" / "README.md",
    ]
    files += [*(ROOT / "docs").glob("*.md"), *(ROOT / "tools" / "kubernetes").rglob("*.yaml")]
    named = {name for file in files for name in VARIABLE.findall(file.read_text(encoding="utf-8"))}
    assert named and named <= servers | gateways | set(OTHERS)
    assert set(VARIABLE.findall(others_table())) == set(OTHERS)
    assert all(f"| `{each.name}` |" in gateway_table() for each in fields(GatewaySettings))
