"""Several caches on one database, as the servers of a fleet: coherence, one extraction for all, and failures."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.doubles.fakes import TIMEOUT, FakeEncoder, Voices, clip, together
from tests.support.doubles.proxy import Proxy
from tests.support.official.postgres import PostgresServer, running_postgres
from tests.support.waiting import WAIT, until
from voice_clone.errors import InvalidArgument, Overloaded, QuotaExceeded, SpeakerExists, SpeakerNotFound, Unsupported
from voice_clone.settings import KnownVoiceSettings
from voice_clone.speakers.draft import Draft
from voice_clone.speakers.opening import open_known_voices
from voice_clone.speakers.postgres import history, sessions
from voice_clone.speakers.postgres import store as postgres_store
from voice_clone.speakers.postgres.history import NEWER
from voice_clone.speakers.postgres.rows import ChangeRow, read
from voice_clone.speakers.postgres.sessions import checked_address
from voice_clone.speakers.postgres.store import KnownInDatabase, PostgresStore
from voice_clone.speakers.record import ArtifactId, SpeakerRecord

pytestmark = pytest.mark.thorough

STORES = ("postgresql",)
Make = Callable[..., Voices]


def store_of(voices: Voices) -> PostgresStore:
    store = voices.cache.store
    assert isinstance(store, PostgresStore)
    return store


@pytest.fixture
def fleet(make_voices: Make) -> list[Voices]:
    """Three servers."""
    return [make_voices() for _ in range(3)]


def test_an_acknowledged_upload_resolves_on_all_at_once_with_equal_bytes(fleet: list[Voices]) -> None:
    for seed in range(20):
        fleet[seed % 3].upload("Ada", seed, replace=True)
        replies = [voices.resolve() for voices in fleet]
        assert len({reply.artifacts for reply in replies}) == 1
        assert len({reply.result["generation"] for reply in replies}) == 1
        assert [voices.get() for voices in fleet] == [fleet[0].get()] * 3
    assert sum(voices.encoder.extractions for voices in fleet) == 20


def test_a_closed_store_looks_no_more(make_voices: Make) -> None:
    """Its connection is closed: a look by a thread that still runs could end the process."""

    def looking() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "store-changes"}

    before = looking()
    voices = make_voices()
    assert len(looking() - before) == 1
    voices.cache.close()
    assert looking() == before


def test_what_was_deleted_on_one_is_gone_on_all(fleet: list[Voices]) -> None:
    fleet[0].upload()
    for voices in fleet:
        voices.resolve()
    fleet[1].call("delete", name="Ada")
    for voices in fleet:
        with pytest.raises(SpeakerNotFound):
            voices.resolve()
        assert voices.stats()["entries"] == 0, "its artifacts are still in memory"
    assert fleet[0].on_disk() == []


def test_an_idle_server_forgets_what_was_deleted_elsewhere(fleet: list[Voices]) -> None:
    fleet[0].upload()
    fleet[1].resolve()
    fleet[0].call("delete", name="Ada")
    until(lambda: fleet[1].stats()["entries"] == 0)  # no caller asks it for a voice: `stats` asks no store


def test_many_cold_requests_on_three_servers_are_one_extraction(make_voices: Make) -> None:
    encoder = FakeEncoder(during=lambda: time.sleep(0.3))
    fleet = [make_voices(encoder=encoder, defaults=()) for _ in range(3)]
    fleet[0].upload()
    replies = together(96, lambda index: fleet[index % 3].resolve())
    assert {reply.artifacts for reply in replies} == {fleet[0].resolve().artifacts}
    assert encoder.extractions == 1


def test_a_look_costs_the_same_among_many_voices_without_statistics(make_voices: Make) -> None:
    voices = make_voices()
    voices.upload()
    with store_of(voices).looking.use(60.0) as connection:
        connection.execute("ALTER TABLE voice_clone.voice SET (autovacuum_enabled = off)")
        connection.execute(
            "INSERT INTO voice_clone.voice SELECT decode(md5(n::text), 'hex'), 1, -n, NULL, NULL "
            "FROM generate_series(1, 20000) n"
        )
        plan = connection.execute(f"EXPLAIN ANALYZE {NEWER}", (10**6,)).fetchall()
        connection.execute("DELETE FROM voice_clone.voice WHERE change < 0")
        connection.execute("ALTER TABLE voice_clone.voice RESET (autovacuum_enabled)")
    text = "\n".join(str(line) for (line,) in plan)
    assert "voice_change_key" in text, text
    assert "Seq Scan on voice" not in text and "JIT" not in text, text


def test_limits_hold_for_the_fleet(make_voices: Make) -> None:
    fleet = [make_voices(max_speakers=5, defaults=()) for _ in range(3)]
    results = together(12, lambda index: fleet[index % 3].upload(f"v{index}", index % 3))
    assert fleet[0].call("list").result["count"] == 5
    assert sum(isinstance(result, Overloaded) for result in results) == 7
    first = fleet[0].call("list").result["speakers"][0]["name"]
    with pytest.raises(SpeakerExists):
        fleet[1].call("upload", name=first, audio=clip(5))
    fleet[2].call("delete", name=first)
    fleet[1].call("upload", {"owner": "eve", "max_owned": 1}, name="Eve", audio=clip(1))
    fleet[1].call("delete", name=fleet[0].call("list").result["speakers"][1]["name"])
    with pytest.raises(QuotaExceeded):
        fleet[2].call("upload", {"owner": "eve", "max_owned": 1}, name="Eve 2", audio=clip(1))


def test_the_bytes_of_an_owner_are_those_on_all_servers(fleet: list[Voices]) -> None:
    limit = {"owner": "eve", "max_owned_bytes": 4 * len(clip(0))}

    def upload(index: int) -> Any:
        return fleet[index % 3].call("upload", limit, name=f"v{index}", audio=clip(index))

    results = together(9, upload)
    assert sum(isinstance(result, QuotaExceeded) for result in results) == 5, results
    assert fleet[0].call("list").result["count"] == 4
    kept = fleet[1].call("list").result["speakers"][0]["name"]
    with pytest.raises(QuotaExceeded):
        fleet[2].call("upload", {**limit, "style": "happy"}, name=kept, audio=clip(20))


def test_two_checkpoints_live_side_by_side(make_voices: Make) -> None:
    """While servers change from one to the other, each finds its artifacts again, and none makes them twice."""
    old, new = make_voices(encoder=FakeEncoder("a")), make_voices(encoder=FakeEncoder("b"))
    old.upload()
    first, second = old.resolve().artifacts, new.resolve().artifacts
    assert first != second and new.encoder.extractions == 1
    old.restart(FakeEncoder("a"))
    new.restart(FakeEncoder("b"))
    assert [voices.resolve().result["status"] for voices in (old, new)] == ["restored", "restored"]
    assert (old.resolve().artifacts, new.resolve().artifacts) == (first, second)
    assert (old.state()["state"], new.state()["state"]) == ("ready", "ready")
    assert old.encoder.extractions == new.encoder.extractions == 0
    third = make_voices(encoder=FakeEncoder("c"))
    third.resolve()
    with psycopg.connect(old.dsn or "") as connection:
        assert connection.execute("SELECT count(*) FROM voice_clone.blob").fetchone() == (3,), (
            "a clip and two artifacts"
        )


def test_an_extraction_that_ends_after_another_server_deleted_the_voice_writes_nothing(make_voices: Make) -> None:
    inside, go = threading.Event(), threading.Event()
    encoder = FakeEncoder(during=lambda: (inside.set(), go.wait(WAIT)))
    one, other = make_voices(encoder=encoder, defaults=()), make_voices(defaults=())
    one.upload()
    results: list[Any] = []
    caller = threading.Thread(target=lambda: results.extend(together(1, lambda _: one.resolve())))
    caller.start()
    assert inside.wait(WAIT)
    other.call("delete", name="Ada")
    caller.join(WAIT)  # it learns of it at the next look, not when the encoder is done
    assert isinstance(results[0], SpeakerNotFound)
    go.set()
    until(lambda: one.stats()["in_flight"] == 0)
    assert one.on_disk() == [] and one.stats()["entries"] == 0


@pytest.fixture
def proxied(make_voices: Make, postgres: PostgresServer) -> Iterator[tuple[Proxy, Voices, Voices]]:
    """A server behind a proxy, and another one on the same database without."""
    with Proxy(postgres.port) as proxy:
        near = make_voices(defaults=())
        assert near.dsn is not None
        far = Voices(near.directory, dsn=near.dsn.replace(str(postgres.port), str(proxy.port)))
        yield proxy, far, near
        far.cache.close()


def test_a_store_that_is_away_leaves_warm_voices_speaking_for_a_while(
    proxied: tuple[Proxy, Voices, Voices], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, far, near = proxied
    far.upload("Ada")
    far.upload("Cold", 1)
    far.resolve()
    far.cache.voice_states.artifacts.discard("registered", "cold")
    proxy.refuse = True
    proxy.cut()
    assert far.resolve().result["status"] == "hit"
    until(lambda: not far.stats()["store"]["reachable"])
    began = time.monotonic()
    for change in (lambda: far.upload("Bob"), lambda: far.call("delete", name="Ada"), lambda: far.resolve("Cold")):
        with pytest.raises(Overloaded, match="cannot be reached"):
            change()
    assert time.monotonic() - began < TIMEOUT / 2, "they are refused at once"
    near.call("delete", name="Ada")
    assert far.resolve().result["status"] == "hit"

    def refused() -> bool:
        with contextlib.suppress(Overloaded):
            far.resolve()
            return False
        return True

    with monkeypatch.context() as patch:
        patch.setattr(store_of(far).freshness, "_bound", 0.5)
        until(refused)
        assert far.stats()["store"]["age_seconds"] >= 0.5
    proxy.refuse = False
    until(lambda: far.stats()["store"]["reachable"])
    with pytest.raises(SpeakerNotFound):
        far.resolve()
    assert far.resolve("Cold").artifacts and far.upload("Bob")["generation"] > 2


def test_a_store_that_answers_nothing_is_not_waited_for(
    proxied: tuple[Proxy, Voices, Voices], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, far, _ = proxied
    far.upload("Ada")
    far.resolve()
    proxy.swallow = True
    with monkeypatch.context() as patch:
        patch.setattr(store_of(far), "timeout", 1.0)
        assert far.resolve().result["status"] == "hit"  # after the deadline of the look
    began = time.monotonic()
    assert far.resolve().result["status"] == "hit"
    with pytest.raises(Overloaded):
        far.upload("Bob")
    assert time.monotonic() - began < TIMEOUT / 2
    proxy.swallow = False
    proxy.cut()
    until(lambda: far.stats()["store"]["reachable"])
    assert far.upload("Bob")["name"] == "Bob"


@pytest.mark.parametrize("operation", ["upload", "delete", "prepare"])
def test_a_commit_whose_answer_is_lost_counts_once(proxied: tuple[Proxy, Voices, Voices], operation: str) -> None:
    proxy, far, near = proxied
    far.upload("Ada", 1)
    before = far.get()["generation"]
    cut = threading.Event()

    def at_commit(piece: bytes) -> bool:
        if b"COMMIT" not in piece or cut.is_set():
            return False
        cut.set()
        return True

    proxy.watch = at_commit
    if operation == "upload":
        made = far.upload("Ada", 2, replace=True)["generation"]
    elif operation == "prepare":
        made = far.call("prepare", {"force": True}, name="Ada", model_type="qwen3_tts").result["generation"]
    else:
        far.call("delete", name="Ada")
    assert cut.is_set()
    if operation == "delete":
        with pytest.raises(SpeakerNotFound):
            near.get()
    else:
        assert near.get()["generation"] == made > before
        assert near.resolve().artifacts == far.resolve().artifacts


def test_a_change_that_never_arrived_is_reported_and_leaves_nothing(proxied: tuple[Proxy, Voices, Voices]) -> None:
    proxy, far, near = proxied
    far.upload("Ada", 1)

    proxy.watch = lambda piece: b"BEGIN" in piece
    with pytest.raises(Overloaded, match="nothing was changed"):
        far.upload("Bob", 2)
    proxy.watch = lambda piece: False
    with pytest.raises(SpeakerNotFound):
        near.get("Bob")
    assert len(near.on_disk()) == 1, "bytes of a change that was not made"
    until(lambda: far.stats()["store"]["reachable"])
    assert far.upload("Bob", 2)["name"] == "Bob"


def test_a_counter_that_went_back_drops_all_that_was_known(make_voices: Make, caplog: pytest.LogCaptureFixture) -> None:
    """As after a restore from a backup: what was registered since is gone, and no generation comes twice."""
    one, other = make_voices(defaults=()), make_voices(defaults=())
    one.upload("CacheUsage", 1)
    one.resolve("CacheUsage")
    lost = one.upload("Lost", 2)["generation"]
    for voices in (one, other):
        voices.resolve("Lost")
    with psycopg.connect(one.dsn or "") as connection:
        connection.execute("DELETE FROM voice_clone.voice WHERE record->>'name' = 'Lost'")
        connection.execute("UPDATE voice_clone.counter SET change = (SELECT max(change) FROM voice_clone.voice)")
    for voices in (one, other):
        with pytest.raises(SpeakerNotFound):
            voices.resolve("Lost")
        assert voices.resolve("CacheUsage").artifacts
    assert "another history" in caplog.text and one.stats()["store"]["resets"] == 1
    assert other.upload("New", 3)["generation"] > lost


def test_what_a_backup_lacks_is_gone_though_the_first_try_to_read_it_fails(
    make_voices: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    voices = make_voices(defaults=())
    voices.upload("Kept", 1)
    voices.upload("Lost", 2)
    with psycopg.connect(voices.dsn or "") as connection:
        connection.execute("DELETE FROM voice_clone.voice WHERE record->>'name' = 'Lost'")
        connection.execute("UPDATE voice_clone.counter SET change = (SELECT max(change) FROM voice_clone.voice)")
    failed = threading.Event()

    def fail_once(row: ChangeRow) -> SpeakerRecord:
        if not failed.is_set():
            failed.set()
            raise Overloaded("the connection is cut")
        return read(row)

    monkeypatch.setattr(history, "read", fail_once)
    assert voices.get("Lost")["name"] == "Lost", "memory serves while the store does not answer"
    assert failed.is_set()
    until(lambda: voices.stats()["store"]["reachable"])
    assert [each["name"] for each in voices.call("list").result["speakers"]] == ["Kept"]
    assert voices.stats()["store"]["resets"] == 1


def test_many_voices_have_the_time_to_be_read_again(make_voices: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of it than a look at the changes, or a server with many voices would be away until it is started again."""
    voices = make_voices(defaults=())
    for number in range(10):
        voices.upload(f"v{number}", number)

    def slow(row: ChangeRow) -> SpeakerRecord:
        time.sleep(0.1)
        return read(row)

    monkeypatch.setattr(store_of(voices), "timeout", 0.5)
    monkeypatch.setattr(postgres_store, "RECORDS_A_SECOND", 2)
    monkeypatch.setattr(history, "read", slow)
    with psycopg.connect(voices.dsn or "") as connection:
        connection.execute("UPDATE voice_clone.counter SET epoch = epoch + 1")
    until(lambda: voices.stats()["store"]["resets"] == 1)
    assert voices.call("list").result["count"] == 10


