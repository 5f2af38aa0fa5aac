"""Resolve: where artifacts come from, and how often the encoder is asked."""

from __future__ import annotations

import builtins
import io
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import soundfile
from safetensors.numpy import load

from tests.support.doubles.fakes import FakeEncoder, Voices, clip, expected, together
from tests.support.waiting import until
from voice_clone.errors import SpeakerNotFound
from voice_clone.speakers.record import ArtifactId, ArtifactInfo, SpeakerRecord

STORES = ("files", "postgresql")  # all tests of this file run on both

Make = Callable[..., Voices]


def test_miss_then_hit_then_restored_give_the_same_bytes(make_voices: Make) -> None:  # C8, B15, B21
    voices = make_voices(defaults=())
    voices.upload(reference_text="Hello.", seed=4)
    replies = [voices.resolve(), voices.resolve()]
    voices.restart()
    replies += [voices.resolve(), voices.resolve()]
    assert [reply.result["status"] for reply in replies] == ["miss", "hit", "restored", "hit"]
    assert {reply.artifacts for reply in replies} == {expected(voices, clip(4), "icl")}
    assert replies[0].result["extraction_ms"] > 0 and replies[2].result["extraction_ms"] == 0.0
    assert voices.encoder.extractions == 0  # after the restart


@pytest.mark.parametrize("seconds", [1.0, 1.01, 2.4, 29.99])
def test_no_frame_is_lost(voices: Voices, seconds: float) -> None:  # B15
    voices.upload(audio=clip(1, seconds), reference_text="Hello.")
    codes = load(voices.resolve().artifacts or b"")["codec_codes"]
    assert len(codes) == int(np.ceil(seconds * 12.5))


def test_a_hit_opens_no_file_and_copies_nothing(voices: Voices, monkeypatch: pytest.MonkeyPatch) -> None:  # B12
    voices.upload()
    first = voices.resolve()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a file was opened")

    for module, name in ((builtins, "open"), (io, "open"), (os, "open"), (os, "stat")):
        monkeypatch.setattr(module, name, refuse)
    for _ in range(100):
        reply = voices.resolve()
        assert reply.result["status"] == "hit" and reply.artifacts is first.artifacts


def test_fifty_cold_calls_are_one_extraction(make_voices: Make) -> None:  # B9, C12
    opened = threading.Event()
    voices = make_voices(defaults=(), encoder=FakeEncoder(during=lambda: opened.wait(10)))
    voices.upload()

    def ask(index: int) -> Any:
        if index == 0:
            threading.Timer(0.05, opened.set).start()
        return voices.resolve() if index % 2 else voices.call("prepare", name="Ada", model_type="qwen3_tts")

    replies = together(50, ask)
    assert all(not isinstance(reply, Exception) for reply in replies), replies
    assert {reply.artifacts for reply in replies[1::2]} == {expected(voices, clip(0))}
    assert voices.encoder.extractions == 1
    assert voices.stats()["extractions"] == 1
    until(lambda: voices.stats()["in_flight"] == 0)


def test_a_thousand_calls_are_one_extraction_and_after_a_restart_none(voices: Voices) -> None:  # C9
    voices.upload()
    for _ in range(1000):
        assert voices.resolve().result["status"] == "hit"
    assert voices.encoder.extractions == 1
    voices.restart()
    statuses = [voices.resolve().result["status"] for _ in range(100)]
    assert statuses == ["restored"] + ["hit"] * 99 and voices.encoder.extractions == 0


def test_a_voice_pushed_out_of_memory_comes_back_from_disk(make_voices: Make) -> None:
    voices = make_voices(max_entries=1)
    voices.upload("Ada", 1)
    voices.upload("Bob", 2)
    assert [voices.resolve(name).result["status"] for name in ("Bob", "Ada", "Ada", "Bob")] == [
        "hit", "restored", "hit", "restored",
    ]  # fmt: skip
    assert voices.encoder.extractions == 2


