"""In every order in which changes by three owners and the operator can happen, nobody takes a reserved name.

The registries are the real ones, of one server or of two with one database. Their store is a model, which stops before
a change is approved and before it is written; so do the registries where a name is locked.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from voice_clone.errors import VoiceCloneError
from voice_clone.speakers.draft import Draft
from voice_clone.speakers.name import ReservedNames, parse_name
from voice_clone.speakers.operations import Allowance
from voice_clone.speakers.record import SpeakerRecord
from voice_clone.speakers.registry import Registry
from voice_clone.speakers.store import Change, Listener

RESERVED = ReservedNames(["alloy"])
Act = Callable[[Registry], object]


class Run:
    """Threads of which one goes on at a time, from stop to stop, in the order of `choices`.

    After these it takes the first one that can go on, and notes how many others could.
    """

    def __init__(self, choices: Sequence[int]) -> None:
        self.choices = list(choices)
        self.others: list[int] = []
        self._free: dict[int, Callable[[], bool]] = {}
        self._turn = threading.Condition()
        self._now: int | None = None

    def stop(self, free: Callable[[], bool] = lambda: True) -> None:
        """Let the others go on; come back when it is this thread's turn, and no sooner than it is free to go on."""
        self._wait(int(threading.current_thread().name), free)

    def go(self, acts: Sequence[Callable[[], None]]) -> None:
        """Run them all to their ends."""
        threads = [
            threading.Thread(target=self._work, args=(number, act), name=str(number)) for number, act in enumerate(acts)
        ]
        with self._turn:
            for thread in threads:
                thread.start()
            assert self._turn.wait_for(lambda: len(self._free) == len(acts), 60)
        step = 0
        while self._free:
            ready = sorted(number for number, free in self._free.items() if free())
            assert ready, "all wait for each other"
            if step == len(self.choices):
                self.choices.append(0)
            self.others.append(len(ready) - 1)
            with self._turn:
                self._now = ready[self.choices[step]]
                del self._free[self._now]
                self._turn.notify_all()
                assert self._turn.wait_for(lambda: self._now is None, 60)
            step += 1
        for thread in threads:
            thread.join()

    def _work(self, number: int, act: Callable[[], None]) -> None:
        self._wait(number, lambda: True)
        act()
        with self._turn:
            self._now = None
            self._turn.notify_all()

    def _wait(self, number: int, free: Callable[[], bool]) -> None:
        with self._turn:
            self._free[number] = free
            if self._now == number:
                self._now = None
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._now == number)


@dataclass
class Base:
    """What all servers see. Each change is checked as it is made."""

    run: Run
    records: dict[str, SpeakerRecord] = field(default_factory=dict)
    stores: list[ModelStore] = field(default_factory=list)
    is_locked: bool = False
    made: list[str] = field(default_factory=list)
    """The names of the threads that have changed something."""

    def change(self, store: ModelStore, changes: Sequence[Change]) -> None:
        for key, record, _ in changes:
            before = self.records.pop(key, None)
            if record is not None:
                self.records[key] = record
                owner = before and before.owner
                assert record.owner is None or before is None or owner == record.owner, f"{key} is another's"
                assert record.owner is None or key != "alloy" or owner == record.owner, "a reserved name was taken"
        self.made.append(threading.current_thread().name)
        for each in self.stores:
            each.news += changes
        store.absorb()


class ModelStore:
    """The store of one server: of its own, or of a fleet, where a change keeps out those of all others."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self.news: list[Change] = []
        base.stores.append(self)

    def restore(self, listener: Listener) -> list[SpeakerRecord]:
        self._listener = listener
        return list(self._base.records.values())

    def absorb(self) -> None:
        changes, self.news = self.news, []
        self._listener(changes)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        base = self._base
        if len(base.stores) == 1:
            base.run.stop()
            yield
            return
        base.run.stop(lambda: not base.is_locked)
        base.is_locked = True
        try:
            self.absorb()
            yield
        finally:
            base.is_locked = False

    def write(self, drafts: Sequence[Draft], approve: Callable[[], None]) -> list[SpeakerRecord]:
        with self._changing():
            approve()
            self._base.run.stop()
            generation = len(self._base.made) + 2
            records = [replace(draft.record, generation=generation) for draft in drafts]
            self._base.change(self, [Change(record.key, record) for record in records])
            return records

    def remove(self, approve: Callable[[], SpeakerRecord]) -> SpeakerRecord:
        with self._changing():
            record = approve()
            self._base.run.stop()
            self._base.change(self, [Change(record.key, None)])
            return record

    def purge(self, key: str) -> None:
        pass


class Stepped(Registry):
    """A registry that stops where it waits for the lock of a name."""

    def __init__(self, store: Any, run: Run) -> None:
        super().__init__(store, 100, lambda record: None)
        self._run = run
        self._held: set[str] = set()

    @contextlib.contextmanager
    def _changing(self, key: str) -> Iterator[None]:
        if key in self._held:
            self._run.stop(lambda: key not in self._held)
        self._held.add(key)
        try:
            yield
        finally:
            self._held.discard(key)


def record(name: str, owner: str | None, generation: int = 0) -> SpeakerRecord:
    return SpeakerRecord(name, generation, float(generation), "direct", owner=owner)


def made(owner: str | None, *names: str, replace: bool = True) -> Act:
    """An upload of one voice, or an import of several."""
    drafts = [Draft(record(name, owner), {}, {}) for name in names]
    return lambda registry: registry.add_all(drafts, replace, Allowance(owner, None, RESERVED))


def deleted(owner: str | None, name: str = "alloy") -> Act:
    return lambda registry: registry.remove(parse_name(name), owner)


ALICE = (made("alice", "alloy"), deleted("alice"))
BOB = (made("bob", "alloy"), made("bob", "plain"), made("bob", "plain", "alloy"), made("bob", "alloy", replace=False))
OTHERS = (made(None, "alloy"), deleted(None), made("carol", "alloy", "plain"), deleted("alice"))


def orders(build: Callable[[Run], Sequence[Callable[[], None]]]) -> Iterator[Run]:
    """Run the acts in every order of their steps."""
    waiting: list[list[int]] = [[]]
    while waiting:
        begun = waiting.pop()
        run = Run(begun)
        run.go(build(run))
        yield run
        for step in range(len(begun), len(run.others)):
            waiting += [[*run.choices[:step], other] for other in range(1, run.others[step] + 1)]


@pytest.mark.parametrize("owner", [None, "alice", "nobody"])
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("acts", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_no_order_gives_a_reserved_name_away(servers: int, owner: str | None, acts: int) -> None:
    """At first the operator, alice or nobody has it."""
    count = 0
    for chosen in itertools.product(*(BOB, ALICE, OTHERS)[3 - acts :]):
        failures: list[BaseException] = []

        def build(run: Run, chosen: Sequence[Act] = chosen, failures: list[BaseException] = failures) -> Any:
            base = Base(run)
            if owner != "nobody":
                base.records["alloy"] = record("alloy", owner, 1)
            registries = [Stepped(ModelStore(base), run) for _ in range(servers)]

            def act(number: int) -> None:
                refused = False
                try:
                    chosen[number](registries[number % servers])
                except VoiceCloneError:
                    refused = True
                except BaseException as error:
                    failures.append(error)
                if (str(number) in base.made) is refused and not failures:
                    failures.append(AssertionError("refused, and yet changed; or the other way round"))

            return [lambda number=number: act(number) for number in range(len(chosen))]

        for run in orders(build):
            assert not failures, (run.choices, failures)
            count += 1
    assert count > 10