def test_a_slow_machine_has_the_time_to_read_many_voices(make_voices: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database ends a transaction in which it hears nothing for a while."""
    count = 45
    drafts = [Draft(SpeakerRecord(f"v{n}", n, 5.0, "audio"), {}, {}) for n in range(1, count + 1)]
    store_of(make_voices()).adopt(drafts)

    def slow(row: ChangeRow) -> SpeakerRecord:
        time.sleep(0.1)
        return read(row)

    monkeypatch.setattr(history, "read", slow)
    monkeypatch.setattr(history, "_BATCH", 5)
    monkeypatch.setattr(sessions, "_GREETING", sessions._GREETING.replace("'5s'", "'4s'"))
    assert make_voices().call("list").result["count"] == count


def test_a_paused_extraction_of_another_server_is_waited_for_and_then_made_here(make_voices: Make) -> None:
    go = threading.Event()
    paused = make_voices(encoder=FakeEncoder(during=lambda: go.wait(WAIT)), defaults=())
    other = make_voices(defaults=(), extraction_timeout=8.0)
    paused.upload()
    caller = threading.Thread(target=lambda: together(1, lambda _: paused.resolve()))
    caller.start()
    until(lambda: paused.encoder.extractions == 1)
    began = time.monotonic()
    assert other.resolve().result["status"] == "miss"
    assert time.monotonic() - began >= 3.9, "it was not waited for"
    assert other.stats()["store"]["claims_refused"] > 1
    go.set()
    caller.join(WAIT)
    assert paused.resolve().artifacts == other.resolve().artifacts


def test_a_lock_that_a_store_which_is_away_did_not_get_back_is_not_kept(
    proxied: tuple[Proxy, Voices, Voices], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection may outlive the time for which the store is away."""
    proxy, far, near = proxied
    store = store_of(far)
    monkeypatch.setattr(store.looking, "_conninfo", make_conninfo(store.looking._conninfo, connect_timeout=2))
    inside, go = threading.Event(), threading.Event()
    far.encoder.during = lambda: (inside.set(), go.wait(WAIT))
    near.upload("Ada")
    with ThreadPoolExecutor(1) as pool:
        speech = pool.submit(far.resolve)
        assert inside.wait(WAIT)
        proxy.swallow = True
        monkeypatch.setattr(store, "timeout", 1.0)
        until(lambda: not far.stats()["store"]["reachable"])
        go.set()
        assert speech.result(WAIT).result["status"] == "miss"
    proxy.swallow = False
    until(lambda: far.stats()["store"]["reachable"])
    assert near.resolve().result["status"] == "miss"
    assert near.stats()["store"]["claims_refused"] == 0, "it waited for a server that is not at work"


def test_a_database_that_is_paused_or_dies_loses_nothing(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_postgres() as server:
        dsn = server.create_database("voices")
        voices = Voices(tmp_path, dsn=dsn, stale_seconds=0.0)
        try:
            made = voices.upload()["generation"]
            server.signal_all(signal.SIGSTOP)
            began = time.monotonic()
            with monkeypatch.context() as patch, pytest.raises(Overloaded, match="cannot be reached"):
                patch.setattr(store_of(voices), "timeout", 1.0)
                voices.resolve()
            assert 0.9 < time.monotonic() - began < TIMEOUT / 2
            server.signal_all(signal.SIGCONT)
            until(lambda: voices.stats()["store"]["reachable"])
            assert voices.resolve().result["status"] == "hit"
            server.kill()
            with pytest.raises(Overloaded):
                voices.resolve()
            server.start()
            until(lambda: voices.stats()["store"]["reachable"])
            assert voices.resolve().result["generation"] == made
            assert voices.upload("Bob")["generation"] > made
        finally:
            voices.cache.close()


def test_a_store_without_tables_or_with_an_open_line_is_refused(postgres: PostgresServer, tmp_path: Any) -> None:
    with pytest.raises(Exception, match="run voice-clone-server voice-store migrate first"):
        Voices(tmp_path, dsn=postgres.dsn("postgres"))
    with pytest.raises(Overloaded):
        Voices(tmp_path, dsn=postgres.dsn("absent"))
    for wrong in (
        "host=127.0.0.1",
        "postgresql://u:secret@db.example/x",
        "postgresql://u:secret@db.example/x?sslmode=require",
    ):
        with pytest.raises(InvalidArgument) as caught:
            checked_address(wrong)
        assert "secret" not in str(caught.value)
    checked_address("postgresql://u@db.example/x?sslmode=verify-full")
    checked_address("postgresql://u@db.example/x", tls=False)


def test_without_psycopg_the_error_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an extra of ours: who installs by name would get a stranger's package from the public registry."""
    monkeypatch.setitem(sys.modules, "voice_clone.speakers.postgres.sessions", None)
    settings = KnownVoiceSettings(voice_store="postgresql://u@localhost/x")
    with pytest.raises(Unsupported, match=r"pip install 'psycopg\[binary\]'$"):
        open_known_voices(settings)


def test_talker_and_code2wav_read_the_voices_of_the_database(make_voices: Make) -> None:
    voices = make_voices()
    for number in range(3):
        voices.upload(f"v{number}", number, reference_text="Hello.")
    found = list(KnownInDatabase(checked_address(voices.dsn or "")).latest(ArtifactId("qwen3_tts", "icl")))
    assert [record.name for record, _ in found] == ["v2", "v1", "v0"]
    assert [set(tensors) for _, tensors in found] == [{"codec_codes", "speaker_embedding"}] * 3
