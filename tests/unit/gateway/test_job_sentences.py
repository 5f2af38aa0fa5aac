"""Speech that jobs keep: the plan's addresses, and what the store drops and never drops."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from voice_clone_client import pcm16
from voice_clone_gateway.jobs.plan import JobPlan, plan_of, sentences_of
from voice_clone_gateway.jobs.schemas import JobRequest
from voice_clone_gateway.jobs.sentences import Missing, SentenceStore
from voice_clone_gateway.jobs.tables import Job, JobTables, Result, opened

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
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(opened(tmp_path / "jobs.sqlite3")) as connection:
        yield connection


def store_in(tmp_path: Path, connection: sqlite3.Connection, clock: Clock, most: float = 1e9) -> SentenceStore:
    return SentenceStore(connection, tmp_path / "sentences", most, 1000.0, clock)


def put(store: SentenceStore, name: str, voice: str = "v") -> str:
    address = name * 64
    store.put("job", "o", address, {"voice_digest": voice, "finish_reason": "stop", "prompt_ms": 3.0}, SOUND, RATE)
    return address


def test_what_is_kept_is_what_is_sent(tmp_path: Path, connection: sqlite3.Connection) -> None:
    """Streams are made of the same 16 bits."""
    store = store_in(tmp_path, connection, Clock())
    address = put(store, "a")
    samples, rate = store.read(address)
    assert rate == RATE and pcm16(samples) == pcm16(SOUND)
    [known] = store.known([address, "b" * 64]).values()
    assert known.seconds == 1.0 and known.info == {"voice_digest": "v", "finish_reason": "stop"}


def test_damage_is_found_and_strays_are_removed(tmp_path: Path, connection: sqlite3.Connection) -> None:
    store = store_in(tmp_path, connection, Clock())
    damaged, gone, whole = (put(store, name) for name in "abc")
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
    store_in(tmp_path, connection, Clock())
    assert not stray.exists() and (folder / "cc" / whole).exists()


def test_the_least_used_goes_first_and_what_a_job_needs_stays(tmp_path: Path, connection: sqlite3.Connection) -> None:
    clock = Clock()
    tables = JobTables(connection, 10, clock)
    size = store_in(tmp_path, connection, clock)
    needed, old, used, new = (put(size, name) for name in "abcd")
    each = size.size // 4
    job = Job("job", "o", "f", None, "wav", "[]", None, None, "r", 1, 1, 0.0)
    tables.create(job, ("{}", "{}"), {"v"}, None, "")
    tables.need("job", [needed])
    clock.now += 10
    size.known([used])
    clock.now += 10
    size.known([new])
    store = store_in(tmp_path, connection, clock, most=3 * each)
    store.evict()
    assert set(store.known([needed, old, used, new])) == {needed, used, new}
    store_in(tmp_path, connection, clock, most=0).evict()
    assert set(store.known([needed, used, new])) == {needed}, "a live job needs it"
    tables.end("job", Result("cancelled"), {"id": "evt"}, 1.0)
    clock.now += 999
    store.evict()
    assert set(store.known([needed])) == {needed}, "that was its last use"
    clock.now += 1001
    store.evict()
    assert store.known([needed]) == {} and store.size == 0
    assert not [*(tmp_path / "sentences").glob("??/*")]


def test_a_voice_is_erased(tmp_path: Path, connection: sqlite3.Connection) -> None:
    store, tables = store_in(tmp_path, connection, Clock()), JobTables(connection, 10)
    gone, stays = put(store, "a", "leaving"), put(store, "b")
    assert tables.voices() == {"leaving", "v"}
    store.forget_voice("leaving")
    assert set(store.known([gone, stays])) == {stays} and tables.voices() == {"v"}
    data = (tmp_path / "jobs.sqlite3").read_bytes()
    assert gone.encode() not in data


def test_pages_of_jobs(connection: sqlite3.Connection) -> None:
    tables = JobTables(connection, 100)
    for number, owner in zip(range(9), itertools.cycle("ab"), strict=False):
        job = Job(f"job_{number}", owner, "f", None, "wav", "[]", None, None, "r", 1, 1, float(number))
        tables.create(job, ("{}", "{}"), (), None, "")
    assert [job.id for job in tables.page("a", 3, None, True)] == ["job_8", "job_6", "job_4"]
    assert [job.id for job in tables.page("a", 3, "job_4", True)] == ["job_2", "job_0"]
    assert [job.id for job in tables.page("a", 3, "job_4", False)] == ["job_6", "job_8"]
    assert [job.id for job in tables.page("b", 9, "job_4", True)] == [], "that is not a job of this owner"
    first = tables.next_of("a")
    assert first is not None and first.id == "job_0"
    tables.start("job_4")
    begun = tables.next_of("a")
    assert begun is not None and begun.id == "job_4", "what was begun is made first"
