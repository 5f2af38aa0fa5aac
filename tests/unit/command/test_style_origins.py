"""The origin of speech in a style: the clip of that style, its digest and its consent."""

from __future__ import annotations

from typing import Any

import pytest
from voice_clone_client import Voice
from voice_clone_client.errors import InvalidArgument
from voice_clone_client.types import Family
from voice_clone_command.origin import OriginChanged, Origins, check
from voice_clone_provenance.manifests import consent_of

ADA = {
    "name": "Ada",
    "digest": "d0",
    "consent": "cons_a",
    "styles": {"happy": {"digest": "d1", "consent": "cons_b"}, "sad": {"digest": "d2"}},
}


class OneVoice:
    """A client of a server with this voice alone."""

    asked = 0

    def family(self, model: str | None) -> str:
        return "family"

    def families(self, synthesizers: bool) -> dict[str, Family]:
        return {"family": Family(synthesizer="s")}

    def get(self, name: str) -> Voice:
        self.asked += 1
        return Voice.from_record(ADA)


@pytest.mark.parametrize(
    ("style", "digest"),
    [
        *((None, "d0"), ("neutral", "d0"), ("happy", "d1"), ("bored, SAD", "d2"), ("bored,neutral", "d0")),
        *(("bored,instructions", "d0"), ("joy:0.6", "d0"), ("bored,SAD+joy:0.6", "d2")),
    ],
)
def test_speech_in_a_style_has_the_digest_of_its_clip(style: str | None, digest: str) -> None:
    client: Any = OneVoice()
    origins = Origins(client, None, 1.0)
    other = origins.of({"voice": "Ada", "style": "happy" if style != "happy" else "sad"})
    origin = origins.of({"voice": "Ada", "style": style})
    check(origin, {"voice_digest": digest, "synthesizer": "s"})
    for wrong in {"d0", "d1", "d2"} - {digest}:
        with pytest.raises(OriginChanged, match="the voice has changed"):
            check(origin, {"voice_digest": wrong, "synthesizer": "s"})
    assert other["voice"] != origin["voice"]
    assert origins.of({"voice": "Ada", "style": style}) == origin and client.asked == 2, "asked for once"


def test_what_is_added_to_a_clip_is_of_the_origin() -> None:
    client: Any = OneVoice()
    origins = Origins(client, None, 1.0)
    styles = (
        "happy",
        "happy+joy:0.6",
        "happy+joy:1.2",
        "neutral",
        "joy:0.6",
        "bored,instructions",
        "glad,instructions",
    )
    found = [origins.of({"voice": "Ada", "style": style}) for style in styles]
    assert all(found.count(each) == 1 for each in found)


def test_a_style_that_is_not_there_names_those_that_are() -> None:
    client: Any = OneVoice()
    with pytest.raises(InvalidArgument, match="neutral, happy, sad"):
        Origins(client, None, 1.0).of({"voice": "Ada", "style": "bored"})


def test_a_signed_speech_has_the_consent_of_the_clip_that_spoke() -> None:
    ada = Voice.from_record(ADA)
    assert [consent_of(ada, digest) for digest in ("d0", "d1", "d2", "gone")] == ["cons_a", "cons_b", None, None]
