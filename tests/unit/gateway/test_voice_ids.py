"""Ids of voices: made of owner and name, found again, and of no use to others."""

from __future__ import annotations

import asyncio
import string
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from voice_clone_client import Preset, Voice
from voice_clone_client.types import name_key
from voice_clone_gateway.voices.ids import LENGTH, VoiceIds, is_id, voice_id

NAMES = st.text(string.ascii_letters + string.digits + " ._-é", min_size=1, max_size=64)


class Lister:
    """The client of an owner, who sees these voices."""

    def __init__(self, owner: str | None, *voices: Voice) -> None:
        self.owner = owner
        self.voices = sorted(voices, key=lambda voice: voice.name)
        self.lists = 0

    async def presets(self) -> list[Preset]:
        return [Preset("Vivian", "qwen3_tts")]

    async def list(self, *, limit: int, after: str | None) -> list[Voice]:
        self.lists += 1
        await asyncio.sleep(0)
        return [voice for voice in self.voices if after is None or voice.name > after][:limit]


def name_of(ids: VoiceIds, client: Any, text: str) -> str:
    return asyncio.run(ids.name_of(client, text))


@given(NAMES, NAMES, st.sampled_from([None, "ann", "bob"]))
def test_an_id_is_that_of_one_voice(name: str, other: str, owner: str | None) -> None:
    made = voice_id(owner, name)
    assert len(made) == LENGTH and made.isalnum() and is_id(made) and not is_id(name)
    assert voice_id(owner, f" {name.upper()} ") == voice_id(owner, name.upper())
    assert (voice_id(owner, other) == made) == (name_key(other) == name_key(name))
    assert made not in (voice_id("cid", name), voice_id("", name))


def test_ids_are_found_and_remembered() -> None:
    ids, client = (
        VoiceIds(),
        Lister(None, *(Voice(f"v{number:04}") for number in range(1500)), Voice("Eve", owner="eve")),
    )
    for voice in (client.voices[0], client.voices[-1]):
        for prefix in ("", "voice_"):
            assert name_of(ids, client, prefix + voice_id(voice.owner, voice.name)) == voice.name
    assert name_of(ids, client, voice_id(None, "Vivian")) == "Vivian"
    assert client.lists == 2, "once, in two pages"
    for text in ("Ada", "voice_", "voice_Ada", "x" * LENGTH):
        assert name_of(ids, client, text) == text
    assert client.lists == 2, "these are no ids"


def test_an_id_is_found_by_whom_sees_its_voice() -> None:
    ids, ann, bob = VoiceIds(), Lister("ann", Voice("Ada", owner="ann")), Lister("bob")
    made = voice_id("ann", "Ada")
    assert name_of(ids, ann, made) == "Ada"
    assert name_of(ids, bob, made) == made


def test_a_new_voice_is_found_at_once_and_many_wrong_ids_cost_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(
        "voice_clone_gateway.voices.ids.asyncio",
        SimpleNamespace(sleep=lambda seconds: slept.append(seconds) or asyncio.sleep(0), Lock=asyncio.Lock),
    )
    ids, client = VoiceIds(), Lister(None)

    async def all_at_once() -> None:
        wrong = [voice_id(None, f"nobody {number}") for number in range(50)]
        assert await asyncio.gather(*(ids.name_of(client, text) for text in wrong)) == wrong  # type: ignore[arg-type]
        assert client.lists == 1
        client.voices.append(Voice("New"))
        assert await ids.name_of(client, voice_id(None, "New")) == "New"  # type: ignore[arg-type]
        assert client.lists == 2 and slept[-1] > 0.5, "the second list waits"

    asyncio.run(all_at_once())
