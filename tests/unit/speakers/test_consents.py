"""Recordings of consents: kept as voices are, owned and erased, and never spoken with."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.doubles.fakes import Voices, clip
from voice_clone.errors import InvalidArgument, SpeakerNotFound, VoiceCloneError
from voice_clone.speakers.name import parse_name
from voice_clone.speakers.record import SpeakerRecord
from voice_clone.speakers.voice_file import pack, pack_bundle

STORES = ("files", "postgresql")  # all tests of this file run on both

Make = Callable[..., Voices]
ID = "cons_1"


def record(voices: Voices, name: str = ID, owner: str | None = "alice", **options: Any) -> dict[str, Any]:
    given = {"language": "en-US", **options, **({} if owner is None else {"owner": owner})}
    return voices.call("record_consent", given, name=name, audio=clip(7), description="Ada says yes").result


def by(voices: Voices, operation: str, owner: str | None = "alice", name: str | None = None, **options: Any) -> Any:
    given = {"kind": "consent", **options, **({} if owner is None else {"owner": owner})}
    return voices.call(operation, given, name=name).result


def ids(voices: Voices, owner: str | None = "alice", **options: Any) -> list[str]:
    return [each["name"] for each in by(voices, "list", owner, **options)["speakers"]]


def test_it_is_listed_changed_and_erased_and_survives_a_restart(make_voices: Make) -> None:
    voices = make_voices()
    made = record(voices)
    assert (made["language"], made["description"], made["artifacts"]) == ("en-US", "Ada says yes", [])
    assert record(voices) == made, "the same once more, whose answer was lost"
    options = {"owner": "alice"}
    again = voices.call("record_consent", options, name=ID, description="Ada agrees").result
    assert (again["description"], again["created_at"]) == ("Ada agrees", made["created_at"])
    voices.cache.close()
    voices = make_voices()
    assert by(voices, "get", name=ID) == again and ids(voices) == [ID]
    assert voices.cache.store.read_audio(voices.cache.registry.page(None, "", None, "consent")[0]) == clip(7)
    by(voices, "delete", name=ID)
    assert ids(voices) == []
    for operation in ("get", "delete"):
        with pytest.raises(SpeakerNotFound):
            by(voices, operation, name=ID)
    voices.cache.close()
    assert ids(make_voices()) == []


def test_a_voice_may_refer_to_one_of_its_owner(voices: Voices) -> None:
    record(voices)
    for owner, consent in (
        ("bob", ID),
        ("alice", "cons_2"),
        ("alice", "cons_1/.."),
        ("alice", "cons_"),
        (None, "cons_2"),
    ):
        given = {} if owner is None else {"owner": owner}
        with pytest.raises(InvalidArgument, match="consent"):
            voices.call("upload", given, name="Ada", audio=clip(1), consent=consent)
    mine = voices.call("upload", {"owner": "alice"}, name="Ada", audio=clip(1), consent=ID).result
    assert mine["consent"] == ID
    by(voices, "delete", name=ID)
    with pytest.raises(InvalidArgument, match="consent"):
        voices.call("upload", {"owner": "alice"}, name="Bea", audio=clip(1), consent=ID)
    assert voices.get("Ada")["consent"] == ID, "the voice stays"


def test_others_do_not_describe_it_anew(voices: Voices) -> None:
    record(voices)
    with pytest.raises(SpeakerNotFound):
        voices.call("record_consent", {"owner": "bob"}, name=ID, description="mine")
    assert by(voices, "get", name=ID)["description"] == "Ada says yes"


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"name": "Ada", "audio": clip(1)}, {"language": "en"}),
        ({"audio": clip(1)}, {}),
        ({}, {"language": "en"}),
        ({"audio": clip(1)}, {"language": "no language"}),
        ({"audio": b"no sound"}, {"language": "en"}),
        ({"audio": clip(1), "description": " "}, {"language": "en"}),
        ({"audio": clip(1), "description": "x" * 2000}, {"language": "en"}),
    ],
)
def test_what_is_none_is_refused(voices: Voices, fields: dict[str, Any], options: dict[str, Any]) -> None:
    with pytest.raises(VoiceCloneError) as error:
        voices.call("record_consent", options, **{"name": ID, "description": "Ada", **fields})
    assert isinstance(error.value, InvalidArgument | SpeakerNotFound) and ids(voices, None) == []


def test_no_bundle_brings_one(voices: Voices) -> None:
    record(voices)
    [kept] = voices.cache.registry.page(None, "", None, "consent")
    header, tensors = voices.cache.store.read_all(kept)
    made = io.BytesIO()
    pack_bundle([pack(header.record, tensors, header.digests)], 1, made)
    bundle = made.getvalue()
    by(voices, "delete", name=ID)
    with pytest.raises(InvalidArgument, match=ID):
        voices.call("import", audio=bundle)
    with pytest.raises(InvalidArgument, match=ID):
        voices.call("resolve", voice_prompt=bundle, model_type="qwen3_tts")
    assert ids(voices) == [] and voices.call("list").result["count"] == 0


def test_one_that_is_deleted_while_it_is_described_anew_stays_deleted(make_voices: Make, store: str) -> None:
    one = make_voices()
    other = make_voices() if store == "postgresql" else one
    record(one)
    read, name = one.cache.store.read_audio, parse_name(ID)

    def delete_meanwhile(kept: SpeakerRecord) -> bytes | None:
        audio = read(kept)
        one.cache.store.read_audio = read  # type: ignore[method-assign]
        if other is one:
            other.cache.store.remove(lambda: kept)
        else:
            other.cache.registry.remove(name, "alice", "consent")
        return audio

    one.cache.store.read_audio = delete_meanwhile  # type: ignore[method-assign]
    with pytest.raises(SpeakerNotFound):
        one.call("record_consent", {"owner": "alice"}, name=ID, description="Ada agrees")
    assert ids(one) == ids(other) == []


def test_other_servers_of_a_fleet_have_it_at_once(make_voices: Make, store: str) -> None:
    if store == "postgresql":
        one, other = make_voices(), make_voices()
        record(one)
        assert ids(other) == [ID]
        voice = other.call("upload", {"owner": "alice"}, name="Ada", audio=clip(1), consent=ID).result
        assert voice["consent"] == ID
        by(other, "delete", name=ID)
        assert ids(one) == []
