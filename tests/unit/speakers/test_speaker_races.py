"""Deletes, uploads, extractions and reads of the same voices at the same time."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.doubles.fakes import RATE, FakeEncoder, Voices, clip, together
from tests.support.waiting import WAIT, until
from voice_clone.audio import decode
from voice_clone.errors import Overloaded, SpeakerNotFound
from voice_clone.speakers.disk.store import FileStore
from voice_clone.speakers.encoders import pack_artifacts
from voice_clone.speakers.flight import Superseded
from voice_clone.speakers.name import parse_name
from voice_clone.speakers.record import SpeakerRecord, clip_digest
from voice_clone.speakers.registry import Registry
from voice_clone.speakers.store import Change, Listener
from voice_clone.speakers.voice_file import unpack_bundle

STORES = ("files", "postgresql")  # all tests of this file run on both

Make = Callable[..., Voices]
CLIPS = 40  # different ones in the stress


class Paused(FakeEncoder):
    """An encoder that stops in the middle of each extraction until it is released."""

    def __init__(self) -> None:
        super().__init__(during=self._pause)
        self.inside = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def _pause(self) -> None:
        self.inside.release()
        assert self.go.acquire(timeout=WAIT)

    def wait_inside(self) -> None:
        assert self.inside.acquire(timeout=WAIT)


@pytest.mark.parametrize("operation", ["upload", "resolve", "prepare", "force"])
def test_an_extraction_that_ends_after_a_delete_writes_nothing(make_voices: Make, operation: str) -> None:  # A4, B10
    encoder = Paused()
    voices = make_voices(encoder=encoder, defaults=("qwen3_tts",) if operation == "upload" else ())
    voices.upload(wait=False)
    caller: Any = lambda: None  # noqa: E731
    if operation == "resolve":
        caller = voices.resolve
    elif operation != "upload":
        options = {"force": operation == "force"}
        caller = lambda: voices.call("prepare", options, name="Ada", model_type="qwen3_tts")  # noqa: E731
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.extend(together(1, lambda _: caller())))
    thread.start()
    encoder.wait_inside()
    voices.call("delete", name="Ada")
    thread.join(WAIT)
    assert not thread.is_alive()  # a caller that waited gets its answer at once
    assert results == [None] or isinstance(results[0], SpeakerNotFound)
    encoder.go.release()
    until(lambda: voices.stats()["in_flight"] == 0)
    time.sleep(0.02)
    assert voices.on_disk() == [] and voices.stats()["entries"] == 0
    voices.restart()
    assert voices.call("list").result["count"] == 0


def test_a_clip_sent_with_a_speech_is_not_kept_if_its_voice_was_deleted_meanwhile(make_voices: Make) -> None:
    encoder = Paused()
    voices = make_voices(encoder=encoder, defaults=())
    voices.upload("Ada", 1, wait=False)

    def speak() -> Any:
        return voices.call("resolve", audio=clip(1), model_type="qwen3_tts").result["status"]

    with ThreadPoolExecutor(1) as pool:
        speech = pool.submit(speak)
        encoder.wait_inside()
        voices.call("delete", name="Ada")
        encoder.go.release()
        assert speech.result(WAIT) == "miss"
        assert voices.stats()["entries"] == 0
        encoder.go.release()
        assert (speak(), speak()) == ("miss", "hit"), "later ones are kept as ever"


def test_an_extraction_that_ends_after_a_replace_writes_nothing(make_voices: Make) -> None:  # C3, C6
    encoder = Paused()
    voices = make_voices(encoder=encoder)
    voices.upload("Ada", 1, wait=False)
    encoder.wait_inside()
    voices.upload("Ada", 2, wait=False, replace=True)
    encoder.wait_inside()
    results: list[Any] = []
    reader = threading.Thread(target=lambda: results.append(voices.resolve()))
    reader.start()
    encoder.go.release(2)
    reader.join(WAIT)
    assert results[0].result["generation"] == 2 and results[0].artifacts == made_of(2)
    until(lambda: voices.stats()["in_flight"] == 0)
    voices.restart()
    assert voices.resolve().artifacts == made_of(2)


def test_a_caller_that_waits_for_a_replaced_voice_gets_the_new_one(make_voices: Make) -> None:
    encoder = Paused()
    voices = make_voices(encoder=encoder, defaults=())
    voices.upload("Ada", 1)
    results: list[Any] = []
    readers = [threading.Thread(target=lambda: results.append(voices.resolve())) for _ in range(5)]
    for reader in readers:
        reader.start()
    encoder.wait_inside()
    voices.upload("Ada", 2, replace=True)
    encoder.wait_inside()
    encoder.go.release(2)
    for reader in readers:
        reader.join(WAIT)
    assert {reply.artifacts for reply in results} == {made_of(2)} and len(results) == 5
    assert encoder.extractions == 2


def made_of(seed: int) -> bytes:
    decoded = decode(clip(seed))
    return pack_artifacts(FakeEncoder().encode("qwen3_tts", decoded.waveform, RATE, "x_vector").artifacts)


def test_delete_against_prepare_never_leaves_half_a_voice(voices: Voices) -> None:  # B10
    for seed in range(60):
        voices.upload("Ada", seed % 4, wait=False, replace=True)
        results = together(
            4,
            lambda index: voices.call("delete", name="Ada") if index == 0 else voices.call("prepare", name="Ada"),
        )
        assert all(not isinstance(r, Exception) or isinstance(r, SpeakerNotFound) for r in results), results
        assert voices.call("list").result["count"] == 0 and voices.on_disk() == []
        assert voices.stats()["entries"] == 0
    until(lambda: voices.stats()["in_flight"] == 0)
    until(lambda: voices.cache.registry._changes == {})  # B9: no lock is left behind
    assert voices.cache.voice_states.failures == {}


class Early(FileStore):
    """Reports that Ada is gone before the registry has all records."""

    def restore(self, listener: Listener) -> list[SpeakerRecord]:
        records = super().restore(listener)
        self.reporting = threading.Thread(target=listener, args=([Change("ada", None)],))
        self.reporting.start()
        self.reporting.join(0.1)
        return records


def test_a_voice_that_another_server_deletes_while_this_one_starts_is_gone(tmp_path: Path) -> None:
    voices = Voices(tmp_path, defaults=())
    for name in ("Ada", "Bob"):
        voices.upload(name)
    voices.cache.close()
    gone: list[SpeakerRecord] = []
    store = Early(tmp_path)
    registry = Registry(store, 10, gone.append)
    store.reporting.join(WAIT)
    assert [record.name for record in registry.records()] == ["Bob"]
    assert [record.name for record in gone] == ["Ada"]
    store.close()


def test_uploads_at_once_never_exceed_the_limit(make_voices: Make) -> None:  # A5
    voices = make_voices(max_speakers=5, defaults=())
    results = together(20, lambda index: voices.upload(f"v{index}", index % 3))
    assert sum(isinstance(result, Overloaded) for result in results) == 15
    assert voices.call("list").result["count"] == 5 == len(voices.on_disk())


class Watched(dict[str, SpeakerRecord]):
    """The map of a registry that remembers when each generation was live."""

    def __init__(self, records: dict[str, SpeakerRecord]) -> None:
        super().__init__(records)
        self.live: dict[int, list[float]] = {}  # generation: from, until
        self.seen: dict[int, SpeakerRecord] = {}

    def __setitem__(self, key: str, record: SpeakerRecord) -> None:
        older = self.get(key)
        if older is None or older.generation != record.generation:
            self.live[record.generation] = [time.monotonic(), float("inf")]
            self.seen[record.generation] = record
        super().__setitem__(key, record)
        if older is not None and older.generation != record.generation:
            self.live[older.generation][1] = time.monotonic()

    def __delitem__(self, key: str) -> None:
        older = self[key]
        super().__delitem__(key)
        self.live[older.generation][1] = time.monotonic()


@dataclass
class History:
    """What was acknowledged and read: name, generation, clip or artifacts, and when the request began and ended."""

    uploads: list[tuple[str, int, int, float, float]] = field(default_factory=list)
    deletes: list[tuple[str, int, float, float]] = field(default_factory=list)
    reads: list[tuple[str, int, bytes, float, float]] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def check(self, watched: Watched) -> None:
        """Each reply is of a generation that was live during its request, and has the artifacts of that one's clip."""
        seeds = {clip_digest(decode(clip(seed))): seed for seed in range(CLIPS)}
        artifacts = {seed: made_of(seed) for seed in range(CLIPS)}
        for name, generation, seed, began, ended in self.uploads:
            record = watched.seen[generation]
            assert record.name == name and seeds[record.audio_digest or ""] == seed
            assert began <= watched.live[generation][0] <= ended, "acknowledged before it was live"
        for name, generation, began, ended in self.deletes:
            assert watched.seen[generation].name == name
            assert began <= watched.live[generation][1] <= ended, "live after its deletion was acknowledged"
        for name, generation, read, began, ended in self.reads:
            record = watched.seen[generation]
            since, until = watched.live[generation]
            assert record.name == name and since <= ended and began <= until, "not live during the request"
            assert read == artifacts[seeds[record.audio_digest or ""]], "another voice"


