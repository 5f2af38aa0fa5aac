"""How the processes of a run share the tests: a file's tests stay together, and so do the files that share a server.

A plugin of pytest, loaded by tests/conftest.py.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).parents[1]
SHARED = "with the servers of tests/server/conftest.py"
OFFICIAL = "with the official packages"
# What each file of tests/server is run together with: fixtures of that conftest.py start their servers once.
SHARES = {
    **dict.fromkeys(("chaos", "code2wav_on_server", "embedding", "errors", "next_server", "onnx_server"), SHARED),
    **dict.fromkeys(("readme", "reference_report", "refusals", "speech", "stage_inputs"), SHARED),
    **dict.fromkeys(("talker_in_ensemble", "voices"), SHARED),
    **dict.fromkeys(("erasure", "fish_speech"), "with the servers of both families"),
    "whole_way": OFFICIAL,
}
# How the names of shares begin, in the order in which they are taken; the second group needs no native code.
PURE = ("tests/unit/client/", "tests/unit/gateway/", "tests/unit/speakers/")
ORDER = ((SHARED,), PURE, (OFFICIAL,), ("with ", "tests/server/"), ("",))


def share_of(file: str) -> str:
    """What the tests of a file, a path below the project's folder, run together with."""
    folder, inner = Path(file).parts[1:3]
    if folder == "parity":
        return OFFICIAL
    if folder != "server":
        return file
    return SHARED if inner == "gateway" else SHARES.get(Path(file).stem.removeprefix("test_"), file)


class Shares(LoadFileScheduling):
    """A share for each free process."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares | None:
    """In place of xdist's `--dist loadfile`."""
    return Shares(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long shares first, those with few tests last: where several processes share them, all end at about once.

    While the first server compiles native code, which all others then find, the other processes have files that need
    none: else each would compile it. The tests of a file keep the random order that they have here.
    """
    files = {path: path.relative_to(TESTS.parent).as_posix() for path in dict.fromkeys(item.path for item in items)}
    shares = {path: share_of(file) for path, file in files.items()}
    tests = Counter(shares[item.path] for item in items)
    turns = {path: turn for turn, path in enumerate(files)}

    def place(item: pytest.Item) -> tuple[int, int, str, int]:
        share = shares[item.path]
        first = next(rank for rank, beginnings in enumerate(ORDER) if share.startswith(beginnings))
        return first, -tests[share], share, turns[item.path]

    items.sort(key=place)
