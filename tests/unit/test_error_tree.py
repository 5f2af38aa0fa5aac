"""The error tree, and that the client's is the same."""

from __future__ import annotations

import pytest
import voice_clone_client

from voice_clone import errors

PREFIX = "in ensemble 'qwen3_tts', "  # of Triton; newer servers repeat it
SLUGS = errors._BY_SLUG


@pytest.mark.parametrize("slug", SLUGS)
@pytest.mark.parametrize("before", ["", PREFIX, 3 * PREFIX, "Model speaker_cache - Error when running: "])
def test_an_error_survives_the_wire(slug: str, before: str) -> None:
    sent = SLUGS[slug]("name 'a: b' is\ntaken")
    got = errors.from_message(before + sent.message)
    assert type(got) is SLUGS[slug]
    assert str(got) == "name 'a: b' is\ntaken"


@pytest.mark.parametrize(
    "message", ["", "Socket closed", "internal error: out of luck", "/srv/models/1/model.py: boom"]
)
def test_a_foreign_message_is_internal_and_says_nothing(message: str) -> None:
    got = errors.from_message(message)
    assert type(got) is errors.Internal
    assert not message or message not in str(got)


def test_a_subclass_travels_as_its_parent() -> None:
    assert type(errors.from_message(errors.CheckpointError("no tensor").message)) is errors.Unsupported


def test_the_client_knows_every_slug() -> None:
    theirs = {cls.slug for cls in vars(voice_clone_client.errors).values() if hasattr(cls, "slug")}
    assert theirs >= set(SLUGS)


def test_a_message_is_bounded() -> None:
    sent = errors.InvalidArgument("x" * 10**6).message
    assert len(sent) < 1100 and sent.startswith("invalid_argument: xxx") and sent.endswith("x ...")
