"""Changes of styles: digests, several changes at once, and changes that a store does not take at once."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.doubles.fakes import FakeEncoder, Voices, clip, together
from voice_clone.errors import InvalidArgument, SpeakerExists
from voice_clone.speakers import voice_file
from voice_clone.speakers.disk.files import Files
from voice_clone.speakers.store import NotDurable

STORES = ("files", "postgresql")
FAMILY = "qwen3_tts"

Make = Callable[..., Voices]


def upload(voices: Voices, seed: int, name: str = "Ada", **options: Any) -> dict[str, Any]:
    result: dict[str, Any] = voices.call("upload", options, name=name, audio=clip(seed), consent="yes").result
    return result


def digests(voices: Voices) -> dict[str, str]:
    shown = voices.get()
    return {"": shown["digest"], **{style: each["digest"] for style, each in shown.get("styles", {}).items()}}


def test_no_bundle_brings_the_digest_of_another_voice(make_voices: Make) -> None:
    voices, elsewhere = make_voices(), make_voices("elsewhere")
    upload(voices, 1, shared=True, owner="ann")
    seen = voices.get()
    upload(elsewhere, 7, "Mine")
    upload(elsewhere, 1, "Mine", style="same")
    [(header, tensors)] = voice_file.unpack_bundle(elsewhere.call("export", {}, name="Mine").artifacts)
    style = header.record.styles["same"]
    told = {name: seen[name] for name in ("name", "generation", "created_at")}
    for forged in (
        replace(style, **told),
        replace(style, **told, since=seen["generation"]),
        replace(style, **told | {"generation": 99}, since=seen["generation"], owner="ann", shared=True),
    ):
        assert forged.digest == seen["digest"]
        bundle = io.BytesIO()
        voice_file.pack_bundle([voice_file.pack(replace(header.record, styles={"same": forged}), tensors)], 1, bundle)
        options = {"owner": "bob", "replace": True}
        [taken] = voices.call("import", options, audio=bundle.getvalue()).result["speakers"]
        assert taken["styles"]["same"]["digest"] != seen["digest"]
        spoken = voices.call("resolve", {"owner": "bob", "style": "same"}, name="Mine", model_type=FAMILY).result
        assert spoken["digest"] == taken["styles"]["same"]["digest"]


def test_a_style_that_is_made_again_or_imported_again_has_another_digest_and_it_alone(make_voices: Make) -> None:
    voices = make_voices()
    upload(voices, 1, wait=True)
    upload(voices, 2, style="happy", wait=True)
    first = digests(voices)
    upload(voices, 3, style="sad", wait=True)
    bundle = voices.call("export", {}, name="Ada").artifacts
    second = digests(voices)
    assert second.items() > first.items(), "another style changes no digest"
    voices.call("prepare", {"force": True, "style": "happy"}, name="Ada", model_type=FAMILY)
    third = digests(voices)
    assert {style for style in third if third[style] != second[style]} == {"happy"}
    voices.call("prepare", {"force": True}, name="Ada", model_type=FAMILY)
    fourth = digests(voices)
    assert {style for style in fourth if fourth[style] != third[style]} == {""}
    voices.restart()
    assert digests(voices) == fourth
    voices.call("delete", {}, name="Ada")
    voices.call("import", {}, audio=bundle)
    assert not set(digests(voices).values()) & {*second.values(), *third.values(), *fourth.values()}


def test_an_import_of_another_embedding_beside_the_same_style_is_no_retry(make_voices: Make) -> None:
    one, other, voices = make_voices("one"), make_voices("other"), make_voices()
    for seed, each in enumerate((one, other)):
        embedding = np.random.default_rng(seed).normal(size=1024).astype(np.float32)
        each.call("upload", {}, name="Ada", speaker_embedding=embedding, consent="yes", model_type=FAMILY)
        upload(each, 2, style="happy", wait=True)
    bundles = [each.call("export", {}, name="Ada").artifacts for each in (one, other)]
    first = voices.call("import", {}, audio=bundles[0]).result["speakers"]
    assert voices.call("import", {}, audio=bundles[0]).result["speakers"] == first, "the same once more is a retry"
    with pytest.raises(SpeakerExists, match="replace"):
        voices.call("import", {}, audio=bundles[1])
    assert voices.resolve().artifacts == one.resolve().artifacts
    voices.call("import", {"replace": True}, audio=bundles[1])
    assert voices.resolve().artifacts == other.resolve().artifacts


def test_styles_that_are_uploaded_at_once_are_all_there_and_ready(make_voices: Make) -> None:
    voices = make_voices(encoder=FakeEncoder(during=lambda: time.sleep(0.01)))
    upload(voices, 1)
    listed: list[Any] = []

    def act(index: int) -> Any:
        if index == 5:
            for _ in range(10):
                listed.append(voices.call("list", {}).result["speakers"])
            return None
        return upload(voices, 2 + index, style=f"s{index}", wait=True)

    answers = together(6, act)
    for index, answer in enumerate(answers[:5]):
        assert isinstance(answer, dict), answer
        assert {each["state"] for each in answer["styles"][f"s{index}"]["artifacts"]} == {"ready"}
    assert answers[5] is None and [len(each) for each in listed] == [1] * 10
    assert [*voices.get()["styles"]] == [f"s{index}" for index in range(5)]


def test_a_list_that_read_a_record_before_a_style_was_added_answers(make_voices: Make) -> None:
    going = threading.Event()
    going.set()
    voices = make_voices(encoder=FakeEncoder(during=lambda: going.wait(30)))
    upload(voices, 1, wait=True)
    registry = voices.cache.registry
    page = registry.page

    def late(*given: Any, **options: Any) -> Any:
        found = page(*given, **options)
        going.clear()
        upload(voices, 2, style="happy")  # by another request
        while not any(flight.running for flight in voices.cache.voice_states.flights.of("ada")):
            time.sleep(0.001)
        return found

    registry.page = late  # type: ignore[method-assign]
    try:
        [shown] = voices.call("list", {}).result["speakers"]
        assert "styles" not in shown and {each["state"] for each in shown["artifacts"]} == {"ready"}
    finally:
        going.set()


class Unsynced(Files):
    """A disk that confirms nothing for a while."""

    failing = False
    syncs = 0

    def sync_directory(self, folder: Any) -> None:
        if self.failing:
            raise OSError(5, "no")
        self.syncs += 1
        super().sync_directory(folder)


@pytest.mark.files
def test_a_style_that_the_disk_did_not_confirm_is_written_again_by_a_retry(make_voices: Make) -> None:
    files = Unsynced()
    voices = make_voices(files=files)
    upload(voices, 1, wait=True)
    files.failing = True
    with pytest.raises(NotDurable):
        upload(voices, 2, style="happy")
    with pytest.raises(NotDurable):
        upload(voices, 2, style="happy")
    files.failing, files.syncs = False, 0
    before = digests(voices)
    upload(voices, 2, style="happy")
    assert files.syncs and digests(voices) == before


def test_a_style_is_shared_with_its_voice_alone(make_voices: Make) -> None:
    voices = make_voices()
    upload(voices, 1)
    for style in ("happy", "neutral"):
        with pytest.raises(InvalidArgument, match="leave out the option shared"):
            upload(voices, 2, style=style, shared=True, replace=True)
    assert "styles" not in voices.get() and not voices.get().get("shared")
