"""What is kept beside the voices, consents and dictionaries: owned and erased as voices are, and never spoken with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.doubles.fakes import Voices, clip
from voice_clone.errors import QuotaExceeded, SpeakerExists, SpeakerNotFound

STORES = ("files", "postgresql")  # all tests of this file run on both

KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # operation, its options, its fields
    "consent": ("record_consent", {"language": "en-US"}, {"audio": clip(7), "description": "Ada's own words"}),
    "dictionary": ("keep_dictionary", {"about": "names"}, {"audio": b"Ada's own words"}),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def keep(voices: Voices, kind: str, name: str = "one", owner: str = "alice", **options: Any) -> dict[str, Any]:
    operation, more, fields = KINDS[kind]
    return voices.call(operation, {**more, **options, "owner": owner}, name=id_of(kind, name), **fields).result


def id_of(kind: str, name: str = "one") -> str:
    return f"{'cons' if kind == 'consent' else 'dict'}_{name}"


def by(voices: Voices, kind: str, operation: str, owner: str | None = "alice", **given: Any) -> dict[str, Any]:
    name = given.pop("name", None)
    options = {"kind": kind, **given, **({} if owner is None else {"owner": owner})}
    return voices.call(operation, options, name=name).result


def ids(voices: Voices, kind: str, owner: str | None = "alice", **options: Any) -> list[str]:
    return [each["name"] for each in by(voices, kind, "list", owner, **options)["speakers"]]


def test_it_is_no_voice(voices: Voices, kind: str) -> None:
    keep(voices, kind)
    voices.upload("Ada")
    assert [each["name"] for each in voices.call("list").result["speakers"]] == ["Ada"]
    assert voices.call("export").result["speakers"] == ["Ada"]
    for operation in ("get", "delete", "export", "prepare", "resolve"):
        with pytest.raises(SpeakerNotFound):
            voices.call(operation, name=id_of(kind))
    with pytest.raises(SpeakerExists):
        voices.upload(id_of(kind), replace=True)
    assert ids(voices, kind) == [id_of(kind)] and voices.encoder.extractions == 1, "of the voice"


def test_others_neither_see_nor_change_it(voices: Voices, kind: str) -> None:
    made = keep(voices, kind)
    assert ids(voices, kind, "bob") == [] and ids(voices, kind, None) == [id_of(kind)]
    for operation in ("get", "delete"):
        with pytest.raises(SpeakerNotFound):
            by(voices, kind, operation, "bob", name=id_of(kind))
    with pytest.raises(SpeakerExists):
        keep(voices, kind, owner="bob")
    assert by(voices, kind, "get", name=id_of(kind)) == made


def test_pages_and_limits(voices: Voices, kind: str) -> None:
    for number in range(5):
        keep(voices, kind, str(number), max_owned=5)
    with pytest.raises(QuotaExceeded, match=r"5 (consents|dictionaries)"):
        keep(voices, kind, "9", max_owned=5)
    voices.call("upload", {"owner": "alice", "max_owned": 1}, name="Ada", audio=clip(1))
    assert ids(voices, kind, limit=2) == [id_of(kind, "0"), id_of(kind, "1")]
    assert ids(voices, kind, limit=2, after=id_of(kind, "3")) == [id_of(kind, "4")]


@pytest.mark.files
def test_its_file_is_gone_with_it(voices: Voices, kind: str, tmp_path: Path) -> None:
    keep(voices, kind)
    assert any(b"Ada's own words" in path.read_bytes() for path in tmp_path.rglob("*.safetensors"))
    by(voices, kind, "delete", name=id_of(kind))
    assert ids(voices, kind) == []
    assert not [*tmp_path.rglob("*.safetensors")]
