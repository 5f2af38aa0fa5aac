"""Owners of voices: who finds, replaces, takes and deletes them, how many they may have; and consent on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.doubles.fakes import Voices, clip, together
from voice_clone.errors import InvalidArgument, QuotaExceeded, SpeakerExists, SpeakerNotFound
from voice_clone.speakers.operations import Reply

STORES = ("files", "postgresql")  # all tests of this file run on both

Make = Callable[..., Voices]


def add(voices: Voices, name: str, owner: str | None, *, seed: int = 0, **options: Any) -> dict[str, Any]:
    """Upload as an owner; None is the operator."""
    if owner is not None:
        options["owner"] = owner
    fields = {"audio": clip(seed), "reference_text": "Hello.", "consent": "signed", "description": "calm"}
    return voices.call("upload", {"wait": True, **options}, name=name, **fields).result


def by(voices: Voices, owner: str, operation: str, name: str | None = None, **options: Any) -> Reply:
    fields = {"model_type": "qwen3_tts"} if operation in ("prepare", "resolve") else {}
    return voices.call(operation, {"owner": owner, **options}, name=name, **fields)


def names(reply: Reply) -> list[str]:
    return [speaker["name"] for speaker in reply.result["speakers"]]


def test_another_owner_finds_only_what_is_shared(voices: Voices) -> None:
    assert add(voices, "mine", "alice")["owner"] == "alice"
    assert add(voices, "open", "alice", seed=1, shared=True)["shared"] is True
    add(voices, "house", None, seed=2)
    add(voices, "hall", None, seed=3, shared=True)
    assert names(by(voices, "alice", "list")) == ["hall", "mine", "open"]
    assert names(by(voices, "bob", "list")) == ["hall", "open"]
    assert names(voices.call("list")) == ["hall", "house", "mine", "open"]
    for name in ("mine", "house"):
        for operation in ("get", "resolve"):
            with pytest.raises(SpeakerNotFound, match=name):
                by(voices, "bob", operation, name)
    for name in ("hall", "open"):
        assert by(voices, "bob", "resolve", name).result["reference_text"] == "Hello.", "a speech needs it"
        shown = by(voices, "bob", "get", name).result
        assert shown["name"] == name and not {"owner", "consent", "description", "reference_text"} & set(shown)
    assert {"owner", "consent", "description", "reference_text"} <= set(by(voices, "alice", "get", "open").result)
    assert voices.get("mine")["owner"] == "alice"


@pytest.mark.parametrize("operation", ["delete", "export", "prepare"])
def test_only_the_owner_and_the_operator_change_or_take_a_voice(voices: Voices, operation: str) -> None:
    for name, shared in (("mine", False), ("open", True)):
        add(voices, name, "alice", shared=shared)
        with pytest.raises(SpeakerNotFound) as hidden:
            by(voices, "bob", operation, name.upper())
        reported = f"no voice is registered under the name {name.upper()!r}"
        assert str(hidden.value) == reported, "as if it were not there: not even in the case in which it was registered"
        by(voices, "alice", operation, name)


def test_the_operator_does_everything(voices: Voices) -> None:
    add(voices, "ada", "alice")
    assert "owner" not in add(voices, "ADA", None, seed=1, replace=True), "it is the operator's now"
    with pytest.raises(SpeakerNotFound):
        by(voices, "alice", "get", "ada")
    add(voices, "bea", "alice")
    assert voices.call("delete", name="bea").result["deleted"]


def test_a_taken_name_is_refused_and_does_not_show_whose_it_is(voices: Voices) -> None:
    first = add(voices, "Ada", "alice")["generation"]
    add(voices, "hall", None, seed=3)
    add(voices, "Open", "alice", seed=4, shared=True)
    before = voices.call("list").result
    for name, shown in (("ada", "ada"), ("HALL", "HALL"), ("open", "Open")):  # as it is stored if bob may know that
        for seed, replace in ((1, False), (1, True), (0, False)):  # nor does the same clip tell him more
            with pytest.raises(SpeakerExists) as taken:
                add(voices, name, "bob", seed=seed, replace=replace)
            assert str(taken.value) == f"the name {shown!r} is taken; choose another one"
    assert voices.call("list").result == before
    with pytest.raises(SpeakerExists, match=r"^the name 'Ada' is taken; the option replace replaces its voice"):
        add(voices, "ada", "alice", seed=2)
    assert add(voices, "ada", "alice", seed=2, replace=True)["generation"] > first, "her own she replaces"


def test_two_owners_take_a_name_at_once(voices: Voices) -> None:
    results = together(8, lambda index: add(voices, "ada", f"owner-{index}", seed=index))
    assert sum(isinstance(result, dict) for result in results) == 1
    assert sum(type(result) is SpeakerExists for result in results) == 7
    [winner] = [result["owner"] for result in results if isinstance(result, dict)]
    assert voices.get("ada")["owner"] == winner


def test_an_owner_has_as_many_voices_as_it_may(voices: Voices) -> None:
    add(voices, "other", "bob")
    for index in range(2):
        add(voices, f"voice-{index}", "alice", seed=index, max_owned=2)
    with pytest.raises(QuotaExceeded, match="at most 2"):
        add(voices, "voice-2", "alice", max_owned=2)
    add(voices, "voice-1", "alice", seed=5, max_owned=2, replace=True)
    add(
        voices, "voice-1", "alice", seed=6, max_owned=1, replace=True
    )  # more than it may have now: it still replaces its own
    by(voices, "alice", "delete", "voice-0")
    add(voices, "voice-2", "alice", max_owned=2)


def test_the_limit_holds_for_uploads_at_once(voices: Voices) -> None:
    results = together(12, lambda index: add(voices, f"voice-{index}", "alice", seed=index, max_owned=3))
    assert sum(isinstance(result, dict) for result in results) == 3
    assert sum(type(result) is QuotaExceeded for result in results) == 9
    assert len(names(by(voices, "alice", "list"))) == 3


def test_an_owner_s_clips_have_as_many_bytes_as_they_may(voices: Voices, make_voices: Make) -> None:
    size = len(clip(0))
    limit = {"max_owned_bytes": 3 * size + 1}
    add(voices, "other", "bob")
    add(voices, "ada", "alice", **limit)
    add(voices, "ada", "alice", seed=1, style="happy", **limit)
    add(voices, "ben", "alice", seed=2, **limit)
    generation = voices.get("ada")["generation"]
    for name, more in (("ada", {"style": "sad"}), ("cleo", {}), ("ben", {"style": "sad"})):
        with pytest.raises(QuotaExceeded, match=f"{3 * size} bytes, and would have {4 * size}; at most {3 * size + 1}"):
            add(voices, name, "alice", seed=3, **more, **limit)
    assert voices.get("ada")["generation"] == generation and names(by(voices, "alice", "list")) == ["ada", "ben"]
    add(voices, "ada", "alice", seed=3, style="happy", replace=True, **limit)
    add(voices, "ben", "alice", seed=4, replace=True, max_owned_bytes=1)  # beyond the limit of now: no more than it had
    bundle = by(voices, "alice", "export").artifacts
    by(voices, "alice", "delete", "ada", style="happy")
    add(voices, "ben", "alice", seed=3, style="sad", **limit)
    other = make_voices("other")
    with pytest.raises(QuotaExceeded):
        other.call("import", {"owner": "eve", "max_owned_bytes": 3 * size - 1}, audio=bundle)
    assert names(other.call("list")) == []
    other.call("import", {"owner": "eve", "max_owned_bytes": 3 * size}, audio=bundle)
    add(voices, "cleo", None, seed=5)  # the operator has no limit


def test_the_limit_of_bytes_holds_for_uploads_at_once(voices: Voices) -> None:
    limit = {"max_owned_bytes": 6 * len(clip(0))}
    for index in range(3):
        add(voices, f"voice-{index}", "alice", seed=index, **limit)

    def more(index: int) -> dict[str, Any]:
        name, style = (f"more-{index}", {}) if index % 2 else (f"voice-{index % 3}", {"style": f"s{index}"})
        return add(voices, name, "alice", seed=index, **style, **limit)

    results = together(12, more)
    assert sum(isinstance(result, dict) for result in results) == 3
    assert sum(type(result) is QuotaExceeded for result in results) == 9
    kept = by(voices, "alice", "list").result["speakers"]
    assert sum(1 + len(each.get("styles", {})) for each in kept) == 6


def test_owners_outlive_a_restart(voices: Voices) -> None:
    add(voices, "mine", "alice")
    add(voices, "open", "alice", shared=True)
    add(voices, "house", None)
    voices.restart()
    assert names(by(voices, "bob", "list")) == ["open"]
    assert names(by(voices, "alice", "list")) == ["mine", "open"]
    assert voices.get("open")["shared"] is True and not {"owner", "shared"} & set(voices.get("house"))


def test_bundles_of_an_owner(voices: Voices, make_voices: Make) -> None:
    add(voices, "mine", "alice")
    add(voices, "open", "alice", seed=1, shared=True)
    add(voices, "house", None, seed=2)
    bundle = by(voices, "alice", "export")
    assert bundle.result["speakers"] == ["mine", "open"]
    assert by(voices, "bob", "export").result["speakers"] == []
    other = make_voices("other")
    with pytest.raises(QuotaExceeded):
        other.call("import", {"owner": "bob", "max_owned": 1}, audio=bundle.artifacts)
    assert names(other.call("list")) == []
    other.call("import", {"owner": "bob", "max_owned": 2}, audio=bundle.artifacts)
    assert names(by(other, "bob", "list")) == ["mine", "open"] and names(by(other, "alice", "list")) == []
    with pytest.raises(SpeakerExists):
        other.call("import", {"owner": "alice"}, audio=bundle.artifacts)
    other.call("import", {"replace": True}, audio=bundle.artifacts)  # the operator's: each voice is its owner's again
    assert names(by(other, "alice", "list")) == ["mine", "open"] and names(by(other, "bob", "list")) == ["open"]


@pytest.mark.parametrize(
    "options", [{"owner": "a b"}, {"owner": ""}, {"owner": 5}, {"shared": "yes"}, {"max_owned": -1}]
)
def test_wrong_options(voices: Voices, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        voices.call("upload", options, name="ada", audio=clip())
    with pytest.raises(InvalidArgument):
        voices.call("list", {"owner": "alice", "shared": True})


def test_consent_on_demand(make_voices: Make) -> None:
    free = make_voices()
    free.upload("ada")
    bundle = free.call("export").artifacts
    strict = make_voices("strict", require_consent=True)
    with pytest.raises(InvalidArgument, match="demands consent: say how"):
        strict.upload("ada")
    with pytest.raises(InvalidArgument, match="demands consent"):
        strict.call("import", audio=bundle)
    with pytest.raises(InvalidArgument, match="blank"):
        strict.upload("ada", consent="  ")
    assert strict.call("list").result["count"] == 0
    assert strict.upload("ada", consent="by mail")["consent"] == "by mail"
