"""Aliases: further names of voices, which are kept beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.doubles.fakes import FakeEncoder, Voices, clip
from voice_clone.errors import InvalidArgument, NameReserved, SpeakerExists, SpeakerNotFound

STORES = ("files", "postgresql")  # all tests of this file run on both

Make = Callable[..., Voices]


def point(voices: Voices, alias: str, voice: str, owner: str | None = None, **options: Any) -> dict[str, Any]:
    given = {"voice": voice, **options, **({} if owner is None else {"owner": owner})}
    return voices.call("set_alias", given, name=alias).result


def aliases(voices: Voices, owner: str | None = None) -> dict[str, str]:
    given = {"kind": "alias", **({} if owner is None else {"owner": owner})}
    return {each["name"]: each["voice"] for each in voices.call("list", given).result["speakers"]}


def by(voices: Voices, owner: str, operation: str, name: str) -> dict[str, Any]:
    return voices.call(operation, {"owner": owner}, name=name).result


def test_a_voice_speaks_by_it_also_after_a_restart(make_voices: Make) -> None:
    voices = make_voices()
    voices.upload("Ada", reference_text="Hello.")
    voices.upload("Bea", 1, reference_text="Hello.")
    point(voices, "alloy", "ada")
    assert voices.resolve("ALLOY").artifacts == voices.resolve("Ada").artifacts
    assert voices.get("Alloy")["name"] == "Ada" and aliases(voices) == {"alloy": "ada"}
    assert [each["name"] for each in voices.call("list").result["speakers"]] == ["Ada", "Bea"]
    assert voices.call("export").result["speakers"] == ["Ada", "Bea"]
    point(voices, "alloy", "Bea")
    voices.cache.close()
    voices = make_voices()
    assert voices.get("alloy")["name"] == "Bea"
    voices.call("delete", {"kind": "alias"}, name="alloy")
    assert aliases(voices) == {} and voices.get("Bea")
    with pytest.raises(SpeakerNotFound):
        voices.get("alloy")


def test_other_servers_of_a_fleet_have_it_at_once(make_voices: Make, store: str) -> None:
    if store == "postgresql":
        one, other = make_voices(), make_voices()
        one.upload("Ada")
        point(one, "alloy", "Ada")
        assert other.get("alloy")["name"] == "Ada" and aliases(other) == {"alloy": "Ada"}
        other.call("delete", {"kind": "alias"}, name="alloy")
        assert aliases(one) == {}


def test_it_takes_no_place_of_a_voice_and_no_voice_takes_its_place(voices: Voices) -> None:
    for name, seed in (("Ada", 0), ("Bea", 1)):
        voices.upload(name, seed)
    point(voices, "alloy", "Ada")
    for attempt in (
        lambda: point(voices, "Bea", "Ada"),
        lambda: voices.upload("alloy", 2, replace=True),
        lambda: by(voices, "alice", "upload", "alloy"),
    ):
        with pytest.raises((SpeakerExists, InvalidArgument)):
            attempt()
    for voice in ("alloy", "Ada"):
        with pytest.raises(InvalidArgument):
            point(voices, "ada" if voice == "Ada" else "nova", voice)
    with pytest.raises(InvalidArgument, match="alias"):
        voices.call("delete", name="alloy")
    with pytest.raises(SpeakerNotFound):
        point(voices, "nova", "Nobody")
    assert aliases(voices) == {"alloy": "Ada"} and voices.get("Ada")


def test_whose_it_is(voices: Voices) -> None:
    voices.call("upload", {"shared": True}, name="Hall", audio=clip(0))
    voices.upload("House", 1)
    voices.call("upload", {"owner": "bob", "shared": True}, name="Bob", audio=clip(2))
    point(voices, "alloy", "Hall")
    point(voices, "nova", "House")
    assert by(voices, "alice", "get", "alloy")["name"] == "Hall"
    with pytest.raises(SpeakerNotFound):
        by(voices, "alice", "get", "nova")
    for attempt in (
        lambda: voices.call("delete", {"kind": "alias", "owner": "alice"}, name="alloy"),
        lambda: by(voices, "alice", "delete", "alloy"),
        lambda: point(voices, "alloy", "Bob", "bob"),
        lambda: point(voices, "echo", "Bob", "bob", reserved=["echo"]),
        lambda: point(voices, "echo", "Hall", "bob"),
        lambda: point(voices, "echo", "Bob"),
    ):
        with pytest.raises((SpeakerNotFound, SpeakerExists, NameReserved, InvalidArgument)):
            attempt()
    point(voices, "bobby", "Bob", "bob")
    assert aliases(voices, "bob") == {"alloy": "Hall", "bobby": "Bob", "nova": "House"}
    assert "bobby" not in aliases(voices, "alice")


def test_nobody_else_takes_the_place_of_a_voice_that_is_gone(voices: Voices) -> None:
    voices.call("upload", {"shared": True}, name="Hall", audio=clip(0))
    point(voices, "alloy", "Hall")
    voices.call("delete", name="Hall")
    voices.call("upload", {"owner": "bob", "shared": True}, name="Hall", audio=clip(1))
    with pytest.raises(SpeakerNotFound, match="Hall"):
        by(voices, "alice", "get", "alloy")


def test_a_voice_of_a_checkpoint_has_one(make_voices: Make) -> None:
    encoder = FakeEncoder()
    encoder.presets = {"voxtral": ("Ann",)}
    voices = make_voices(encoder=encoder, defaults=("qwen3_tts", "voxtral"))
    point(voices, "alloy", "ann")
    assert voices.call("resolve", name="Alloy", model_type="voxtral").result == {"preset": "Ann"}
    with pytest.raises(SpeakerNotFound):
        voices.call("resolve", name="alloy", model_type="qwen3_tts")
    voices.upload("Ann")
    assert voices.get("alloy")["name"] == "Ann"