def _writer(voices: Voices, history: History, names: list[str], seed: int, over: Callable[[], bool]) -> None:
    rng = random.Random(seed)
    while not over():
        name, began = rng.choice(names), time.monotonic()
        kind = rng.random()
        try:
            if kind < 0.55:
                clip_seed = rng.randrange(CLIPS)
                made = voices.upload(name, clip_seed, wait=rng.random() < 0.5, replace=True)["generation"]
                history.uploads.append((name, made, clip_seed, began, time.monotonic()))
            elif kind < 0.75:
                gone = voices.call("delete", name=name).result["generation"]
                history.deletes.append((name, gone, began, time.monotonic()))
            else:
                voices.call("prepare", {"force": kind > 0.9}, name=name)
        except SpeakerNotFound:
            pass
        except BaseException as error:
            history.errors.append(error)


def _reader(voices: Voices, history: History, names: list[str], seed: int, over: Callable[[], bool]) -> None:
    rng = random.Random(seed)
    while not over():
        time.sleep(0.001)  # while there are no voices, readers that only spin would keep the GIL from the writers
        name, began = rng.choice(names), time.monotonic()
        try:
            reply = voices.resolve(name)
        except SpeakerNotFound:
            continue
        except BaseException as error:
            history.errors.append(error)
            continue
        history.reads.append((name, reply.result["generation"], reply.artifacts or b"", began, time.monotonic()))


