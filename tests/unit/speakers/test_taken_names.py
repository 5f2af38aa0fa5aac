"""A name that is taken: refused unless `replace` is said, but never for who only sends the same once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.doubles.fakes import Voices, clip, together
from voice_clone.errors import InvalidArgument, SpeakerExists

STORES = ("files", "postgresql")
Make = Callable[..., Voices]
FIELDS: dict[str, Any] = {"reference_text": "Hello.", "consent": "signed", "description": "calm"}
EMBEDDING: dict[str, Any] = {"audio": None, "speaker_embedding": np.arange(1024, dtype=np.float32)}


@pytest.mark.parametrize(
    ("stored", "name"),
    [("Boss", "Boss"), ("Boss", "boss"), ("Boss", " BOSS "), ("Rene\u0301", "REN\u00c9"), ("Straße", "STRASSE")],
)
def test_a_taken_name_is_refused_and_shown_as_it_is_stored(voices: Voices, stored: str, name: str) -> None:
    voices.upload(stored, 1, **FIELDS)
    before = voices.get(stored)
    for fields in ({}, EMBEDDING):
        with pytest.raises(SpeakerExists) as refused:
            voices.upload(name, 2, **fields)
        assert str(refused.value) == f"the name {before['name']!r} is taken; the option replace replaces its voice"
    assert voices.get(stored) == before
    assert voices.upload(name, 2, replace=True)["generation"] > before["generation"]
    assert "description" not in voices.get(stored) and voices.call("list").result["count"] == 1


def test_a_name_of_other_characters_is_free(voices: Voices) -> None:
    for name in ("Boss", "\uff22\uff4f\uff53\uff53", "Bo ss", "Boss."):
        voices.upload(name)
    assert voices.call("list").result["count"] == 4


@pytest.mark.parametrize("option", [{"replace": "yes"}, {"replace": 1}, {"policy": "replace"}])
def test_replace_is_true_or_false(voices: Voices, option: dict[str, Any]) -> None:
    for operation in ("upload", "import"):
        with pytest.raises(InvalidArgument, match=f"option '?{next(iter(option))}"):
            voices.call(operation, option, name="Ada" if operation == "upload" else None, audio=clip())


@pytest.mark.parametrize("fields", [FIELDS, EMBEDDING])
@pytest.mark.parametrize("restart", [False, True])
def test_the_same_upload_again_answers_the_voice_as_it_is(
    voices: Voices, fields: dict[str, Any], restart: bool
) -> None:
    first = voices.upload("Boss", 1, **fields)
    if restart:
        voices.restart()
    assert voices.upload("Boss", 1, **fields) == first == voices.get("Boss")
    assert voices.encoder.extractions == (0 if restart or fields is EMBEDDING else 1)


@pytest.mark.parametrize(
    "other",
    [
        {"name": "boss"},
        {"seed": 2},
        {"reference_text": "Hello!"},
        {"reference_text": None},
        {"consent": "by mail"},
        {"description": None},
        {**EMBEDDING, "reference_text": None},
    ],
)
def test_an_upload_that_differs_in_anything_is_another_one(voices: Voices, other: dict[str, Any]) -> None:
    first = voices.upload("Boss", 1, **FIELDS)
    with pytest.raises(SpeakerExists):
        voices.upload(**{"name": "Boss", "seed": 1, **FIELDS, **other})
    with pytest.raises(SpeakerExists):
        voices.call("upload", {"shared": True}, name="Boss", audio=clip(1), **FIELDS)
    assert voices.get("Boss") == first


def test_an_embedding_of_other_numbers_is_another_one(voices: Voices) -> None:
    voices.upload("Boss", **EMBEDDING)
    with pytest.raises(SpeakerExists):
        voices.upload("Boss", **EMBEDDING | {"speaker_embedding": np.ones(1024, np.float32)})


def test_an_import_leaves_what_is_there_already_and_registers_the_rest(make_voices: Make) -> None:
    source, target = make_voices("source"), make_voices("target")
    for seed, name in enumerate(("Ada", "Bob")):
        source.upload(name, seed)
    one = source.call("export", name="Ada").artifacts
    both = source.call("export").artifacts
    first = target.call("import", audio=one).result["speakers"][0]
    for _ in range(2):
        found = target.call("import", audio=both).result["speakers"]
        assert [each["name"] for each in found] == ["Ada", "Bob"] and found[0]["generation"] == first["generation"]
    assert source.call("import", audio=both).result["count"] == 2, "where they come from"


def test_a_refusal_of_many_names_lists_some(make_voices: Make) -> None:
    source, target = make_voices("source"), make_voices("target")
    for seed in range(8):
        source.upload(f"v{seed}", seed, wait=False)
        target.upload(f"V{seed}", seed, wait=False)
    with pytest.raises(SpeakerExists, match=r"^the names 'V0', .*'V4' and 3 more are taken"):
        target.call("import", audio=source.call("export").artifacts)


def test_uploads_of_one_name_at_once(make_voices: Make) -> None:
    servers = [make_voices()]
    if servers[0].dsn is not None:
        servers.append(make_voices())  # of a fleet
    results = together(8, lambda index: servers[index % len(servers)].upload("Boss", index))
    [kept] = [result for result in results if isinstance(result, dict)]
    assert sum(type(result) is SpeakerExists for result in results) == 7
    assert servers[0].get("Boss")["generation"] == kept["generation"]
    same = together(8, lambda index: servers[index % len(servers)].upload("Ada"))
    assert len({result["generation"] for result in same}) == 1
