"""Three tritonservers on one PostgreSQL while servers, database and network fail: no operation is wrong.

Memory may serve for no time without the database (`voice_stale_seconds` 0), so an answer is the truth or an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from tritonclient.utils import InferenceServerException
from typing_extensions import LiteralString

from tests.support.doubles.fakes import clip
from tests.support.doubles.proxy import Proxy
from tests.support.official.postgres import PostgresServer, running_postgres
from tests.support.servers.cache_calls import Cache
from tests.support.servers.family_models import make_repository
from tests.support.waiting import until
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.thorough

WRITERS, READERS = 3, 5
NAMES_A_WRITER = 4
SEED = 23
PATIENCE = 900.0
IN_DOUBT = (
    "overloaded",
    "deadline_exceeded",
    "UNAVAILABLE",
    "CANCELLED",
    "is not healthy",
    "Failed to process the requests",
)  # the last two: its process died
END_SESSIONS: LiteralString = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'voices'"


@dataclass
class Known:
    """What callers may expect of a voice. One writer changes it, so its changes follow each other."""

    generation: int = 0  # of the latest acknowledged change
    alive: bool = False
    sure: bool = True  # no change is under way, and none was left in doubt
    changes: int = 0  # that were begun
    lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> tuple[int, bool, bool, int]:
        with self.lock:
            return self.generation, self.alive, self.sure, self.changes


class Watched:
    """Callers that change and read voices at all servers, and count what they see.

    Attributes:
        counts: checks of each invariant, and operations of each outcome.
        wrong: what broke one.
        met: set when every kind of failure was met.
    """

    def __init__(self, servers: list[TritonServer], operations: int) -> None:
        self._servers = servers
        self._operations = operations
        self.met = threading.Event()
        self.known = {f"voice {number}": Known() for number in range(WRITERS * NAMES_A_WRITER)}
        self.counts = Counter[str]()
        self.wrong: list[str] = []
        self.bytes_of: dict[tuple[str, int], str] = {}
        self.latest = 0  # generation that was acknowledged
        self._lock = threading.Lock()
        self._done = 0

    def over(self) -> bool:
        """Whether all operations were made, and every failure was met."""
        return (self._done >= self._operations and self.met.is_set()) or bool(self.wrong)

    def write(self, number: int) -> None:
        """One after the other: uploads, deletions, rebuilds."""
        draw = random.Random(SEED + number)
        names = list(self.known)[number * NAMES_A_WRITER : (number + 1) * NAMES_A_WRITER]
        while not self.over():
            name = draw.choice(names)
            known, server = self.known[name], draw.choice(self._servers)
            delete = known.alive and draw.random() < 0.25
            with known.lock:
                known.changes += 1
                sure, known.sure = known.sure, False
            with self._lock:
                latest = self.latest
            fields = {} if delete else {"audio": clip(draw.randrange(200)), "options": {"replace": True}}
            outcome, result = self._ask(server, "delete" if delete else "upload", name=name, **fields)
            with known.lock:
                if outcome == "ok":
                    generation = int(result["generation"])
                    if not delete:
                        self._check("generations grow", generation > max(known.generation, latest), (name, generation))
                        with self._lock:
                            self.latest = max(self.latest, generation)
                    self._check("a deletion removes what there was", not delete or generation >= known.generation, name)
                    known.generation, known.alive, known.sure = generation, not delete, True
                elif outcome == "speaker_not_found" and delete:
                    self._check("a voice is there until it is deleted", not sure, (name, "was not there"))
                    known.alive, known.sure = False, True
                elif outcome == "refused":  # nothing was changed
                    known.sure = sure

    def read(self, number: int) -> None:
        """Resolve voices anywhere."""
        draw = random.Random(SEED + 100 + number)
        while not self.over():
            name, server = draw.choice(list(self.known)), draw.choice(self._servers)
            before = self.known[name].now()
            outcome, result = self._ask(server, "resolve", name=name)
            self._judge(name, before, outcome, result)

    def _judge(self, name: str, before: tuple[int, bool, bool, int], outcome: str, result: dict[str, object]) -> None:
        generation, alive, sure, changes = before
        still = sure and self.known[name].now()[3] == changes
        if outcome == "ok":
            found = int(str(result["generation"]))
            self._check("never older than what was acknowledged", found >= generation, (name, found, before))
            if still:
                self._check("a deleted voice is nowhere", alive, (name, found, before))
                self._check("an acknowledged voice is everywhere", found == generation, (name, found, before))
            with self._lock:
                there = self.bytes_of.setdefault((name, found), str(result["bytes"]))
            self._check("one generation has the same bytes everywhere", there == result["bytes"], (name, found))
        elif outcome == "speaker_not_found" and still:
            self._check("an acknowledged voice is not lost", not alive, (name, before))

    def _ask(self, server: TritonServer, operation: str, **fields: object) -> tuple[str, dict[str, object]]:
        """How it ended: ok, speaker_not_found, refused, or doubt; and the answer."""
        outcome, result = "doubt", {}
        cache = Cache(server)
        try:
            answer, artifacts = cache(operation, **fields)
            result = {**answer, "bytes": hashlib.sha256(artifacts).hexdigest()}
            outcome = "ok"
        except InferenceServerException as error:
            text = str(error)
            if "speaker_not_found" in text:
                outcome = "speaker_not_found"
            elif "nothing was changed" in text or "failed to connect" in text:
                outcome = "refused"
            elif not any(word in text for word in IN_DOUBT):
                with self._lock:
                    self.wrong.append(f"{operation}: {text}")
        finally:
            cache.close()
        with self._lock:
            self._done += 1
            self.counts[f"{operation} {outcome}"] += 1
        if outcome in ("refused", "doubt"):
            time.sleep(0.02)
        return outcome, result

    def _check(self, invariant: str, holds: bool, about: object) -> None:
        with self._lock:
            self.counts[f"checked: {invariant}"] += 1
            if not holds:
                self.wrong.append(f"{invariant}: {about}")


class Failures:
    """What goes wrong, one thing after the other, until the callers are done."""

    def __init__(self, database: PostgresServer, servers: list[TritonServer], proxies: list[Proxy]) -> None:
        self._database, self._servers, self._proxies = database, servers, proxies
        self.made = Counter[str]()

    def run(self, over: Callable[[], bool], met: threading.Event) -> None:
        """Each kind once, in any order, then any."""
        draw = random.Random(SEED + 1000)
        kinds = [self._kill_server, self._pause_server, self._kill_database, self._pause_database]
        kinds += [self._cut, self._delay, self._swallow]
        kinds += [self._end_sessions, self._refuse_logins, self._take_no_changes, self._hold_the_tables]
        first = draw.sample(kinds, len(kinds))
        while not over():
            kind = first.pop() if first else draw.choice(kinds)
            self.made[kind.__name__.strip("_").replace("_", " ")] += 1
            kind(draw.randrange(len(self._servers)))
            time.sleep(draw.uniform(0.5, 2.0))
            if not first:
                met.set()

    def _kill_server(self, number: int) -> None:
        self._servers[number].kill()
        self._servers[number].start(PATIENCE)

    def _pause_server(self, number: int) -> None:
        server = self._servers[number]
        assert server.process is not None
        os.killpg(server.process.pid, signal.SIGSTOP)
        time.sleep(2.0)
        os.killpg(server.process.pid, signal.SIGCONT)
        time.sleep(1.0)
        if server.process.poll() is not None or not server.ready():  # Triton may take a paused model for a dead one
            self.made["server aborted after a pause"] += 1
            server.kill()
            server.start(PATIENCE)

    def _kill_database(self, number: int) -> None:
        self._database.kill()
        time.sleep(0.5)
        self._database.start()

    def _pause_database(self, number: int) -> None:
        self._database.signal_all(signal.SIGSTOP)
        time.sleep(2.0)
        self._database.signal_all(signal.SIGCONT)

    def _end_sessions(self, number: int) -> None:
        for _ in range(20):
            self._administer(END_SESSIONS)
            time.sleep(0.05)

    def _refuse_logins(self, number: int) -> None:
        """As after a change of the password."""
        self._administer("ALTER DATABASE voices ALLOW_CONNECTIONS false", END_SESSIONS)
        time.sleep(2.0)
        self._administer("ALTER DATABASE voices ALLOW_CONNECTIONS true")

    def _take_no_changes(self, number: int) -> None:
        """As after a primary was degraded to a standby."""
        self._administer("ALTER DATABASE voices SET default_transaction_read_only = on", END_SESSIONS)
        time.sleep(2.0)
        self._administer("ALTER DATABASE voices RESET default_transaction_read_only", END_SESSIONS)

    def _hold_the_tables(self, number: int) -> None:
        with psycopg.connect(self._database.dsn("voices")) as connection:
            connection.execute("LOCK TABLE voice_clone.voice")
            time.sleep(3.0)

    def _administer(self, *statements: LiteralString) -> None:
        with psycopg.connect(self._database.dsn("postgres"), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def _cut(self, number: int) -> None:
        self._proxies[number].cut()

    def _delay(self, number: int) -> None:
        self._proxies[number].delay = 0.05
        time.sleep(2.0)
        self._proxies[number].delay = 0.0

    def _swallow(self, number: int) -> None:
        self._proxies[number].swallow = True
        time.sleep(3.0)
        self._proxies[number].swallow = False
        self._proxies[number].cut()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[PostgresServer, list[TritonServer], list[Proxy]]]:
    models = make_repository(tmp_path / "models", ("qwen3_tts",))
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(running_postgres())
        dsn = database.create_database("voices")
        proxies = [stack.enter_context(Proxy(database.port)) for _ in range(3)]
        servers = []
        for number, proxy in enumerate(proxies):
            environment = {
                "VOICE_CLONE_VOICE_STORE": dsn.replace(str(database.port), str(proxy.port)),
                "VOICE_CLONE_VOICE_STALE_SECONDS": "0",
                "VOICE_CLONE_VOICE_STORE_TIMEOUT": "1",
            }
            log = tmp_path / f"log-{number}"
            servers.append(TritonServer(None, tmp_path / "unused", models=models, log=log, environment=environment))
            stack.callback(servers[-1].stop)
            stack.callback(servers[-1].kill)
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda server: server.start(PATIENCE), servers))
        yield database, servers, proxies


@pytest.mark.parametrize("operations", [1000, pytest.param(10_000, marks=pytest.mark.long)])
def test_no_operation_is_wrong_whatever_fails(
    fleet: tuple[PostgresServer, list[TritonServer], list[Proxy]], tmp_path: Path, operations: int
) -> None:
    database, servers, proxies = fleet
    watched, failures = Watched(servers, operations), Failures(database, servers, proxies)
    with ThreadPoolExecutor(WRITERS + READERS + 1) as pool:
        work = [pool.submit(watched.write, number) for number in range(WRITERS)]
        work += [pool.submit(watched.read, number) for number in range(READERS)]
        work.append(pool.submit(failures.run, watched.over, watched.met))
        for each in work:
            each.result()
    sys.stdout.write(f"\nfailures: {dict(failures.made)}\n")
    for name, count in sorted(watched.counts.items()):
        sys.stdout.write(f"{count:7} {name}\n")
    assert watched.wrong == []
    assert all(watched.counts[f"{kind} ok"] > operations // 100 for kind in ("upload", "delete", "resolve"))

    def whole(server: TritonServer) -> bool:
        cache = Cache(server)
        try:
            return bool(cache("stats")[0]["store"]["reachable"])
        finally:
            cache.close()

    for server in servers:
        until(lambda server=server: whole(server))
    lists = []
    for server in servers:
        cache = Cache(server)
        lists.append({each["name"]: each["generation"] for each in cache("list")[0]["speakers"]})
        for name in lists[-1]:
            _, artifacts = cache("resolve", name=name)
            digest = hashlib.sha256(artifacts).hexdigest()
            assert watched.bytes_of.setdefault((name, lists[-1][name]), digest) == digest
        cache.close()
    assert lists[0] == lists[1] == lists[2]
    for name, known in watched.known.items():
        if known.sure:
            assert lists[0].get(name) == (known.generation if known.alive else None), name
    for number in range(3):
        log = (tmp_path / f"log-{number}").read_text(errors="replace")
        assert "cannot be read" not in log and "another history" not in log
