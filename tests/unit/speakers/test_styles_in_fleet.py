"""Styles of voices in a database that several servers change at once, and of which one has a newer version."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.doubles.fakes import Voices, clip
from voice_clone.errors import Overloaded
from voice_clone.speakers.record import SpeakerRecord

pytestmark = pytest.mark.thorough

STORES = ("postgresql",)
Make = Callable[..., Voices]


def test_a_style_that_other_servers_outrun_is_added_after_theirs(make_voices: Make) -> None:
    here, there = make_voices(), make_voices()
    here.upload()
    read_all, others = here.cache.store.read_all, list(range(5))

    def add(voices: Voices, seed: int, style: str, **options: Any) -> None:
        voices.call("upload", {"style": style, **options}, name="Ada", audio=clip(seed))

    def outrun(record: SpeakerRecord) -> Any:
        found = read_all(record)
        if others:
            seed = others.pop(0)
            add(there, seed, f"there{seed % 8}", replace=True)
        return found

    here.cache.store.read_all = outrun  # type: ignore[method-assign]
    add(here, 100, "here")
    expected = ["here", *(f"there{index}" for index in range(5))]
    assert [*here.get()["styles"]] == [*there.get()["styles"]] == expected
    others.extend(range(8, 100))
    with pytest.raises(Overloaded, match="nothing was changed here, try again"):
        add(here, 101, "late")
    others.clear()
    add(here, 101, "late")
    assert "late" in there.get()["styles"]


def test_what_a_newer_program_wrote_of_a_style_stays(make_voices: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = make_voices(defaults=()), make_voices(defaults=())
    plain = SpeakerRecord.to_json

    def newer(record: SpeakerRecord) -> str:
        return json.dumps({**json.loads(plain(record)), "pace": 1.5})

    with monkeypatch.context() as patch:
        patch.setattr(SpeakerRecord, "to_json", newer)
        here.upload(seed=1)
        here.call("upload", {"style": "happy"}, name="Ada", audio=clip(2))
    for style, voices, force in (("neutral", here, False), ("happy", there, False), ("happy", here, True)):
        voices.call("prepare", {"style": style, "force": force}, name="Ada", model_type="qwen3_tts")
    late = make_voices(defaults=())
    with psycopg.connect(str(here.dsn)) as connection:
        [record] = connection.execute("SELECT record FROM voice_clone.voice").fetchone() or [None]
    assert record["pace"] == record["styles"]["happy"]["pace"] == 1.5
    for voices in (here, there, late):
        shown = voices.get()
        for each in (shown, shown["styles"]["happy"]):
            assert [artifact["state"] for artifact in each["artifacts"]] == ["ready"]
        assert shown["digest"] == here.get()["digest"] and voices.resolve(style="happy").result["status"] != "miss"
    assert late.encoder.extractions == 0
