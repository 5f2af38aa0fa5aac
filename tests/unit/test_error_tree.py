"""The classes of errors: server and client have one for each kind, and an error survives the wire."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from voice_clone_client import errors as client_errors
from voice_clone_errors.kinds import KINDS

from voice_clone import errors

PREFIX = "in ensemble 'qwen3_tts', "  # of Triton; newer servers repeat it
SERVERS = [kind.slug for kind in KINDS if kind.code]


def classes(module: ModuleType) -> list[Any]:
    return [cls for cls in vars(module).values() if module.VoiceCloneError in getattr(cls, "__bases__", ())]


@pytest.mark.parametrize("slug", SERVERS)
@pytest.mark.parametrize("before", ["", PREFIX, 3 * PREFIX, "Model speaker_cache - Error when running: "])
def test_an_error_survives_the_wire(slug: str, before: str) -> None:
    [of_server] = [cls for cls in classes(errors) if cls.slug == slug]
    message = before + of_server("name 'a: b' is\ntaken").message
    got = errors.from_message(message)
    assert type(got) is of_server
    received = client_errors.from_status("INTERNAL", message)
    assert received.slug == slug
    assert str(got) == str(received) == "name 'a: b' is\ntaken"


@pytest.mark.parametrize(
    "message", ["", "Socket closed", "internal error: out of luck", "/srv/models/1/model.py: boom"]
)
def test_a_foreign_message_is_internal_and_says_nothing(message: str) -> None:
    got = errors.from_message(message)
    assert type(got) is errors.Internal
    assert not message or message not in str(got)


def test_a_subclass_travels_as_its_parent() -> None:
    assert type(errors.from_message(errors.CheckpointError("no tensor").message)) is errors.Unsupported


def test_each_kind_has_one_class() -> None:
    assert sorted(cls.slug for cls in classes(errors)) == sorted(SERVERS)
    assert sorted(cls.slug for cls in classes(client_errors)) == sorted(kind.slug for kind in KINDS)


def test_a_message_is_bounded() -> None:
    sent = errors.InvalidArgument("x" * 10**6).message
    assert len(sent) < 1100 and sent.startswith("invalid_argument: xxx") and sent.endswith("x ...")
