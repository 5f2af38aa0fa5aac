"""The write token: which operations want it, and what passes for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fakes import Voices
from voice_clone.errors import PermissionDenied
from voice_clone.speakers.write_token import WriteToken

TOKEN = "correct-horse-battery-staple"
READS = {"get", "list", "stats", "resolve", "prepare"}


def test_what_writes_or_takes_voices_away_wants_the_token_and_nothing_else_does(voices: Voices) -> None:
    """Of all operations that there are: a new one is guarded until it is known to read."""
    guard = WriteToken(TOKEN)
    operations = set(voices.cache._operations)
    assert operations > READS
    for operation in operations - READS:
        guard.check(operation, {}, TOKEN)
        with pytest.raises(PermissionDenied, match=f"^{operation} needs the server's write token"):
            guard.check(operation, {}, None)
    for operation in READS:
        guard.check(operation, {}, None)


@pytest.mark.parametrize("force", [True, 1, "yes"])
def test_to_build_a_voice_anew_is_to_write(force: Any) -> None:
    guard = WriteToken(TOKEN)
    guard.check("prepare", {"force": False}, None)
    guard.check("prepare", {"force": force}, TOKEN)
    with pytest.raises(PermissionDenied):
        guard.check("prepare", {"force": force}, None)


@pytest.mark.parametrize("given", [None, "", TOKEN[:-1], TOKEN + " ", TOKEN.upper(), "\ud800", "ключ", 7, True, 0.5])
def test_anything_else_is_refused_and_nothing_of_it_is_told(given: Any) -> None:
    with pytest.raises(PermissionDenied) as caught:
        WriteToken(TOKEN).check("delete", {}, given)
    assert TOKEN not in str(caught.value) and "x-voice-token" in str(caught.value)
    assert not given or str(given) not in str(caught.value)


def test_without_a_token_everything_passes() -> None:
    for given in (None, "anything"):
        WriteToken("").check("delete", {}, given)
