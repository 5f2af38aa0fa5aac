"""Names that only the operator gives: one check with the registration, for each way to make a voice."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.doubles.fakes import Voices, clip
from voice_clone.errors import InvalidArgument, NameReserved, SpeakerExists, VoiceCloneError
from voice_clone.speakers.name import MOST_RESERVED
from voice_clone.speakers.parsing import parse

STORES = ("files", "postgresql")  # all tests of this file run on both

Make = Callable[..., Voices]
RESERVED = ["alloy", "Müller", "aura-*", "no name: at all"]


def upload(voices: Voices, name: str, owner: str | None = "alice", seed: int = 0, **options: Any) -> Any:
    given = {"owner": owner, "reserved": RESERVED, **options} if owner else options
    return voices.call("upload", given, name=name, audio=clip(seed)).result


def bundle(make_voices: Make, *names: str) -> Any:
    other = make_voices("other")
    for seed, name in enumerate(names, 10):
        other.upload(name, seed)
    return other.call("export").artifacts


def listed(voices: Voices) -> dict[str, Any]:
    return {each["name"]: (each["generation"], each.get("owner")) for each in voices.call("list").result["speakers"]}


@pytest.mark.parametrize("name", ["alloy", " Alloy", "ALLOY", "Mu\u0308ller", "aura-2-thalia", "Aura-x"])
def test_an_owner_does_not_give_a_reserved_name(make_voices: Make, name: str) -> None:
    voices = make_voices()
    upload(voices, "mine", wait=True)
    before, mine = listed(voices), voices.get("mine")
    for way in (
        lambda: upload(voices, name),
        lambda: upload(voices, name, replace=True),
        lambda: voices.call(
            "import",
            {"owner": "alice", "reserved": RESERVED, "replace": True},
            audio=bundle(make_voices, "mine", name.strip()),
        ),
    ):
        with pytest.raises(NameReserved):
            way()
    assert listed(voices) == before and voices.get("mine") == mine
    upload(voices, name, None)
    upload(voices, "aurora")


def test_who_has_a_reserved_name_keeps_it(make_voices: Make) -> None:
    voices = make_voices()
    voices.call("upload", {"owner": "alice"}, name="alloy", audio=clip(1))
    assert upload(voices, "Alloy", seed=2, replace=True)["owner"] == "alice"
    with pytest.raises(NameReserved):
        upload(voices, "alloy", "bob", replace=True)
    voices.call("delete", {"owner": "alice"}, name="alloy")
    with pytest.raises(NameReserved):
        upload(voices, "alloy")


def test_a_reserved_name_that_another_one_has_is_reserved_first(make_voices: Make) -> None:
    voices = make_voices()
    upload(voices, "alloy", None)
    with pytest.raises(NameReserved):
        upload(voices, "alloy")
    upload(voices, "plain", None)
    with pytest.raises(SpeakerExists):
        upload(voices, "plain")


@pytest.mark.parametrize("wrong", ["alloy", [1], ["x"] * (MOST_RESERVED + 1)])
def test_what_is_no_list_of_names(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="reserved"):
        parse("upload", {"name": "a", "audio": clip(1)}, {"owner": "alice", "reserved": wrong})


def test_at_random_nobody_takes_a_reserved_name(make_voices: Make) -> None:
    """Three owners, the operator, uploads, imports and deletes at once: refused means that nothing changed."""
    voices, rng = make_voices(), random.Random(7)
    bundles = [bundle(make_voices, "plain", "alloy"), make_voices("second").call("export").artifacts]
    upload(voices, "alloy", None, 5)
    failures: list[BaseException] = []

    def work(owner: str | None, steps: list[tuple[str, str, int]]) -> None:
        for step, name, seed in steps:
            try:
                if step == "delete":
                    voices.call("delete", {"owner": owner} if owner else {}, name=name)
                elif step == "import":
                    options = {"owner": owner, "reserved": RESERVED, "replace": True} if owner else {"replace": True}
                    voices.call("import", options, audio=bundles[0])
                else:
                    upload(voices, name, owner, seed, replace=bool(seed % 2))
            except VoiceCloneError:
                continue
            except BaseException as error:
                failures.append(error)

    def steps() -> list[tuple[str, str, int]]:
        kinds = ("upload", "upload", "import", "delete")
        return [(rng.choice(kinds), rng.choice(("alloy", "plain", "b")), rng.randrange(6)) for _ in range(60)]

    threads = [threading.Thread(target=work, args=(owner, steps())) for owner in ("alice", "bob", "carol", None)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert listed(voices).get("alloy", (0, None))[1] is None
