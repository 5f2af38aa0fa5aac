"""Voices that are added by the APIs of vendors: their names."""

from __future__ import annotations

import pytest
from voice_clone_gateway.vendors.registering import plain_name


@pytest.mark.parametrize(
    ("text", "name"),
    [("Zoë (studio)!", "Zoë -studio--"), (" .hidden ", "hidden"), ("x" * 100, "x" * 64), ("...", "voice")],
)
def test_a_name_that_a_voice_may_have(text: str, name: str) -> None:
    assert plain_name(text) == name
