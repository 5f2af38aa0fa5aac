"""Upload, get, list, delete, and what each operation refuses."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from tests.support.doubles.fakes import FakeEncoder, Voices, clip
from tests.support.waiting import until
from voice_clone.errors import InvalidArgument, Overloaded, SpeakerNotFound, Unsupported
from voice_clone.speakers import operations
from voice_clone.speakers.config import CacheConfig
from voice_clone.speakers.encoders import Extraction
from voice_clone.speakers.parsing import INPUTS, parse

STORES = ("files", "postgresql")  # all tests of this file run on both

Make = Callable[..., Voices]


def test_an_upload_answers_what_was_uploaded_and_no_path(voices: Voices) -> None:  # A1, B5
    speaker = voices.upload("Ada", 3, consent="signed", description="calm", reference_text="Hello there.")
    created_at, artifacts = speaker.pop("created_at"), speaker.pop("artifacts")
    assert len(speaker.pop("digest")) == 64
    assert speaker.pop("report")["peak_dbfs"] == -6.0 and [each["code"] for each in speaker.pop("warnings")] == [
        "no_speech"
    ]
    assert speaker == {
        "name": "Ada",
        "generation": 1,
        "embedding_source": "audio",
        "consent": "signed",
        "description": "calm",
        "reference_text": "Hello there.",
        "mime_type": "audio/wav",
        "file_size": len(clip(3)),
        "duration": 1.0,
        "sample_rate": 16_000,
    }
    assert created_at > 1.7e9 and [a["state"] for a in artifacts] == ["ready"]
    text = json.dumps([voices.get(), voices.call("list").result])
    assert str(voices.directory) not in text and ".safetensors" not in text and "audio_digest" not in text


def test_the_digest_of_a_generation(voices: Voices) -> None:
    first = voices.upload("Ada", 3)["digest"]
    assert first == voices.get("Ada")["digest"] == voices.resolve("ada").result["digest"]
    forced = voices.call("prepare", {"force": True}, name="Ada", model_type="qwen3_tts").result["digest"]
    again, other = voices.upload("Ada", 3, replace=True)["digest"], voices.upload("Bob", 3)["digest"]
    assert len({first, forced, again, other}) == 4  # each generation of each voice has its own
    voices.restart()
    assert voices.get("Ada")["digest"] == again and voices.resolve("Bob").result["digest"] == other


def test_fields_that_were_not_given_have_no_key(voices: Voices) -> None:  # A1
    assert not {"reference_text", "consent", "description"} & set(voices.upload("Ada"))
    assert not {"reference_text", "consent", "description"} & set(voices.get("Ada"))


def test_the_transcript_decides_the_mode(voices: Voices) -> None:  # A2, B8
    voices.upload("With", reference_text="Hello.")
    voices.upload("Without")
    with_text, without = voices.resolve("With").result, voices.resolve("Without").result
    assert (with_text["mode"], with_text["reference_text"], with_text["status"]) == ("icl", "Hello.", "hit")
    assert without["mode"] == "x_vector" and "reference_text" not in without


def test_list_after_uploads_and_deletes(voices: Voices) -> None:  # A3
    for name in ("cid", "Ada", "bob"):
        voices.upload(name, wait=False)
    listed = voices.call("list").result
    assert listed["count"] == 3 and [speaker["name"] for speaker in listed["speakers"]] == ["Ada", "bob", "cid"]
    generation = voices.get("bob")["generation"]
    assert voices.call("delete", name="BOB").result == {"name": "bob", "generation": generation, "deleted": True}
    with pytest.raises(SpeakerNotFound):
        voices.call("delete", name="bob")
    assert voices.call("list").result["count"] == 2


def test_delete_leaves_nothing_on_disk_or_in_memory(voices: Voices) -> None:  # A4
    voices.upload("Ada", 1, reference_text="Hello.")
    voices.call("prepare", {"mode": "x_vector"}, name="Ada")
    voices.call("resolve", audio=clip(1))  # the same clip, sent inline
    voices.call("resolve", audio=clip(2))
    voices.upload("Ada B", 3)
    assert voices.stats()["entries"] == 5
    voices.call("delete", name="ada")
    stats = voices.stats()
    assert stats["pools"]["registered"]["entries"] == 1 and stats["pools"]["inline"]["entries"] == 1
    assert len(voices.on_disk()) == 1
    for options in ({}, {"mode": "x_vector"}):
        with pytest.raises(SpeakerNotFound):
            voices.resolve("Ada", **options)
    assert voices.resolve("Ada B").result["status"] == "hit"


def test_one_more_than_may_be_is_refused_but_an_existing_name_may_be_uploaded_again(make_voices: Make) -> None:  # A5
    voices = make_voices(max_speakers=3)
    for name in "abc":
        voices.upload(name, wait=False)
    with pytest.raises(Overloaded, match="3 voices are registered; this server keeps at most 3, delete some first"):
        voices.upload("d")
    assert voices.upload("B", replace=True)["generation"] > 3
    voices.call("delete", name="a")
    voices.upload("d")
    voices.restart(max_speakers=2)  # what is on disk is kept, though it is more
    assert voices.call("list").result["count"] == 3
    with pytest.raises(Overloaded):
        voices.upload("e")


def test_the_default_limit_is_a_thousand_voices_and_half_a_gibibyte() -> None:  # A5, C2
    config = CacheConfig()
    assert (config.max_speakers, config.max_bytes, config.max_entries) == (1000, 512 * 2**20, 1024)
    assert (config.clip.max_bytes, config.clip.min_seconds, config.clip.max_seconds) == (10 * 2**20, 1.0, 30.0)


def test_a_bad_upload_leaves_the_old_voice_as_it_was(voices: Voices) -> None:
    voices.upload("Ada", 1, reference_text="Hello.")
    before, artifacts = voices.get(), voices.resolve().artifacts
    bad: list[dict[str, Any]] = [
        {"audio": b"noise"}, {"audio": clip(1, 0.5)}, {"audio": clip(1, 31.0)}, {"audio": b""},
        {"reference_text": " "}, {"reference_text": "x" * 4097}, {"reference_text": "a\0b"}, {"consent": "\n"},
        {"description": "x" * 1025}, {"model_type": "../x"}, {"speaker_embedding": np.zeros(1024, np.float32)},
        {"audio": None}, {"audio": None, "speaker_embedding": np.zeros(7, np.float32)},
    ]  # fmt: skip
    for fields in bad:
        with pytest.raises(InvalidArgument):
            voices.upload("ada", **fields)
    assert voices.get() == before
    assert voices.resolve().artifacts == artifacts and voices.encoder.extractions == 1


@pytest.mark.parametrize("restart", [False, True])
def test_a_name_that_is_uploaded_again_never_has_its_old_voice(voices: Voices, restart: bool) -> None:  # C3
    seen = []
    for seed in range(3):
        voices.upload("Ada", seed, replace=True)
        seen.append(voices.resolve().artifacts)
        if seed == 1:
            voices.call("delete", name="Ada")
        if restart:
            voices.restart()
    assert len(set(seen)) == 3


def test_a_ready_embedding_needs_no_encoder(voices: Voices) -> None:  # A6
    embedding = np.random.default_rng(0).standard_normal(1024)
    speaker = voices.upload("Ada", audio=None, speaker_embedding=embedding)
    assert speaker["embedding_source"] == "direct" and voices.state()["state"] == "ready"
    assert speaker["embedding_dim"] == voices.get()["embedding_dim"] == 1024
    reply = voices.resolve()
    assert reply.result["status"] == "restored" and reply.result["mode"] == "x_vector"
    tensors = load(reply.artifacts or b"")
    np.testing.assert_array_equal(tensors["speaker_embedding"], embedding.astype(np.float32))
    assert tensors["codec_codes"].shape == (0, 16) and tensors["codec_codes"].dtype == np.int32
    assert voices.resolve().result["status"] == "hit"
    voices.restart()
    assert voices.resolve().artifacts == reply.artifacts
    assert voices.encoder.extractions == 0


@pytest.mark.parametrize(
    ("embedding", "words"),
    [
        (np.zeros(1023, np.float32), "has 1023 values; qwen3_tts needs 1024"),  # A6
        (np.full(1024, np.nan, np.float32), "NaN or infinity"),
        (np.full(1024, np.inf, np.float32), "NaN or infinity"),
        (np.full(1024, 1e300), "NaN or infinity"),
        (np.zeros((1, 1024), np.float32), r"of shape \[dimension\], not \[1, 1024\]"),
        (np.zeros(0, np.float32), "must be numbers of shape"),
        (np.array(["a"] * 1024), "must be numbers of shape"),
    ],
)
def test_an_embedding_that_is_refused(voices: Voices, embedding: Any, words: str) -> None:
    for operation, name in (("upload", "Ada"), ("resolve", None)):
        with pytest.raises(InvalidArgument, match=words):
            voices.call(operation, name=name, speaker_embedding=embedding)
    assert voices.call("list").result["count"] == 0


def test_an_embedding_serves_one_mode_and_one_model_type_only(make_voices: Make) -> None:  # B18
    voices = make_voices(defaults=())
    embedding = np.zeros(1024, np.float32)
    with pytest.raises(InvalidArgument, match="model_type is missing"):
        voices.upload(audio=None, speaker_embedding=embedding)
    with pytest.raises(InvalidArgument, match="allows no reference_text"):
        voices.upload(audio=None, speaker_embedding=embedding, model_type="qwen3_tts", reference_text="Hello.")
    with pytest.raises(Unsupported, match=r"fish_speech in mode icl.*send audio"):
        voices.upload(audio=None, speaker_embedding=embedding, model_type="fish_speech")
    voices.upload(audio=None, speaker_embedding=embedding, model_type="qwen3_tts")
    with pytest.raises(Unsupported, match="registered without audio"):
        voices.resolve(mode="icl")
    with pytest.raises(Unsupported, match="registered without audio"):
        voices.resolve(model_type="omnivoice", mode="icl")
    with pytest.raises(InvalidArgument, match="nothing to rebuild"):
        voices.call("prepare", {"force": True}, name="Ada", model_type="qwen3_tts")
    voices.restart(encoder=FakeEncoder(checkpoint="b"))
    with pytest.raises(Unsupported, match="with this checkpoint; upload a clip"):
        voices.resolve()


@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        ("get", {"name": "Nobody"}),
        ("delete", {"name": "Nobody"}),
        ("prepare", {"name": "Nobody"}),
        ("resolve", {"name": "Nobody"}),
        ("export", {"name": "Nobody"}),
    ],
)
def test_an_unknown_voice_is_the_same_error_everywhere(voices: Voices, operation: str, fields: Any) -> None:  # A10, A14
    with pytest.raises(SpeakerNotFound) as caught:
        voices.call(operation, **fields)
    assert caught.value.message == "speaker_not_found: no voice is registered under the name 'Nobody'"
    assert caught.value.code == "NOT_FOUND"


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a\0b", ".x", "", "a/b"])  # A11, A10
@pytest.mark.parametrize("operation", ["upload", "get", "delete", "prepare", "resolve", "export"])
def test_a_bad_name_is_refused_everywhere_and_nothing_is_written(voices: Voices, operation: str, name: str) -> None:
    with pytest.raises(InvalidArgument, match="the name "):
        voices.call(operation, name=name, audio=clip(0) if operation == "upload" else None)
    assert voices.on_disk() == []


@pytest.mark.parametrize(
    ("operation", "fields", "words"),
    [
        ("uplaod", {}, "unknown operation 'uplaod'; it must be one of upload, get, list"),
        ("get", {}, "name is missing"),
        ("upload", {"audio": b"x"}, "name is missing"),
        ("prepare", {}, "name is missing"),
        ("delete", {}, "name is missing"),
        ("import", {}, "audio is missing"),
        ("upload", {"name": "a"}, "exactly one of audio and speaker_embedding"),
        ("resolve", {}, "exactly one of name, audio, speaker_embedding and voice_prompt"),
        ("resolve", {"name": "a", "audio": b"x"}, "exactly one of name, audio, speaker_embedding and voice_prompt"),
        ("resolve", {"name": "a", "reference_text": "x"}, "reference_text belongs to the upload"),  # B11
        ("resolve", {"name": "a", "consent": "x"}, "consent has no meaning in this operation"),
        ("get", {"name": "a", "audio": b"x"}, "audio has no meaning in this operation"),
        ("list", {"name": "a"}, "name has no meaning"),
        ("prepare", {"name": "a", "reference_text": "x"}, "reference_text has no meaning"),
        ("stats", {"model_type": "a"}, "model_type has no meaning"),
        ("resolve", {"name": "a", "options": {"mod": "icl"}}, "unknown option 'mod'; this operation takes mode, cache"),
        (
            "get",
            {"name": "a", "options": {"wait": True}},
            "unknown option 'wait'; this operation takes kind, owner",
        ),
        ("resolve", {"name": "a", "options": {"cache": "off"}}, "option cache must be true or false"),
        ("resolve", {"name": "a", "options": {"mode": 7}}, "option mode must be text"),
        ("resolve", {"name": "a", "options": {"mode": "a/b"}}, "option mode must be 1 to 64"),
        ("resolve", {"name": "a", "options": {"timeout": 0}}, "option timeout must be a number of seconds"),
        ("resolve", {"name": "a", "options": {"timeout": True}}, "option timeout must be a number of seconds"),
        ("resolve", {"name": "a", "options": {"timeout": float("nan")}}, "option timeout must be a number"),
        ("resolve", {"name": "a", "options": {"timeout": 10**400}}, "option timeout must be a number of seconds"),
        ("resolve", {"name": "a", "model_type": ""}, "model_type must be 1 to 64"),
        ("resolve", {"audio": b"", "reference_text": " "}, "reference_text is blank"),
    ],
)
def test_requests_that_are_refused(voices: Voices, operation: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        voices.call(operation, **fields)


def test_a_request_is_never_changed(voices: Voices) -> None:  # A15, B20
    options = {"wait": True}
    inputs = {"name": " Ada ", "audio": clip(0), "reference_text": "Hello."}
    before = dict(inputs)
    upload = parse("upload", inputs, options)
    parsed = dict(vars(upload))
    voices.cache.call(upload)
    asked = parse("resolve", {"name": " Ada "}, mode := {"mode": "icl"})
    first = voices.cache.call(asked)
    second = voices.cache.call(asked)
    assert inputs == before and vars(upload) == parsed and options == {"wait": True} and mode == {"mode": "icl"}
    assert first == second and first.result is not second.result


@pytest.mark.parametrize(
    ("operation", "inputs", "options", "wanted", "fields"),
    [
        (
            "upload",
            {"name": "A", "audio": b"x"},
            {"strict": True},
            operations.UploadClip,
            {"strict": True, "replace": False},
        ),
        ("upload", {"name": "A", "speaker_embedding": np.zeros(4)}, {}, operations.UploadEmbedding, {"wait": False}),
        ("get", {"name": "A"}, {}, operations.Get, {"name": ("A", "a")}),
        ("list", {}, {"after": "B", "limit": 0}, operations.List, {"after": "b", "limit": 0}),
        ("delete", {"name": "A"}, {}, operations.Delete, {"name": ("A", "a")}),
        ("prepare", {"name": "A"}, {"force": True}, operations.Prepare, {"force": True, "mode": None}),
        ("resolve", {"name": "A"}, {"cache": False}, operations.Resolve, {"cache": False, "timeout": None}),
        ("resolve", {"audio": b"x"}, {"timeout": 2}, operations.ResolveClip, {"timeout": 2, "cache": True}),
        ("resolve", {"speaker_embedding": np.zeros(4)}, {"mode": "m"}, operations.ResolveEmbedding, {"mode": "m"}),
        ("resolve", {"voice_prompt": b"x"}, {}, operations.ResolvePrompt, {"bundle": b"x"}),
        ("stats", {}, {}, operations.Stats, {"synthesizers": False}),
        ("stats", {}, {"synthesizers": True}, operations.Stats, {"synthesizers": True}),
        ("export", {}, {"include_audio": False}, operations.Export, {"name": None, "include_audio": False}),
        ("import", {"audio": b"x"}, {"replace": True}, operations.Import, {"bundle": b"x", "replace": True}),
    ],
)
def test_a_request_becomes_one_frozen_dataclass(
    operation: str, inputs: dict[str, Any], options: dict[str, Any], wanted: type, fields: dict[str, Any]
) -> None:
    parsed = parse(operation, dict.fromkeys(INPUTS) | inputs, options | {"owner": "eve"})
    assert type(parsed) is wanted and parsed.owner == "eve"
    assert {name: getattr(parsed, name) for name in fields} == fields
    with pytest.raises(dataclasses.FrozenInstanceError):
        parsed.owner = "bob"  # type: ignore[misc]


def test_texts_never_reach_the_log(voices: Voices, caplog: pytest.LogCaptureFixture) -> None:  # C18
    caplog.set_level(logging.DEBUG)
    voices.upload("Ada", reference_text="SECRETWORDS", consent="SECRETWORDS", description="SECRETWORDS")
    voices.resolve()
    voices.call("delete", name="Ada")
    assert "registered the voice 'Ada', generation 1" in caplog.text and "deleted the voice 'Ada'" in caplog.text
    assert "SECRETWORDS" not in caplog.text


def test_an_upload_without_wait_is_made_ready_in_the_background(voices: Voices) -> None:  # B19
    speaker = voices.upload("Ada", wait=False)
    assert speaker["artifacts"][0]["state"] in ("pending", "processing", "ready")
    until(lambda: voices.state()["state"] == "ready")
    reply = voices.resolve().result
    assert (reply["status"], reply["extraction_ms"], voices.encoder.extractions) == ("hit", 0.0, 1)


def test_an_upload_with_a_waiting_caller_goes_first(make_voices: Make) -> None:
    begun, opened = threading.Event(), threading.Event()
    sizes = []

    class Noting(FakeEncoder):
        def encode(self, model_type: str, waveform: Any, sample_rate: int, mode: str | None) -> Extraction:
            if waveform.size:
                begun.set()
                assert opened.wait(30)
                sizes.append(waveform.size)
            return super().encode(model_type, waveform, sample_rate, mode)

    voices = make_voices(workers=1, encoder=Noting())
    for number in range(4):
        voices.upload(f"unwaited {number}", number, wait=False)
    assert begun.wait(30)
    waiting = threading.Thread(target=voices.upload, args=("Ada",), kwargs={"audio": clip(9, 2.0)})
    waiting.start()
    until(lambda: bool(voices.cache.voice_states.flights.of("ada")))
    opened.set()
    waiting.join()
    assert sizes[1] == max(sizes), "the first one ran already"


def test_stats_count_everything(voices: Voices) -> None:
    voices.upload("Ada", 1)
    voices.upload("Bob", 2, reference_text="Hello.")
    voices.resolve("Ada")
    voices.resolve("Ada", cache=False)
    voices.resolve("Bob", mode="x_vector")
    voices.call("resolve", audio=clip(3))
    voices.call("resolve", audio=clip(3))
    voices.call("delete", name="Bob")
    stats = voices.stats()
    counts = {name: stats[name] for name in ("hits", "misses", "restores", "extractions", "uploads", "deletes")}
    assert counts == {"hits": 2, "misses": 2, "restores": 1, "extractions": 4, "uploads": 2, "deletes": 1}
    assert stats["speakers"] == 1 and stats["entries"] == 2 and stats["bytes"] > 8000
    seconds = stats["extraction_seconds"]
    assert seconds["count"] == 4 == seconds["buckets"]["+Inf"] and seconds["sum"] > 0
    assert list(seconds["buckets"].values()) == sorted(seconds["buckets"].values())
    json.dumps(stats)


def test_a_list_has_pages(voices: Voices) -> None:
    for name in ("dora", "Ada", "cy", "Ben", "eve"):
        voices.upload(name)

    def page(**options: Any) -> list[str]:
        result = voices.call("list", options).result
        assert result["count"] == len(result["speakers"])
        return [speaker["name"] for speaker in result["speakers"]]

    assert page() == ["Ada", "Ben", "cy", "dora", "eve"]
    assert page(limit=2) == ["Ada", "Ben"] and page(limit=2, after="BEN") == ["cy", "dora"]
    assert page(after="bz") == ["cy", "dora", "eve"], "the name need not be there"
    assert page(after="eve") == [] and page(limit=0) == []
    assert page(after="", limit=1) == ["Ada"]
    for wrong in ({"limit": -1}, {"limit": "2"}, {"after": 1}, {"after": "a/b"}):
        with pytest.raises(InvalidArgument, match=f"the option {next(iter(wrong))} "):
            voices.call("list", wrong)


def test_an_unknown_name_names_those_that_resemble_it(voices: Voices) -> None:
    for name, owner in (("Anna", None), ("Hannah", "alice"), ("Bob", None)):
        voices.call("upload", {"wait": True, **({"owner": owner} if owner else {})}, name=name, audio=clip())
    for operation in ("get", "delete", "export"):
        with pytest.raises(SpeakerNotFound) as caught:
            voices.call(operation, name="hanna")
        assert "'Anna'" in str(caught.value) and "'Hannah'" in str(caught.value) and "'Bob'" not in str(caught.value)
        with pytest.raises(SpeakerNotFound) as caught:
            voices.call(operation, {"owner": "bob"}, name="hanna")
        assert "mean" not in str(caught.value), "those of others are not there"
