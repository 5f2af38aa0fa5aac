"""How loud a family speaks in a voice: kept with the voice, and gone with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.doubles.fakes import Voices, clip
from voice_clone.errors import InvalidArgument, SpeakerNotFound
from voice_clone.speakers.record import SpeakerRecord

STORES = ("files", "postgresql")  # all tests of this file run on both

Make = Callable[..., Voices]


def upload(voices: Voices, **options: Any) -> dict[str, Any]:
    given = {"wait": True, **options}
    result: dict[str, Any] = voices.call("upload", given, name="Ada", audio=clip(), consent="yes").result
    return result


def resolved(voices: Voices, **options: Any) -> dict[str, Any]:
    result: dict[str, Any] = voices.call("resolve", options, name="Ada").result
    return result


def keep(voices: Voices, made: dict[str, Any], loudness: Any = -21.5, **options: Any) -> Any:
    artifact = made["artifacts"][0]
    given = {"generation": made["generation"], "mode": artifact["mode"], "loudness": loudness, **options}
    return voices.call("keep_loudness", given, name="Ada", model_type=artifact["model_type"]).result


def test_it_is_kept_across_restarts_and_goes_with_its_voice(make_voices: Make) -> None:
    voices = make_voices()
    made = upload(voices)
    before = resolved(voices)
    assert "loudness" not in before
    keep(voices, made)
    keep(voices, made, -20)
    now = resolved(voices)
    assert now["loudness"] == -20.0 and {**now, "loudness": 0} == {**before, "loudness": 0, "status": now["status"]}
    assert upload(voices)["generation"] == made["generation"], "the same upload once more changes nothing"
    voices.cache.close()
    voices = make_voices()
    assert resolved(voices)["loudness"] == -20.0
    assert "loudness" not in voices.call("get", {}, name="Ada").result
    replaced = voices.call(
        "upload", {"wait": True, "replace": True}, name="Ada", audio=clip(seconds=2.0), consent="yes"
    ).result
    assert replaced["generation"] != made["generation"] and "loudness" not in resolved(voices)
    with pytest.raises(SpeakerNotFound, match="generation"):
        keep(voices, made)
    keep(voices, replaced, -30)
    voices.call("delete", {}, name="Ada")
    upload(voices)
    assert "loudness" not in resolved(voices)


def test_other_servers_of_a_fleet_have_it(make_voices: Make, store: str) -> None:
    one = make_voices()
    other = make_voices() if store == "postgresql" else one  # a folder belongs to one server
    keep(one, upload(one))
    assert resolved(other)["loudness"] == -21.5


@pytest.mark.parametrize(
    "loudness", [None, [], 5, "x", {"a": True}, {"a": "x"}, {"a": 10**400}, {"a": 1e308}, {"a": float("nan")}], ids=repr
)
def test_a_record_with_another_loudness_is_none(loudness: Any) -> None:
    values = {"name": "ada", "generation": 1, "created_at": 1.0, "embedding_source": "audio", "artifacts": []}
    assert SpeakerRecord.from_json(json.dumps({**values, "loudness": {"a": -20}})).loudness == {"a": -20}
    with pytest.raises(ValueError, match="loudness"):
        SpeakerRecord.from_json(json.dumps({**values, "loudness": loudness}))


def test_what_is_refused(make_voices: Make) -> None:
    voices = make_voices()
    made = upload(voices)
    for loudness in ("loud", True, -101, 11):
        with pytest.raises(InvalidArgument, match="-100 to 10"):
            keep(voices, made, loudness)
    with pytest.raises(InvalidArgument, match="no artifacts"):
        keep(voices, made, mode="other")
    with pytest.raises(InvalidArgument, match="model_type"):
        voices.call("keep_loudness", {"generation": 1, "mode": "icl", "loudness": -20}, name="Ada")
    for missing in ("generation", "mode", "loudness"):
        options = {"generation": 1, "mode": "icl", "loudness": -20}
        del options[missing]
        with pytest.raises(InvalidArgument, match=missing):
            voices.call("keep_loudness", options, name="Ada", model_type="qwen3_tts")
    with pytest.raises(SpeakerNotFound):
        keep(voices, made, owner="bob")
    assert "loudness" not in resolved(voices)
