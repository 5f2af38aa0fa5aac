"""Dictionaries of pronunciations: kept as voices are, owned and erased, and never read here."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.doubles.fakes import Voices
from voice_clone.errors import InvalidArgument, SpeakerExists, SpeakerNotFound, VoiceCloneError

STORES = ("files", "postgresql")  # all tests of this file run on both

Make = Callable[..., Voices]
ID = "dict_1"


def keep(voices: Voices, name: str = ID, owner: str | None = "alice", content: Any = b"words", **options: Any) -> Any:
    given = {"about": "names", **options, **({} if owner is None else {"owner": owner})}
    return voices.call("keep_dictionary", given, name=name, audio=content).result


def by(voices: Voices, operation: str, owner: str | None = "alice", name: str | None = None, **options: Any) -> Any:
    given = {"kind": "dictionary", **options, **({} if owner is None else {"owner": owner})}
    return voices.call(operation, given, name=name)


def ids(voices: Voices, owner: str | None = "alice", **options: Any) -> list[str]:
    return [each["name"] for each in by(voices, "list", owner, **options).result["speakers"]]


def content(voices: Voices, owner: str | None = "alice", **options: Any) -> bytes | None:
    found: bytes | None = by(voices, "get", owner, ID, **options).artifacts
    return found


def test_it_is_changed_and_erased_and_survives_a_restart(make_voices: Make) -> None:
    voices = make_voices()
    made = keep(voices)
    assert keep(voices) == made, "the same once more, whose answer was lost"
    assert content(voices) == b"words"
    changed = keep(voices, content=b"\0more", about="people", generation=made["generation"])
    assert (changed["about"], changed["created_at"]) == ("people", made["created_at"])
    renamed = keep(voices, content=None, about="Ada's", generation=changed["generation"])
    assert content(voices) == b"\0more"
    voices.cache.close()
    voices = make_voices()
    assert by(voices, "get", name=ID).result == renamed and content(voices) == b"\0more" and ids(voices) == [ID]
    by(voices, "delete", name=ID)
    assert ids(voices) == []
    for call in (lambda: by(voices, "get", name=ID), lambda: by(voices, "delete", name=ID)):
        with pytest.raises(SpeakerNotFound):
            call()
    voices.cache.close()
    assert ids(make_voices()) == []


def test_no_change_is_lost(make_voices: Make, store: str) -> None:
    """Each change names the generation that it is of; of two changes of the same one, one is refused."""
    servers = [make_voices(), make_voices()] if store == "postgresql" else [make_voices()] * 2
    generation = keep(servers[0], content=b"|")["generation"]
    with pytest.raises(SpeakerExists, match="read it"):
        keep(servers[1], generation=generation + 1)

    def add(number: int) -> None:
        voices = servers[number % 2]
        while True:
            read = by(voices, "get", name=ID)
            try:
                keep(voices, content=read.artifacts + b"%d|" % number, generation=read.result["generation"])
                return
            except SpeakerExists:
                continue

    with ThreadPoolExecutor(8) as pool:
        [*pool.map(add, range(40))]
    for voices in servers:
        found = content(voices) or b""
        assert sorted(filter(None, found.split(b"|"))) == sorted(b"%d" % number for number in range(40))


def test_others_do_not_change_it(voices: Voices) -> None:
    generation = keep(voices)["generation"]
    with pytest.raises(SpeakerNotFound):
        keep(voices, owner="bob", generation=generation)
    assert content(voices) == b"words"


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"name": "Ada"}, {}),
        ({"audio": None}, {}),
        ({"audio": b""}, {}),
        ({"audio": bytes((4 << 20) + 1)}, {}),
        ({}, {"about": None}),
        ({}, {"about": " "}),
        ({}, {"about": "x" * 9000}),
        ({}, {"about": "\ud800"}),
        ({}, {"generation": -1}),
        ({}, {"generation": 7}),
    ],
)
def test_what_is_none_is_refused(voices: Voices, fields: dict[str, Any], options: dict[str, Any]) -> None:
    given = {name: value for name, value in {"about": "names", **options}.items() if value is not None}
    with pytest.raises(VoiceCloneError) as error:
        voices.call("keep_dictionary", given, **{"name": ID, "audio": b"words", **fields})
    assert isinstance(error.value, InvalidArgument | SpeakerNotFound) and ids(voices, None) == []
