"""docs/triton_faults.md names the faults of Triton; the code names at each workaround which one it is for."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from voice_clone.turns import TOKEN_PARAMETER
from voice_clone_server.triton_server import ROOT

FOLDERS = ("voice_clone", "voice_clone_server", "client", "gateway", "tools", "model_repository")
NAMED = re.compile(r"\bfault:\s+([a-z]+(?:-[a-z]+)+)", re.IGNORECASE)
RESERVED = {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
"""What Triton 26.05 and later refuse as the name of a request's parameter, or of a forwarded header."""


def rows() -> list[list[str]]:
    """The cells of the table of faults."""
    text = (ROOT / "docs" / "triton_faults.md").read_text(encoding="utf-8")
    part = text.partition("## Faults and workarounds")[2].partition("\n###")[0]
    lines = [line for line in part.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def named() -> Counter[tuple[str, str]]:
    """(fault, file) for each place in the code that names one."""
    files = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".pbtxt"))
    return Counter(
        (fault, str(file.relative_to(ROOT)))
        for file in files
        for fault in NAMED.findall(file.read_text(encoding="utf-8"))
    )


ROWS = rows()


def test_there_are_faults_and_each_has_one_row() -> None:
    names = [row[0] for row in ROWS]
    assert len(names) > 20 and len(set(names)) == len(names)


@pytest.mark.parametrize("row", ROWS, ids=[row[0].strip("`") for row in ROWS])
def test_a_workaround_is_where_the_table_says_and_for_known_versions(row: list[str]) -> None:
    name, fault, old, new, cure, place = row
    assert fault and cure
    assert re.match(r"(yes|no)\b", old), "all of it was tried on 2.51"
    assert re.match(r"(\?$|(run|read): )", new), "run, read, or not tried"
    found = {file for known, file in named() if f"`{known}`" == name}
    if place:
        assert place.strip("`") in found, f"{place} does not name {name}"
    else:
        assert not found, f"{name} has a place: {found}"


def test_the_code_names_no_fault_that_the_table_lacks() -> None:
    assert {f"`{fault}`" for fault, _ in named()} <= {row[0] for row in ROWS}


def test_our_parameters_and_headers_have_no_name_that_newer_servers_reserve() -> None:
    files = (ROOT / "voice_clone" / "triton").rglob("*.py")
    ours = {name for file in files for name in re.findall(r"\.parameter\(\"(\w+)\"\)", file.read_text())}
    assert ours >= {"deadline_ms", "owner"}
    assert not (ours | {TOKEN_PARAMETER}) & RESERVED
    assert not any(name.startswith("triton_") for name in ours)
