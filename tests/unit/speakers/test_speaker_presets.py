"""Voices that checkpoints bring: listed with their family, never registered, never in the way of a registered voice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.doubles.fakes import FakeEncoder, Voices, clip
from tests.support.waiting import WAIT, until
from voice_clone.errors import InvalidArgument, SpeakerNotFound, Unsupported

Make = Callable[..., Voices]


@pytest.fixture
def voices(make_voices: Make) -> Voices:
    encoder = FakeEncoder()
    encoder.presets = {"voxtral": ("Ann", "ben"), "omnivoice": ("Ann",)}
    return make_voices(encoder=encoder, defaults=("qwen3_tts", "voxtral", "omnivoice"))


def listed(voices: Voices, **options: Any) -> list[tuple[str, str, bool]]:
    presets = voices.call("presets", options).result["presets"]
    return [(each["name"], each["model_type"], each["registered"]) for each in presets]


def test_they_are_listed_with_the_family_that_has_them(voices: Voices) -> None:
    expected = [("Ann", "voxtral", False), ("ben", "voxtral", False), ("Ann", "omnivoice", False)]
    assert listed(voices) == listed(voices) == expected
    assert voices.encoder.describes == {(family, None): 1 for family in ("qwen3_tts", "voxtral", "omnivoice")}
    assert voices.call("list").result["count"] == 0, "none is registered"


def test_a_registered_voice_of_the_name_is_said(voices: Voices) -> None:
    voices.upload("BEN")  # case does not matter
    assert listed(voices) == [("Ann", "voxtral", False), ("ben", "voxtral", True), ("Ann", "omnivoice", False)]
    voices.call("delete", name="Ben")
    assert not any(registered for *_, registered in listed(voices))


def test_a_voice_of_another_owner_is_none(voices: Voices) -> None:
    voices.call("upload", {"owner": "alice"}, name="Ann", audio=clip(), reference_text="Hello.")
    assert [registered for *_, registered in listed(voices, owner="alice")] == [True, False, True]
    assert [registered for *_, registered in listed(voices, owner="bob")] == [False, False, False]


def test_a_voice_that_a_family_cannot_use_takes_the_place_of_none(voices: Voices) -> None:
    voices.upload("Ann")
    assert listed(voices) == [("Ann", "voxtral", True), ("ben", "voxtral", False), ("Ann", "omnivoice", False)], (
        "omnivoice needs its transcript"
    )
    voices.call("delete", name="Ann")

    def refuse() -> None:
        raise Unsupported("a clip of this kind is of no use")

    voices.encoder.during = refuse
    voices.upload("Ann")
    assert not any(registered for *_, registered in listed(voices))


def test_they_cannot_be_deleted(voices: Voices) -> None:
    with pytest.raises(SpeakerNotFound):
        voices.call("delete", name="Ann")
    assert len(listed(voices)) == 3


def test_another_checkpoint_has_others(voices: Voices) -> None:
    """They are asked for again when an extraction shows another fingerprint."""
    assert len(listed(voices)) == 3
    voices.upload("Ada")
    voices.encoder.checkpoint, voices.encoder.presets = "b", {"voxtral": ("Cid",)}
    voices.call("prepare", name="Ada", model_type="voxtral")
    assert [each for each in listed(voices) if each[1] == "voxtral"] == [("Cid", "voxtral", False)]


def test_a_family_that_does_not_answer_in_time_is_left_out(voices: Voices, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, encode = threading.Event(), voices.encoder.encode

    def slow(model_type: str, *given: Any) -> Any:
        if model_type == "voxtral":
            answer.wait(WAIT)
        return encode(model_type, *given)

    monkeypatch.setattr(voices.encoder, "encode", slow)
    until(lambda: listed(voices, timeout=0.5) == [("Ann", "omnivoice", False)])
    answer.set()
    assert len(listed(voices)) == 3


def test_it_takes_no_other_input(voices: Voices) -> None:
    with pytest.raises(InvalidArgument, match="name has no meaning in this operation"):
        voices.call("presets", name="Ann")
    with pytest.raises(InvalidArgument, match="unknown option 'mode'"):
        voices.call("presets", {"mode": "icl"})


def test_a_voice_of_another_model_is_said(voices: Voices) -> None:
    assert len(listed(voices)) == 3
    for name, model_type, others in (("ANN", "qwen3_tts", "voxtral and omnivoice"), ("ann", "voxtral", "omnivoice")):
        with pytest.raises(SpeakerNotFound, match=f"'{name}'; it is a voice of the model {others}$"):
            voices.call("resolve", name=name, model_type=model_type)
    with pytest.raises(SpeakerNotFound, match=r"'ben'$"):
        voices.call("resolve", name="ben", model_type="voxtral")
