"""Which files a run imports: none whose tests it all leaves out by their mark.

A plugin of pytest, loaded by tests/conftest.py. Each process of xdist collects all tests, and the file of a mark takes
as long to import for a run without its tests as for one with them.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Generator
from pathlib import Path

import pytest

FIRST_MARK = re.compile(r"^pytestmark = (?:\[\s*)?pytest\.mark\.(\w+)", re.MULTILINE)


def left_out(expression: str) -> set[str]:
    """The marks that an expression of `-m` rules out. Empty where it holds an `or` or brackets, which are not read."""
    return set() if re.search(r"\bor\b|[()]", expression) else set(re.findall(r"\bnot (\w+)", expression))


def named(config: pytest.Config) -> set[Path]:
    """What the command line names."""
    return {(config.invocation_params.dir / each.split("::")[0]).resolve() for each in config.args}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage meanwhile, nor ever at what is there then: imports leave none, and each look takes long."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave a file out if its first mark is ruled out for all its tests, and the command line does not name it."""
    if collection_path.suffix != ".py" or not (marks := left_out(config.option.markexpr)):
        return None
    first = FIRST_MARK.search(collection_path.read_text(encoding="utf-8"))
    return True if first and first[1] in marks and collection_path not in named(config) else None


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the thorough tests, too, of a file that the command line names."""
    if "thorough" not in left_out(config.option.markexpr):
        return
    files = named(config)
    for item in items:
        for node in item.listchain() if item.path in files else []:
            node.own_markers[:] = [mark for mark in node.own_markers if mark.name != "thorough"]
