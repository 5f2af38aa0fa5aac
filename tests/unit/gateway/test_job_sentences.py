"""Speech that jobs keep: the plan's addresses, and what the store drops and never drops."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from voice_clone_client import pcm16
from voice_clone_gateway.jobs.database import Database
from voice_clone_gateway.jobs.plan import JobPlan, plan_of, sentences_of
from voice_clone_gateway.jobs.postgres import PostgresDatabase
from voice_clone_gateway.jobs.schemas import JobRequest
from voice_clone_gateway.jobs.sentences import Missing, SentenceStore
from voice_clone_gateway.jobs.sqlite import SQLiteDatabase
from voice_clone_gateway.jobs.tables import LEASE, Job, JobTables, Lost, Result

from tests.support.doubles.clock import Clock

RATE = 24000
SOUND = np.sin(np.arange(RATE, dtype=np.float32) / 20) * np.float32(0.7)


def planned(text: str, **more: Any) -> JobPlan:
    return plan_of(JobRequest.model_validate({"input": text, "voice": "Ada", **more}), (), 300)


def addresses(plan: JobPlan, owner: str = "o", seed: int = 0, **asked: Any) -> list[str]:
    ways = [{"voice": "v", **asked} for _ in plan.ways]
    return [each.addresses[0] for each in sentences_of(plan, owner, ways, seed, 3)]


WORDS = st.sampled_from(["The sea was calm.", "Seven birds sat there.", "He closed the door.", "It rained all day."])
PARAGRAPHS = st.lists(st.lists(WORDS, min_size=1, max_size=4).map(" ".join), min_size=1, max_size=6)


@given(PARAGRAPHS, PARAGRAPHS, PARAGRAPHS)
def test_an_edit_leaves_the_addresses_of_what_stays(before: list[str], old: list[str], new: list[str]) -> None:
    """Also where sentences are equal: exactly as many are missing as the new text has more of them than the old one."""
    was, now = (planned("\n\n".join([*before, *each])) for each in (old, new))
    kept, wanted = addresses(was), addresses(now)
    assert len(set(kept)) == len(kept), "no two sentences of a text share an address"
    counts = [[sentence for part in plan.parts for sentence in part.sentences] for plan in (was, now)]
    more = sum(max(0, counts[1].count(each) - counts[0].count(each)) for each in set(counts[1]))
    assert len(set(wanted) - set(kept)) == more


def test_what_an_address_is_made_of() -> None:
    plan = planned("One is here. Two is there.")
    found = [
        addresses(plan),
        addresses(plan, owner="other"),
        addresses(plan, seed=1),
        addresses(plan, synthesizer="s2"),
        addresses(planned("One is here. Two is there!")),
        addresses(planned("One is here. Two is there.", language="en")),
    ]
    assert len({address for each in found for address in each}) == 6 * 2 - 1, "only the first sentence is the same"
    assert addresses(JobPlan.loads(plan.dumps())) == found[0]
    same = [addresses(planned("One is here. Two is there.", speed=speed)) for speed in (1.0, 2.0)]
    assert same[0] == same[1] == found[0]


def test_a_plan_is_what_was_written() -> None:
    turns = [{"text": "One.\n\nTwo is longer.", "pause_ms": 250}, {"voice": "Bob", "text": "Three.", "speed": 2.0}]
    plan = plan_of(JobRequest.model_validate({"segments": turns, "voice": "Ada"}), (), 300)
    assert JobPlan.loads(plan.dumps()) == plan
    assert [way["voice"] for way in plan.ways] == ["Ada", "Bob"]
    assert [(part.way, part.pause, part.rate) for part in plan.parts] == [(0, 0.0, 1.0), (1, 0.25, 2.0)]
    assert plan.count == 3 and plan.characters == len("One.Two is longer.Three.")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.thorough)])
def database(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Database]:
    """One on this machine, and one of a fleet."""
    database: SQLiteDatabase | PostgresDatabase
    if request.param == "sqlite":
        database = SQLiteDatabase(tmp_path)
    else:
        new: Callable[[], str] = request.getfixturevalue("new_database")
        database = PostgresDatabase(new(), tls=True)
    database.now = clock  # type: ignore[method-assign]
    database.open()
    yield database
    database.close()


def a_job(id: str = "job", owner: str = "o") -> Job:
    return Job(id, owner, "f", None, "wav", "[]", None, None, "r", 1, 1, 0.0)


def made(tables: JobTables, id: str = "job", owner: str = "o") -> Job:
    """A new job, of which there is a plan in the voice v."""
    return tables.create(a_job(id, owner), "{}", ("{}", {"v"}), None, "")


def put(store: SentenceStore, name: str, job: Job, voice: str = "v") -> str:
    address = name * 64
    store.put(job, address, {"voice_digest": voice, "finish_reason": "stop", "prompt_ms": 3.0}, SOUND, RATE)
    return address


def test_what_is_kept_is_what_is_sent(database: Database) -> None:
    """Streams are made of the same 16 bits."""
    store = SentenceStore(database, 1e9, 1000.0)
    address = put(store, "a", made(JobTables(database, 10, "g")))
    samples, rate = store.read(address)
    assert rate == RATE and pcm16(samples) == pcm16(SOUND)
    [known] = store.known([address, "b" * 64]).values()
    assert known.seconds == 1.0 and known.info == {"voice_digest": "v", "finish_reason": "stop"}


def test_what_was_kept_is_not_kept_again(database: Database) -> None:
    """As after a lost connection, which leaves open whether it was."""
    store, tables = SentenceStore(database, 1e9, 1000.0), JobTables(database, 10, "g")
    job = made(tables)
    for _ in range(2):
        put(store, "a", job)
    found = tables.get("job")
    assert found is not None and found.made == 1


def test_damage_is_found_and_strays_are_removed(tmp_path: Path) -> None:
    database = SQLiteDatabase(tmp_path)
    database.open()
    store, job = SentenceStore(database, 1e9, 1e9), made(JobTables(database, 10, "g"))
    damaged, gone, whole = (put(store, name, job) for name in "abc")
    folder = tmp_path / "sentences"
    file = folder / "aa" / damaged
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    (folder / "bb" / gone).unlink()
    stray = folder / "cc" / f"{whole}.part"
    stray.write_bytes(b"of a gateway that was killed")
    for address in (damaged, gone):
        with pytest.raises(Missing):
            store.read(address)
    assert [*store.known([damaged, gone, whole])] == [whole] and not file.exists()
    database.close()
    database.open()
    assert not stray.exists() and (folder / "cc" / whole).exists()
    database.close()


def test_the_least_used_goes_first_and_what_a_job_needs_stays(database: Database, clock: Clock) -> None:
    tables, store = JobTables(database, 10, "g"), SentenceStore(database, 1e9, 1000.0)
    job = made(tables)
    needed, old, used, new = (put(store, name, job) for name in "abcd")
    each = store.size // 4
    tables.need("job", [needed])
    clock.now += 10
    store.known([used])
    clock.now += 10
    store.known([new])
    store = SentenceStore(database, 3 * each, 1000.0)
    assert not store.evict()
    assert set(store.known([needed, old, used, new])) == {needed, used, new}
    SentenceStore(database, 0, 1000.0).evict()
    assert set(store.known([needed, used, new])) == {needed}, "a live job needs it"
    tables.end(job, Result("cancelled"), {"id": "evt"}, 1.0)
    clock.now += 999
    store.evict()
    assert set(store.known([needed])) == {needed}, "that was its last use"
    clock.now += 1001
    store.evict()
    assert store.known([needed]) == {} and store.size == 0
    with pytest.raises(Missing):
        store.read(needed)


def test_what_is_dropped_at_once_is_bounded(database: Database) -> None:
    """It is found soon, also beside jobs that need much."""
    tables, store = JobTables(database, 10, "g"), SentenceStore(database, 0, 1e9)
    made(tables)
    needed = [f"{number:064d}" for number in range(100_000)]
    for begin in range(0, len(needed), 10_000):
        tables.need("job", needed[begin : begin + 10_000])
    rows = [(f"{number:063d}x", number) for number in range(1200)] + [(address, 0) for address in needed[:3]]
    with database.transaction():
        database.run_all("INSERT INTO sentence VALUES (?, 'o', 'v', '{}', 1.0, 9, 'd', ?)", rows)
    assert [store.evict() for _ in range(3)] == [True, True, False] and store.size == 3 * 9


def test_a_voice_is_erased(database: Database, tmp_path: Path) -> None:
    store, tables = SentenceStore(database, 1e9, 1e9), JobTables(database, 10, "g")
    job = made(tables)
    gone, stays = put(store, "a", job, "leaving"), put(store, "b", job)
    assert tables.voices() == {"leaving", "v"}
    store.forget_voice("leaving")
    assert set(store.known([gone, stays])) == {stays} and tables.voices() == {"v"}
    assert not any(gone.encode() in path.read_bytes() for path in tmp_path.glob("jobs.sqlite3"))


def test_pages_of_jobs(database: Database) -> None:
    tables = JobTables(database, 100, "g")
    for number, owner in zip(range(9), itertools.cycle("ab"), strict=False):
        made(tables, f"job_{number}", owner)
    assert [job.id for job in tables.page("a", 3, None, True)] == ["job_8", "job_6", "job_4"]
    assert [job.id for job in tables.page("a", 3, "job_4", True)] == ["job_2", "job_0"]
    assert [job.id for job in tables.page("a", 3, "job_4", False)] == ["job_6", "job_8"]
    assert [job.id for job in tables.page("b", 9, "job_4", True)] == [], "that is not a job of this owner"
    first = tables.claim("a")
    assert first is not None and first.id == "job_0"
    other = tables.get("job_4")
    assert other is not None
    tables.start(other)
    begun = tables.claim("a")
    assert begun is not None and begun.id == "job_4", "what was begun is made first"


def test_a_gateway_that_was_paused_changes_nothing(database: Database, clock: Clock) -> None:
    """Another one has taken its job over meanwhile: what the first one still does does not count."""
    paused, other = (JobTables(database, 10, name) for name in ("paused", "other"))
    store = SentenceStore(database, 1e9, 1e9)
    made(paused)
    first = paused.claim("o")
    assert first is not None
    paused.beat()
    assert paused.note([(first, {"done": 0})]) == []
    assert other.waiting() == [] and other.claim("o") is None, "its gateway works"
    clock.now += LEASE + 1
    assert other.waiting() == ["o"]
    second = other.claim("o")
    assert second is not None and second.attempt == first.attempt + 1
    other.beat()
    assert paused.claim("o") is None
    for late in (
        lambda: put(store, "a", first),
        lambda: paused.start(first),
        lambda: paused.plan(first, "{}", (), {"sentences": 9}),
    ):
        with pytest.raises(Lost):
            late()
    assert paused.note([(first, {"done": 1})]) == ["job"]
    assert paused.end(first, Result("completed"), {"id": "e"}, 1.0, by_maker=True) is None
    assert store.known(["a" * 64]) == {}
    put(store, "a", second)
    assert other.end(second, Result("completed"), {"id": "e"}, 1.0, by_maker=True) is not None
    assert other.note([(second, {"done": 1})]) == ["job"], "it has ended"
    found = other.get("job")
    assert found is not None and (found.made, found.done, found.status) == (1, 0, "completed")


def test_a_gateway_that_leaves_frees_its_jobs(database: Database) -> None:
    leaving, other = (JobTables(database, 10, name) for name in ("leaving", "other"))
    made(leaving)
    leaving.claim("o")
    leaving.beat()
    assert other.waiting() == []
    leaving.leave()
    assert other.waiting() == ["o"] and other.claim("o") is not None


def test_one_job_of_an_owner_is_made_at_a_time(database: Database) -> None:
    here, there = (JobTables(database, 10, name) for name in ("here", "there"))
    for id in ("job_1", "job_2"):
        made(here, id)
    made(here, "job_3", "p")
    for tables in (here, there):
        tables.beat()
    claimed = here.claim("o")
    assert claimed is not None and there.claim("o") is None and there.waiting() == ["p"]
    here.end(claimed, Result("failed"), {"id": "e"}, 1.0, by_maker=True)
    then = there.claim("o")
    assert then is not None and then.id == "job_2"


def test_the_file_of_a_job(database: Database, tmp_path: Path) -> None:
    made(JobTables(database, 10, "g"))
    data = bytes(range(256)) * 12_000  # several pieces
    for content in (data + b"an earlier attempt" * 100_000, data):
        database.part_of("job").write_bytes(content)
        begin: int | None = 0
        while begin is not None:
            begin = database.keep_result("job", begin)
    file = database.open_result("job")
    assert file is not None and file.size == len(data)
    place = (1 << 20) - 3
    assert file.read(place, 3) == data[place : place + 3] and file.read(1 << 20, 9) == data[1 << 20 :][:9]
    file.close()
    database.remove_result("job")
    assert database.open_result("job") is None


def test_the_file_of_the_tables_shrinks(tmp_path: Path) -> None:
    database, size = SQLiteDatabase(tmp_path), list[int]()
    database.open()
    tables = JobTables(database, 10, "g")
    job = made(tables)
    tables.need("job", (f"{number:064d}" for number in range(50_000)))
    for _ in range(2):
        database.shrink()
        size.append((tmp_path / "jobs.sqlite3").stat().st_size)
        tables.end(job, Result("cancelled"), {"id": "e"}, 1.0)
    database.close()
    assert size[0] > 5e6 and size[1] < size[0] / 10