@pytest.mark.parametrize("config", [{"max_bytes": 0}, {"max_entries": 0}, {"max_bytes": 100}])
def test_everything_works_without_memory(make_voices: Make, config: dict[str, int]) -> None:  # A18, C2
    voices = make_voices(**config)
    voices.upload()
    assert [voices.resolve().result["status"] for _ in range(3)] == ["restored"] * 3
    assert [voices.call("resolve", audio=clip(1)).result["status"] for _ in range(2)] == ["miss"] * 2
    assert voices.stats()["entries"] == 0


def test_cache_off_neither_asks_nor_fills_the_memory(make_voices: Make) -> None:  # A18
    voices = make_voices(defaults=())
    voices.upload()
    assert voices.resolve(cache=False).result["status"] == "miss"
    assert [voices.resolve(cache=False).result["status"] for _ in range(2)] == ["restored"] * 2
    assert voices.stats()["entries"] == 0
    for _ in range(2):
        reply = voices.call("resolve", {"cache": False}, audio=clip(1), model_type="qwen3_tts")
        assert reply.result["status"] == "miss"
    assert voices.stats()["entries"] == 0 and voices.encoder.extractions == 3


def test_inline_clips_are_known_by_their_samples(voices: Voices) -> None:  # C7, A16
    samples, rate = soundfile.read(io.BytesIO(clip(5)))
    flac = io.BytesIO()
    soundfile.write(flac, samples, rate, format="FLAC", subtype="PCM_16")
    first = voices.call("resolve", audio=clip(5))
    again = voices.call("resolve", audio=clip(5))
    other_file = voices.call("resolve", audio=flac.getvalue())
    assert [r.result["status"] for r in (first, again, other_file)] == ["miss", "hit", "hit"]
    assert first.artifacts == expected(voices, clip(5))
    assert voices.call("resolve", audio=clip(6)).result["status"] == "miss"
    in_context = voices.call("resolve", audio=clip(5), reference_text="Hello.")
    assert (in_context.result["status"], in_context.result["mode"]) == ("miss", "icl")
    assert voices.call("resolve", {"mode": "icl"}, audio=clip(5), reference_text="Hi.").result["status"] == "hit"
    assert voices.encoder.extractions == 3 and voices.on_disk() == []
    assert first.result["generation"] == 0 and first.result["embedding_source"] == "audio"


def test_the_same_samples_at_another_rate_are_another_clip(voices: Voices) -> None:  # C7
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 32_000)
    for rate in (16_000, 24_000):
        file = io.BytesIO()
        soundfile.write(file, samples, rate, format="WAV", subtype="FLOAT")
        assert voices.call("resolve", audio=file.getvalue()).result["status"] == "miss"


def test_fifty_inline_calls_of_one_clip_are_one_extraction(voices: Voices) -> None:  # C7, C12
    voices.encoder.during = lambda: threading.Event().wait(0.05)
    replies = together(50, lambda _: voices.call("resolve", audio=clip(1)))
    assert {reply.artifacts for reply in replies} == {expected(voices, clip(1))}
    assert voices.encoder.extractions == 1


def test_a_flood_of_inline_clips_leaves_registered_voices_in_memory(make_voices: Make) -> None:  # A7
    voices = make_voices(max_entries=20, max_bytes=20 * 4600)
    for index in range(5):
        voices.upload(f"v{index}", index)
    extractions = voices.encoder.extractions
    for index in range(200):
        assert voices.call("resolve", audio=clip(100 + index)).result["status"] == "miss"
    assert [voices.resolve(f"v{index}").result["status"] for index in range(5)] == ["hit"] * 5
    stats = voices.stats()
    assert voices.encoder.extractions == extractions + 200
    assert stats["pools"]["inline"]["entries"] == 5 and stats["pools"]["inline"]["evictions"] == 195
    assert stats["bytes"] <= 20 * 4600


