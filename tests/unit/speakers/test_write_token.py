"""The write token: which operations need it, and which tokens pass."""

from __future__ import annotations

from typing import Any

import pytest

from voice_clone.errors import PermissionDenied
from voice_clone.speakers.parsing import FORMS
from voice_clone.speakers.write_token import WriteToken

TOKEN = "correct-horse-battery-staple"
READS = {"get", "list", "presets", "stats", "resolve", "prepare"}


def test_only_operations_that_write_or_export_voices_need_the_token() -> None:
    """Of all operations that there are: a new one is guarded until it is known to read."""
    guard = WriteToken(TOKEN)
    operations = set(FORMS)
    assert operations > READS
    for operation in operations - READS:
        guard.check(operation, {}, TOKEN)
        with pytest.raises(PermissionDenied, match=f"^{operation} needs the server's write token"):
            guard.check(operation, {}, None)
    for operation in READS:
        guard.check(operation, {}, None)


@pytest.mark.parametrize("force", [True, 1, "yes"])
def test_extracting_a_voice_again_is_a_write(force: Any) -> None:
    guard = WriteToken(TOKEN)
    guard.check("prepare", {"force": False}, None)
    guard.check("prepare", {"force": force}, TOKEN)
    with pytest.raises(PermissionDenied):
        guard.check("prepare", {"force": force}, None)


@pytest.mark.parametrize("given", [None, "", TOKEN[:-1], TOKEN + " ", TOKEN.upper(), "\ud800", "ключ", 7, True, 0.5])
def test_any_other_token_is_refused_and_not_repeated(given: Any) -> None:
    with pytest.raises(PermissionDenied) as caught:
        WriteToken(TOKEN).check("delete", {}, given)
    assert TOKEN not in str(caught.value) and "x-voice-token" in str(caught.value)
    assert not given or str(given) not in str(caught.value)


def test_every_operation_passes_without_a_token() -> None:
    for given in (None, "anything"):
        WriteToken("").check("delete", {}, given)
