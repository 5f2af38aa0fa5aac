"""Export and import of voices."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load, save

from tests.support.doubles.fakes import FakeEncoder, Voices, clip, expected
from tests.support.waiting import until
from voice_clone.errors import (
    InvalidArgument,
    Overloaded,
    SpeakerExists,
    SpeakerNotFound,
    Unsupported,
    VoiceCloneError,
)
from voice_clone.speakers import partial_bundles, voice_file
from voice_clone.speakers.disk.files import Files
from voice_clone.speakers.encoders import Extraction
from voice_clone.speakers.record import MAX_ARTIFACTS
from voice_clone.speakers.transfer import MAX_PROMPT_BYTES
from voice_clone.speakers.voice_file import digest, pack_bundle, unpack_bundle

STORES = ("files", "postgresql")  # all tests of this file run on both

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
    assert exported.result["speakers"] == ["Ada", "Bob", "Direct"]
    assert exported.result["size"] == len(exported.artifacts or b"")
    imported = target.call("import", audio=exported.artifacts).result
    assert imported["count"] == 3
    for name, mode in (("Ada", "icl"), ("Bob", "x_vector"), ("Bob", "icl"), ("Direct", "x_vector")):
        there, here = source.resolve(name, mode=mode), target.resolve(name, mode=mode)
        assert here.artifacts == there.artifacts and here.result["status"] == "restored"
    assert target.encoder.extractions == 0
    without = ("generation", "digest", "artifacts")
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


@pytest.mark.parametrize("include_audio", [True, False])
def test_a_ready_prompt_is_the_registered_voice(make_voices: Make, include_audio: bool) -> None:  # A20
    source, target = filled(make_voices), make_voices("target")
    for name, mode in (("Ada", "icl"), ("Bob", "x_vector"), ("Bob", "icl"), ("Direct", "x_vector")):
        bundle = source.call("export", {"include_audio": include_audio}, name=name).artifacts
        there = source.resolve(name, mode=mode)
        here = target.call("resolve", {"mode": mode}, voice_prompt=bundle, model_type="qwen3_tts")
        assert here.artifacts == there.artifacts
        same = ("mode", "fingerprint", "embedding_source")
        assert {key: here.result[key] for key in same} == {key: there.result[key] for key in same}
        assert here.result.get("reference_text") == there.result.get("reference_text")
        assert here.result["status"] == "none" and "name" not in here.result
    assert target.encoder.extractions == 0 and target.stats()["entries"] == 0 and target.on_disk() == []


def test_prompts_that_are_refused(make_voices: Make) -> None:
    source, target = filled(make_voices), make_voices("target")
    bundle = source.call("export", name="Ada").artifacts or b""

    def refused(error: type[VoiceCloneError], prompt: bytes, words: str, voices: Voices = target, **more: Any) -> None:
        with pytest.raises(error, match=words) as raised:
            voices.call("resolve", more, voice_prompt=prompt, model_type="qwen3_tts")
        assert "\n" not in str(raised.value)

    refused(InvalidArgument, b"", "damaged")
    refused(InvalidArgument, b"RIFF" * 100, "damaged")
    refused(InvalidArgument, bundle[:-1], "damaged")
    refused(InvalidArgument, bytes(MAX_PROMPT_BYTES + 1), "without its audio")
    refused(InvalidArgument, source.call("export").artifacts or b"", "holds 3 voices")
    refused(Unsupported, bundle, "lacks artifacts of qwen3_tts in mode x_vector; it has qwen3_tts icl", mode="x_vector")
    other = make_voices("other", encoder=FakeEncoder(checkpoint="b"))
    refused(InvalidArgument, bundle, "another checkpoint", other)
    careful = make_voices("careful", require_consent=True)
    refused(InvalidArgument, source.call("export", name="Bob").artifacts or b"", "demands consent", careful)
    assert careful.call("resolve", voice_prompt=bundle, model_type="qwen3_tts").artifacts
    for given, words in ({"name": "Ada"}, "exactly one"), ({"reference_text": "Hello."}, "no reference_text"):
        with pytest.raises(InvalidArgument, match=words):
            target.call("resolve", voice_prompt=bundle, model_type="qwen3_tts", **given)
    with pytest.raises(InvalidArgument, match="voice_prompt has no meaning"):
        target.call("get", name="Ada", voice_prompt=bundle)


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
    with pytest.raises(SpeakerExists, match=r"^the name 'ADA' is taken; the option replace"):
        target.call("import", audio=bundle)
    assert [each["name"] for each in target.call("list").result["speakers"]] == ["ADA"], "all or none"
    target.call("import", {"replace": True}, audio=bundle)
    assert target.get("Ada")["generation"] > old and target.resolve("Ada").artifacts == source.resolve("Ada").artifacts
    before = target.call("list").result
    assert target.call("import", audio=bundle).result == before, "it is there already"
    target.upload("BOB", 9, replace=True)
    target.upload("direct", 9, replace=True)
    with pytest.raises(SpeakerExists, match=r"^the names 'BOB', 'direct' are taken"):
        target.call("import", audio=bundle)


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


def test_a_bundle_in_parts_is_of_the_voices_as_they_were_at_its_begin(
    make_voices: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_bundles, "PART", 20_000)
    source, other = filled(make_voices), make_voices("other")
    whole = source.call("export").artifacts or b""
    parts, offset = list[bytes](), 0
    while offset < len(whole):
        answer = source.call("export", {"id": "one", **({"offset": offset} if offset else {})})
        parts.append(answer.artifacts or b"")
        offset += len(parts[-1])
        assert answer.result["speakers"] == ["Ada", "Bob", "Direct"] and answer.result["size"] == len(whole)
        if len(parts) == 2:
            source.call("delete", name="Bob")
            source.upload("Ada", 7, replace=True)
    assert b"".join(parts) == whole and len(parts) > 3
    for owner in ({}, {"owner": "alice"}):
        with pytest.raises(Overloaded):
            source.call("export", {"id": "one", "offset": 20_000, **owner})
    assert other.call("import", audio=b"".join(parts)).result["count"] == 3


def test_parts_of_a_bundle_are_their_owners(make_voices: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_bundles, "PART", 1000)
    source = filled(make_voices)
    source.call("export", {"id": "one"})
    with pytest.raises(Overloaded):
        source.call("export", {"id": "one", "offset": 1000, "owner": "alice"})
    assert source.call("export", {"id": "one", "offset": 1000}).artifacts
    with pytest.raises(InvalidArgument):
        source.call("export", {"offset": 1000})


def test_an_unknown_voice_or_none_at_all(make_voices: Make) -> None:
    source, target = make_voices("source"), make_voices("target")
    with pytest.raises(SpeakerNotFound):
        source.call("export", name="Nobody")
    empty = source.call("export")
    assert empty.result["speakers"] == []
    assert target.call("import", audio=empty.artifacts).result == {"speakers": [], "count": 0}


def packed(files: Iterable[bytes], most: int) -> bytes:
    """The bundle of these files."""
    bundle = io.BytesIO()
    pack_bundle(files, most, bundle)
    return bundle.getvalue()


def rebuilt(bundle: bytes, record: dict[str, Any], tensors: dict[str, Any], *, audio: bool) -> bytes:
    """A bundle of one voice, sealed again, with parts of its record and its tensors changed."""
    [(header, held)] = unpack_bundle(bundle)
    held |= tensors
    if not audio:
        held.pop("audio", None)
    changed = json.loads(header.record.to_json()) | record
    text = json.dumps(changed)
    digests = json.dumps({name: digest(tensor) for name, tensor in held.items()})
    seal = hashlib.sha256(f"{len(text)} {text}{digests}".encode()).hexdigest()
    metadata = {"format": "voice-clone speaker 1", "record": text, "digests": digests, "seal": seal}
    return packed([save(held, metadata)], 1)


EMBEDDING, CODES = "qwen3_tts/icl/speaker_embedding", "qwen3_tts/icl/codec_codes"
BAD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "NaN": ({}, {EMBEDDING: np.full(1024, np.nan, np.float32)}),
    "infinity": ({}, {EMBEDDING: np.full(1024, np.inf, np.float32)}),
    "another size": ({}, {EMBEDDING: np.zeros(64, np.float32)}),
    "another type": ({}, {EMBEDDING: np.zeros(1024, np.float64)}),
    "no embedding": ({}, {EMBEDDING: np.zeros(0, np.float32)}),
    "another width": ({}, {CODES: np.zeros((5, 8), np.int32)}),
    "codes too large": ({}, {CODES: np.full((5, 16), 2048, np.int32)}),
    "codes below 0": ({}, {CODES: np.full((5, 16), -1, np.int32)}),
    "no frames": ({}, {CODES: np.zeros((0, 16), np.int32)}),
    "too many frames": ({}, {CODES: np.zeros((513, 16), np.int32)}),
    "more artifacts": ({}, {"qwen3_tts/icl/more": np.zeros(3, np.float32)}),
    "duration": ({"duration": 1e9}, {}),
    "no duration": ({"duration": 0}, {}),
    "sample rate": ({"sample_rate": 10**9}, {}),
    "file size": ({"file_size": 10**12}, {}),
    "MIME type": ({"mime_type": "text/html"}, {}),
    "digest": ({"audio_digest": "<script>"}, {}),
    "created tomorrow": ({"created_at": 4e9}, {}),
    "created never": ({"created_at": 1e300}, {}),
    "extraction_ms": ({"artifacts": [["qwen3_tts", "icl", "f", float("nan")]]}, {}),
    "extraction_ms infinite": ({"artifacts": [["qwen3_tts", "icl", "f", float("inf")]]}, {}),
    "extraction_ms negative": ({"artifacts": [["qwen3_tts", "icl", "f", -5]]}, {}),
    "made before 1970": ({"artifacts": [["qwen3_tts", "icl", "f", 1.0, -1]]}, {}),
    "made at no time": ({"artifacts": [["qwen3_tts", "icl", "f", 1.0, float("nan")]]}, {}),
    "a blank transcript": ({"reference_text": "  "}, {}),
    "a long transcript": ({"reference_text": "x" * 5000}, {}),
    "a lone surrogate": ({"consent": "\ud800"}, {}),
    "generation": ({"generation": 2**70}, {}),
    "a long name of a model": ({"design_model": "x" * 10_000}, {}),
    "a name of a model that is no word": ({"design_model": "a\0b"}, {}),
    "a large seed": ({"design_seed": 2**64}, {}),
}


class Limited(FakeEncoder):
    """Says what its codes may be, as Qwen3-TTS does."""

    most = 512

    def encode(self, model_type: str, waveform: NDArray[np.float32], sample_rate: int, mode: str | None) -> Extraction:
        made = super().encode(model_type, waveform, sample_rate, mode)
        limits = {"codec_codes": {"below": 2048, "rows": [0, 0] if mode == "x_vector" else [1, self.most]}}
        return Extraction(made.artifacts, made.fingerprint, made.modes, limits)


@pytest.mark.parametrize("audio", [True, False])
@pytest.mark.parametrize("case", BAD)
def test_an_import_believes_nothing(make_voices: Make, case: str, audio: bool) -> None:
    source, target = make_voices("source", encoder=Limited()), make_voices("target", encoder=Limited())
    source.upload("Ada", 1, reference_text="Hello.", consent="signed")
    good = source.call("export").artifacts or b""
    record, tensors = BAD[case]
    about_the_clip = case in ("duration", "no duration", "sample rate", "file size", "MIME type", "digest")
    bad = rebuilt(good, record, tensors, audio=audio)
    with pytest.raises(InvalidArgument):
        target.call("resolve", voice_prompt=bad, model_type="qwen3_tts")
    if not (audio and about_the_clip):
        with pytest.raises(InvalidArgument):
            target.call("import", audio=bad)
        assert target.call("list").result["count"] == 0 and target.on_disk() == []
    assert target.call("import", audio=rebuilt(good, {}, {}, audio=audio)).result["count"] == 1
    assert target.resolve("Ada").artifacts == source.resolve("Ada").artifacts


def test_a_voice_that_comes_with_as_many_artifacts_as_a_record_may_list_speaks_and_stays(make_voices: Make) -> None:
    source, target = make_voices("source", defaults=()), make_voices("target")
    source.upload("Ada", 1)
    good = source.call("export").artifacts or b""
    others = [[f"other{number}", "icl", "f", 1.0] for number in range(MAX_ARTIFACTS)]
    tensors = {f"other{number}/icl/x": np.zeros(1, np.float32) for number in range(MAX_ARTIFACTS)}
    target.call("import", audio=rebuilt(good, {"artifacts": others}, tensors, audio=True))
    spoken = target.resolve("Ada").artifacts
    assert spoken == expected(target, clip(1))
    until(lambda: "can keep no more" in target.state("Ada").get("reason", ""))  # they are stored in the background
    target.restart()
    assert target.resolve("Ada").artifacts == spoken


def test_a_clip_of_too_many_frames_leaves_the_old_voice(make_voices: Make) -> None:
    encoder = Limited()
    voices = make_voices(encoder=encoder)
    voices.upload("Ada", 1, reference_text="Hello.")
    before = voices.get()
    encoder.most = 10
    with pytest.raises(InvalidArgument, match="codec_codes has 13 rows; this server takes 1 to 10"):
        voices.upload("Ada", 2, reference_text="Hello.", replace=True)
    assert voices.get() == before


class Full(Files):
    """A disk on which one operation fails, the `at`-th of all since it was set."""

    at = -1

    def _step(self) -> None:
        self.at -= 1
        if self.at == 0:
            raise OSError(errno.ENOSPC, "full")

    def write(self, path: Path, data: bytes) -> None:
        if self.at == 1:
            path.write_bytes(data[: len(data) // 2])
        self._step()
        super().write(path, data)

    def rename(self, old: Path, new: Path) -> None:
        self._step()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)


@pytest.mark.files
def test_an_import_on_a_disk_that_fails_at_any_step_is_all_or_nothing(make_voices: Make) -> None:
    source = filled(make_voices)
    bundle = source.call("export").artifacts
    wanted = [source.resolve(name).artifacts for name in ("Ada", "Bob", "Direct")]
    done = undone = 0
    for at in range(1, 60):
        disk = Full()
        target = make_voices(f"target-{at}", files=disk)
        target.upload("Ada", 7, reference_text="Hello.")
        before = target.resolve("Ada").artifacts
        disk.at = at
        with contextlib.suppress(VoiceCloneError):
            target.call("import", {"replace": True}, audio=bundle)
        failed, disk.at = disk.at <= 0, -1
        for _ in range(2):
            names = [each["name"] for each in target.call("list").result["speakers"]]
            if names == ["Ada"]:
                assert target.resolve("Ada").artifacts == before
            else:
                assert [target.resolve(name).artifacts for name in names] == wanted
            assert target.upload("Zoe", 8)["name"] == "Zoe"
            target.call("delete", name="Zoe")
            target.restart()
        assert len(target.on_disk()) == len(names), "something was left"
        done, undone = done + (len(names) == 3), undone + (len(names) == 1)
        if not failed:
            break
    assert done >= 3 and undone >= 3 and not failed


@pytest.mark.parametrize("inside", [False, True])
def test_a_bundle_with_a_very_large_header_is_not_parsed(monkeypatch: pytest.MonkeyPatch, inside: bool) -> None:
    """Of 600,000 empty tensors it took 44 s and a gigabyte."""
    header = json.dumps({"__metadata__": {"format": voice_file.BUNDLE_FORMAT}, "x" * (3 << 20): {}}).encode()
    large = len(header).to_bytes(8, "little") + header
    data = packed([large], 1) if inside else large
    loaded: list[bytes] = []
    load = voice_file.load
    monkeypatch.setattr(voice_file, "load", lambda given: loaded.append(given) or load(given))
    with pytest.raises(InvalidArgument):
        voice_file.unpack_bundle(data)
    assert loaded == []


@pytest.mark.parametrize("count", [0, 1, 12, 300])
def test_a_bundle_is_a_safetensors_file_whatever_is_left_out(count: int) -> None:
    """It is made of one file after the other; fewer than said may come, as voices are deleted meanwhile."""
    files = [bytes([index % 7]) * (1000 * index) for index in range(count)]
    for most in (count, count + 100):
        tensors = load(packed(iter(files), most))
        assert [tensors[str(index)].tobytes() for index in range(count)] == files == files[: len(tensors)]