@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=pytest.mark.long)])
def test_eight_writers_and_sixteen_readers(
    make_voices: Make, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:  # C6, B10
    voices = make_voices(max_entries=15)
    in_vain = lost_rebuilds(voices, monkeypatch)
    names, history = [f"voice {index}" for index in range(20)], History()
    watched = Watched(voices.cache.registry._records)
    voices.cache.registry._records = watched
    end = time.monotonic() + seconds

    def over() -> bool:
        """Whether that was long enough, also for a busy machine."""
        enough = len(history.reads) > 100 and len(history.deletes) > 3
        return bool(history.errors) or (enough and time.monotonic() >= end)

    threads = [threading.Thread(target=_writer, args=(voices, history, names, seed, over)) for seed in range(8)]
    threads += [threading.Thread(target=_reader, args=(voices, history, names, 100 + s, over)) for s in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert history.errors == [] and len(history.reads) > 100 and len(history.deletes) > 3
    history.check(watched)
    generations = voices.upload("last", 0, wait=False)["generation"]
    assert voices.encoder.extractions <= generations + len(in_vain)
    _check_rest(voices)


def lost_rebuilds(voices: Voices, monkeypatch: pytest.MonkeyPatch) -> list[Superseded]:
    """Grows by one when artifacts were made again for a voice that was deleted or replaced meanwhile."""
    extractor, lost = voices.cache._extractor, []
    rebuild = extractor._rebuild

    def noted(*given: Any) -> Any:
        try:
            return rebuild(*given)
        except Superseded as error:
            lost.append(error)
            raise

    monkeypatch.setattr(extractor, "_rebuild", noted)
    return lost


def _check_rest(voices: Voices) -> None:
    """Afterwards memory and disk agree, and nothing else is left."""
    until(lambda: voices.stats()["in_flight"] == 0)
    listed = voices.call("list").result
    assert len(voices.on_disk()) == listed["count"]
    until(lambda: voices.cache.registry._changes == {})  # abandoned work may still be asking for its lock
    before = {s["name"]: voices.resolve(s["name"]).artifacts for s in listed["speakers"]}
    voices.restart()
    assert voices.call("list").result["count"] == listed["count"]
    assert {s["name"]: voices.resolve(s["name"]).artifacts for s in listed["speakers"]} == before
    assert voices.encoder.extractions == 0


def test_a_caller_that_looked_a_voice_up_before_its_extraction_does_not_extract_it_again(
    make_voices: Make, monkeypatch: pytest.MonkeyPatch
) -> None:  # B9
    voices = make_voices(defaults=(), max_entries=0)
    voices.upload()
    early = voices.cache.registry.find(parse_name("Ada"))
    assert early.artifacts == {} and voices.resolve().result["status"] == "miss"
    monkeypatch.setattr(voices.cache.registry, "find", lambda *_, **__: early)
    assert voices.resolve().result["status"] == "restored" and voices.encoder.extractions == 1


def test_artifacts_read_before_a_delete_do_not_enter_the_memory_after_it(
    voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:  # A4, B10
    voices.upload()
    voices.restart()

    def delete_then_pack(artifacts: Any) -> bytes:
        voices.call("delete", name="Ada")
        return pack_artifacts(artifacts)

    monkeypatch.setattr("voice_clone.speakers.extraction.pack_artifacts", delete_then_pack)
    with pytest.raises(SpeakerNotFound):
        voices.resolve()
    until(lambda: voices.stats()["in_flight"] == 0)
    time.sleep(0.02)
    assert voices.stats()["entries"] == 0


@pytest.mark.parametrize("name", ["Ada", None])
def test_an_export_beside_a_writer_has_the_voice_or_says_that_there_is_none(
    make_voices: Make, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    voices = make_voices()
    wanted = {} if name is None else {"name": name}
    holding = Registry.holding
    writes: list[Callable[[], Any]] = []

    def write_before(registry: Registry, record: SpeakerRecord) -> Any:
        if writes:
            writes.pop(0)()
        return holding(registry, record)

    monkeypatch.setattr(Registry, "holding", write_before)
    voices.upload("Ada", 1)
    writes += [
        lambda: voices.upload("Ada", 2, replace=True),
        lambda: voices.upload("ADA", 3, replace=True),
    ]
    exported = voices.call("export", **wanted)
    [(header, tensors)] = unpack_bundle(exported.artifacts)
    assert exported.result["speakers"] == ["ADA"] and header.record.generation == voices.get("Ada")["generation"]
    assert tensors["audio"].tobytes() == clip(3)
    writes.append(lambda: voices.call("delete", name="Ada"))
    if name is None:
        assert voices.call("export").result["speakers"] == []
    else:
        with pytest.raises(SpeakerNotFound):
            voices.call("export", name=name)