def test_modes_are_never_taken_for_each_other(make_voices: Make) -> None:  # B18
    voices = make_voices(defaults=())
    voices.upload(reference_text="Hello.")
    x_vector, in_context = voices.resolve(mode="x_vector"), voices.resolve(mode="icl")
    assert [r.result["status"] for r in (x_vector, in_context)] == ["miss", "miss"]
    assert len(load(x_vector.artifacts or b"")["codec_codes"]) == 0
    assert len(load(in_context.artifacts or b"")["codec_codes"]) == 13
    voices.restart()
    assert voices.resolve(mode="x_vector").artifacts == x_vector.artifacts
    assert voices.resolve().artifacts == in_context.artifacts and voices.encoder.extractions == 0


def test_a_voice_reports_when_its_artifacts_were_made_also_after_a_restart(voices: Voices) -> None:  # B5
    before = time.time()
    voices.upload()
    made = voices.state()["generated_at"]
    assert before <= made <= time.time()
    voices.restart()
    assert voices.state()["generated_at"] == made
    time.sleep(0.01)
    voices.call("prepare", name="Ada", options={"force": True})
    assert voices.state()["generated_at"] > made


def test_a_record_has_the_time_of_each_artifact_where_it_is_known() -> None:
    artifact, of_it = ArtifactId("qwen3_tts", "icl"), ArtifactInfo("f", 7.0, 5.0)
    record = SpeakerRecord("Ada", 1, 2.0, "audio", artifacts={artifact: of_it}, beside={artifact: ArtifactInfo("g", 1)})
    assert SpeakerRecord.from_json(record.to_json()) == record
    older = json.loads(record.to_json()) | {"artifacts": [["qwen3_tts", "icl", "f", 7.0]]}
    assert SpeakerRecord.from_json(json.dumps(older)).artifacts == {artifact: ArtifactInfo("f", 7.0)}


def test_another_checkpoint_never_reuses_artifacts(voices: Voices) -> None:
    voices.upload()
    old = voices.resolve()
    voices.restart(encoder=FakeEncoder(checkpoint="b"))
    new = voices.resolve()
    assert new.result["status"] == "miss" and new.artifacts == expected(voices, clip(0)) != old.artifacts
    assert new.result["fingerprint"] != old.result["fingerprint"]
    assert new.result["generation"] == old.result["generation"]
    assert voices.state()["fingerprint"] == new.result["fingerprint"]


def test_a_checkpoint_loaded_while_we_run_is_noticed_by_prepare_and_by_the_next_extraction(voices: Voices) -> None:
    voices.upload("Ada")
    voices.upload("Bob", 1)
    voices.encoder.checkpoint = "b"
    assert "message" not in voices.call("prepare", name="Ada").result
    assert voices.state("Bob") | {"extraction_ms": 0} == {
        "model_type": "qwen3_tts", "mode": "x_vector", "state": "pending", "extraction_ms": 0,
        "reason": "made by another checkpoint of the encoder",
    }  # fmt: skip
    assert voices.resolve("Bob").result["status"] == "miss"
    voices.encoder.checkpoint = "c"
    voices.upload("Cid", 2)
    assert voices.resolve("Ada").artifacts == expected(voices, clip(0))


def test_replies_and_lookups_add_up_under_thirty_two_threads(make_voices: Make) -> None:  # C5
    voices = make_voices(max_entries=3)
    for index in range(6):
        voices.upload(f"v{index}", index)
    rounds = 40

    def ask(seed: int) -> int:
        before = voices.stats()
        for step in range(rounds):
            voices.resolve(f"v{(seed + step) % 6}")
            now = voices.stats()
            assert all(now[name] >= before[name] for name in ("hits", "misses", "restores", "extractions", "evictions"))
            before = now
        return rounds

    assert together(32, ask) == [rounds] * 32
    stats = voices.stats()
    assert stats["hits"] + stats["misses"] + stats["restores"] == 32 * rounds and stats["extractions"] == 6


def test_an_unknown_voice_with_the_cache_empty(voices: Voices) -> None:  # A16
    assert voices.call("resolve", audio=clip(0)).result["status"] == "miss"
    with pytest.raises(SpeakerNotFound):
        voices.resolve("Ada")
