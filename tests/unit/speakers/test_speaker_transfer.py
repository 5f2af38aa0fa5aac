"""Export and import of voices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load, save

from tests.support.fakes import FakeEncoder, Voices, clip
from voice_clone.errors import InvalidArgument, Overloaded, SpeakerExists, SpeakerNotFound, Unsupported
from voice_clone.speakers import Extraction

Make = Callable[..., Voices]


def filled(make_voices: Make) -> Voices:
    voices = make_voices("source")
    voices.upload("Ada", 1, reference_text="Hello.", consent="signed")
    voices.upload("Bob", 2, reference_text="Hello.")
    voices.resolve("Bob", mode="x_vector")
    voices.upload("Direct", audio=None, speaker_embedding=np.arange(1024, dtype=np.float32))
    return voices


def test_all_voices_move_to_a_fresh_server_with_identical_artifacts(make_voices: Make) -> None:  # A17
    source, target = filled(make_voices), make_voices("target")
    exported = source.call("export")
    assert exported.result == {"speakers": ["Ada", "Bob", "Direct"]}
    imported = target.call("import", audio=exported.artifacts).result
    assert imported["count"] == 3
    for name, mode in (("Ada", "icl"), ("Bob", "x_vector"), ("Bob", "icl"), ("Direct", "x_vector")):
        there, here = source.resolve(name, mode=mode), target.resolve(name, mode=mode)
        assert here.artifacts == there.artifacts and here.result["status"] == "restored"
    assert target.encoder.extractions == 0
    without = ("generation", "artifacts")
    for name in ("Ada", "Bob", "Direct"):
        there_, here_ = source.get(name), target.get(name)
        assert {k: v for k, v in there_.items() if k not in without} == {
            k: v for k, v in here_.items() if k not in without
        }
        assert there_["artifacts"] == here_["artifacts"]
    target.restart()
    assert target.resolve("Ada").artifacts == source.resolve("Ada").artifacts
    assert target.call("export").artifacts is not None


def test_one_voice(make_voices: Make) -> None:
    source, target = filled(make_voices), make_voices("target")
    bundle = source.call("export", name="bob").artifacts
    assert [speaker["name"] for speaker in target.call("import", audio=bundle).result["speakers"]] == ["Bob"]


def test_a_voice_without_its_audio_still_speaks(make_voices: Make) -> None:  # A20, B7
    source, target = filled(make_voices), make_voices("target")
    bundle = source.call("export", {"include_audio": False}, name="Ada").artifacts or b""
    assert clip(1)[44:400] not in bundle and len(bundle) < 12_000
    target.call("import", audio=bundle)
    named, prompt = source.resolve("Ada"), target.resolve("Ada")
    assert prompt.artifacts == named.artifacts and prompt.result["reference_text"] == "Hello."
    assert target.encoder.extractions == 0
    with pytest.raises(Unsupported, match="registered without audio"):
        target.resolve("Ada", mode="x_vector")


def test_another_checkpoint_is_refused_unless_made_again(make_voices: Make) -> None:
    source = filled(make_voices)
    source.call("delete", name="Direct")
    bundle = source.call("export").artifacts
    target = make_voices("target", encoder=FakeEncoder(checkpoint="b"))
    with pytest.raises(InvalidArgument, match="'Ada' was made with another checkpoint of qwen3_tts; import it with"):
        target.call("import", audio=bundle)
    assert target.call("list").result["count"] == 0 and target.on_disk() == []
    target.call("import", {"reextract": True}, audio=bundle)
    assert target.resolve("Ada").artifacts != source.resolve("Ada").artifacts
    assert target.encoder.extractions >= 1
    for options in ({}, {"reextract": True}):  # there is nothing to make it from
        alone = source.call("export", {"include_audio": False}, name="Ada").artifacts
        with pytest.raises(InvalidArgument, match="another checkpoint"):
            target.call("import", options, audio=alone)


def test_artifacts_that_are_not_such_as_the_encoder_makes_are_refused(make_voices: Make) -> None:
    class Other(FakeEncoder):
        def encode(
            self, model_type: str, waveform: NDArray[np.float32], sample_rate: int, mode: str | None
        ) -> Extraction:
            made = super().encode(model_type, waveform, sample_rate, mode)
            return Extraction({"codes": np.zeros(3, np.int32)}, made.fingerprint)

    source, target = make_voices("source", encoder=Other()), make_voices("target")
    source.upload()
    with pytest.raises(InvalidArgument, match="the artifacts of 'Ada' are not such as qwen3_tts makes"):
        target.call("import", audio=source.call("export").artifacts)
    assert target.on_disk() == []


def test_an_import_replaces_or_is_refused_as_an_upload_is(make_voices: Make) -> None:
    source, target = filled(make_voices), make_voices("target")
    old = target.upload("ADA", 9)["generation"]
    bundle = source.call("export").artifacts
    target.call("import", audio=bundle)
    assert target.get("Ada")["generation"] > old and target.resolve("Ada").artifacts == source.resolve("Ada").artifacts
    before = target.call("list").result
    with pytest.raises(SpeakerExists):
        target.call("import", {"policy": "immutable"}, audio=bundle)
    target.restart(policy="immutable")
    with pytest.raises(SpeakerExists):
        target.call("import", audio=bundle)
    assert target.call("list").result == before


def test_an_import_is_all_or_nothing(make_voices: Make) -> None:
    source, target = filled(make_voices), make_voices("target", max_speakers=2)
    with pytest.raises(Overloaded, match="keeps at most 2"):
        target.call("import", audio=source.call("export").artifacts)
    assert target.call("list").result["count"] == 0


def test_bundles_that_are_refused(make_voices: Make) -> None:  # A11
    source, target = filled(make_voices), make_voices("target")
    bundle = source.call("export").artifacts or b""
    altered = bytearray(bundle)
    altered[bundle.index(clip(1)) + 500] ^= 1
    twice = {str(index): load(bundle)["0"] for index in range(2)}
    renamed = bundle.replace(b'\\"name\\":\\"Ada\\"', b'\\"name\\":\\"../\\"')
    assert renamed != bundle
    for bad, words in [
        (b"", "damaged"),
        (b"junk" * 100, "damaged"),
        (bundle[:-1], "damaged"),
        (bytes(altered), "damaged"),
        (renamed, "damaged"),
        (save({"a": np.zeros(3, np.uint8)}), "no bundle of voices"),
        (save({"a": np.zeros(3, np.uint8)}, {"format": "voice-clone bundle 1"}), "damaged"),
        (save(twice, {"format": "voice-clone bundle 1"}), "holds a name twice"),
    ]:
        with pytest.raises(InvalidArgument, match=words):
            target.call("import", audio=bad)
    assert target.call("list").result["count"] == 0 and target.on_disk() == []


def test_a_bundle_has_a_largest_size(make_voices: Make) -> None:
    source = filled(make_voices)
    bundle = source.call("export").artifacts or b""
    source.restart(max_bundle_bytes=len(bundle) // 2)
    with pytest.raises(InvalidArgument, match="export voices one by one"):
        source.call("export")
    with pytest.raises(InvalidArgument, match="at most"):
        source.call("import", audio=bundle)
    assert source.call("export", name="Bob").artifacts


def test_an_unknown_voice_or_none_at_all(make_voices: Make) -> None:
    source, target = make_voices("source"), make_voices("target")
    with pytest.raises(SpeakerNotFound):
        source.call("export", name="Nobody")
    empty = source.call("export")
    assert empty.result == {"speakers": []}
    assert target.call("import", audio=empty.artifacts).result == {"speakers": [], "count": 0}
