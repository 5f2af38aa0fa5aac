"""How the processes of a run share the tests: a file's tests stay together, and so do files with the same mark `share`.

A plugin of pytest, loaded by tests/conftest.py.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

MARK = re.compile(r'\bmark\.share\("([^"]+)"\)')
# How shares begin, in the order in which they are taken. While the first server compiles native code, which all others
# then find, the other processes have the second ones, which need none: else each would compile it.
ORDER = (
    ("servers",),
    ("tests/unit/client/", "tests/unit/command/", "tests/unit/gateway/", "tests/unit/speakers/"),
    ("official packages",),
    ("families", "contract", "tests/server/"),
    ("",),
)


@cache
def share_of(file: Path) -> str | None:
    """What the mark `share` of a file names: read, for the process that hands out the shares imports no test."""
    found = MARK.search(file.read_text(encoding="utf-8"))
    return found and found[1]


class Shares(LoadFileScheduling):
    """A share for each free process."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return share_of(self.config.rootpath / file) or file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares | None:
    """In place of xdist's `--dist loadfile`."""
    return Shares(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long shares first, those with few tests last: where several processes share them, all end at about once.

    The tests of a file keep the random order that they have here.
    """
    files = {item.path: item.nodeid.split("::")[0] for item in items}
    shares = {path: share_of(path) or file for path, file in files.items()}
    tests = Counter(shares[item.path] for item in items)
    turns = {path: turn for turn, path in enumerate(files)}

    def place(item: pytest.Item) -> tuple[int, int, str, int]:
        share = shares[item.path]
        first = next(rank for rank, beginnings in enumerate(ORDER) if share.startswith(beginnings))
        return first, -tests[share], share, turns[item.path]

    items.sort(key=place)
