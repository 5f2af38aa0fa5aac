"""The registered speakers: records in memory, kept in step with those in the store.

It also has what is kept as speakers are: see `SpeakerRecord`. All of them share one set of names, and each kind has the
limits of speakers for itself.

Readers take no lock: records are immutable and the map changes by single assignments. Changes of one speaker are
serialised; changes of different speakers are not. The store makes a change first, then reports it; if it fails,
nothing changes.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import (
    InvalidArgument,
    SpeakerExists,
    SpeakerNotFound,
    VoiceCloneError,
)
from voice_clone.speakers.draft import Draft
from voice_clone.speakers.flight import Superseded
from voice_clone.speakers.limits import check_bytes, check_names, check_number
from voice_clone.speakers.name import SpeakerName, parse_name
from voice_clone.speakers.operations import ANYTHING, Allowance
from voice_clone.speakers.record import ArtifactId, Kind, SpeakerRecord
from voice_clone.speakers.store import Change, Made, NotDurable, Store
from voice_clone.speakers.tensor_file import Damaged

log = logging.getLogger(__name__)

MOST_COMPARED = 500  # speakers whose names are compared with one that no speaker has


class Registry:
    """All registered speakers.

    Args:
        store: used by this registry alone.
        max_speakers: their limit; speakers already stored are kept even beyond it.
        on_gone: called with each record that was deleted or replaced, here or by another server: before an operation
            returns, and before one that begins later finds another record.
    """

    def __init__(self, store: Store, max_speakers: int, on_gone: Callable[[SpeakerRecord], None]) -> None:
        self._store = store
        self._max_speakers = max_speakers
        self._on_gone = on_gone
        self._lock = threading.Lock()  # held for moments only, never during input or output
        self._creating: dict[str, SpeakerRecord] = {}  # by key
        self._changes: dict[str, tuple[threading.Lock, int]] = {}  # by key: a lock, and the number of its users
        self._records: dict[str, SpeakerRecord] = {}
        self._unconfirmed: set[str] = set()  # keys of speakers that a crash of the machine may undo
        self._restored = threading.Event()
        try:
            self._records.update({record.key: record for record in store.restore(self._apply)})
        finally:
            self._restored.set()

    def refresh(self) -> None:
        """Learn what other servers changed before this call. Raises: as `Store.refresh`."""
        self._store.refresh()

    def find(
        self, name: SpeakerName, owner: str | None = None, *, shared: bool = False, kind: Kind = "voice"
    ) -> SpeakerRecord:
        """The speaker of that name, or for which that name stands.

        Args:
            owner: for whom the caller acts; the speakers of others are not there for it.
            shared: except those that are shared.
            kind: what is looked for in place of a speaker.

        Raises:
            SpeakerNotFound: there is no such speaker.
        """
        record = self._records.get(name.key)
        alias = self.alias(name) if kind == "voice" else None
        if alias is not None:
            record = self._meant(alias)
        if record is not None and record.kind == kind and record.serves(owner, shared=shared):
            return record
        if kind != "voice":
            raise SpeakerNotFound(f"there is no {kind} {name.text!r}")
        if alias is not None and alias.serves(owner, shared=True):
            raise SpeakerNotFound(
                f"the name {alias.name!r} is an alias of {alias.voice!r}, and no voice that you may use is registered "
                "under that name"
            )
        near = self._near(name, owner, shared)
        meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise SpeakerNotFound(f"no voice is registered under the name {name.text!r}{meant}")

    def alias(self, name: SpeakerName) -> SpeakerRecord | None:
        """The alias of that name, if it is one."""
        record = self._records.get(name.key)
        return record if record is not None and record.kind == "alias" else None

    def _meant(self, alias: SpeakerRecord) -> SpeakerRecord | None:
        """The speaker for which an alias stands: only one of the same owner, as others may take a name that is free."""
        record = self._records.get(parse_name(alias.voice or "").key)
        return record if record is not None and record.kind == "voice" and record.owner == alias.owner else None

    def _near(self, name: SpeakerName, owner: str | None, shared: bool) -> list[str]:
        """The names that resemble this one, of speakers that this owner may use; of many it compares some alone."""
        some = islice(self._records.copy().items(), MOST_COMPARED)
        names = {
            key: record.name for key, record in some if record.kind == "voice" and record.serves(owner, shared=shared)
        }
        return [names[key] for key in get_close_matches(name.key, names)]

    def get(self, name: str, owner: str | None = None) -> SpeakerRecord | None:
        """The speaker of that name, if there is one that this owner may use."""
        try:
            return self.find(parse_name(name), owner, shared=True)
        except (InvalidArgument, SpeakerNotFound):  # no speaker has a name that is not valid
            return None

    def is_free(self, key: str) -> bool:
        """Whether no speaker has a name of that key."""
        return key not in self._records

    def has_artifacts(self, record: SpeakerRecord) -> bool:
        """Whether there is a speaker of that name, with artifacts."""
        older = self._records.get(record.key)
        return older is not None and any(clip.artifacts for clip in older.clips.values())

    def records(self, owner: str | None = None) -> list[SpeakerRecord]:
        """All speakers of this owner, by name; None: of all."""
        found = sorted(self._records.copy().items())
        return [record for _, record in found if record.kind == "voice" and record.serves(owner, shared=False)]

    def page(self, limit: int | None, after: str, owner: str | None, kind: Kind = "voice") -> list[SpeakerRecord]:
        """The speakers that this owner may use, by name: the first `limit` behind the key `after`, or all."""
        held = self._records.copy().items()
        found = [
            each for each in held if each[0] > after and each[1].kind == kind and each[1].serves(owner, shared=True)
        ]
        return [record for _, record in heapq.nsmallest(len(found) if limit is None else limit, found)]

    def count(self, kind: Kind = "voice") -> int:
        """The number of speakers."""
        return sum(record.kind == kind for record in self._records.copy().values())

    def current(self, record: SpeakerRecord) -> SpeakerRecord:
        """The newest record of this generation.

        Raises:
            Superseded: the speaker was deleted or replaced.
        """
        now = self._records.get(record.key)
        if now is None or now.generation != record.generation:
            raise Superseded
        return now

    def latest(self, record: SpeakerRecord) -> SpeakerRecord:
        """The newest record of this generation; the record itself if the speaker was deleted or replaced."""
        try:
            return self.current(record)
        except Superseded:
            return record

    def with_clip(self, record: SpeakerRecord, style: str) -> SpeakerRecord:
        """The newest record of the speaker that has this clip; the record itself if the clip is not there any more."""
        now = self._records.get(record.key)
        there = None if now is None else now.clips.get(style)
        return record if now is None or there is None or there.digest != record.clip(style).digest else now

    def check_free(
        self, *names: SpeakerName, replace: bool, allowance: Allowance = ANYTHING, kind: Kind = "voice"
    ) -> None:
        """Check that speakers of these names may be registered; without `replace`, every name must be free.

        A name is shown as it is stored where the owner may know that, otherwise as it is given.

        Raises:
            SpeakerExists, NameReserved, QuotaExceeded, Overloaded: as `add`.
        """
        check_names(self._records, names, replace, allowance, kind)
        check_number(self._records, self._creating, names, self._max_speakers, allowance, kind)

    @contextlib.contextmanager
    def _promised(self, drafts: Sequence[Draft], approve: Callable[[], None]) -> Iterator[None]:
        """Count these drafts among what there is during the body, if they are approved."""
        with self._lock:
            approve()
            self._creating.update({draft.record.key: draft.record for draft in drafts})
        try:
            yield
        finally:
            with self._lock:
                for draft in drafts:
                    self._creating.pop(draft.record.key, None)

    def add(
        self,
        draft: Draft,
        replace: bool = False,
        allowance: Allowance = ANYTHING,
    ) -> SpeakerRecord:
        """Register a speaker as a new generation. Returns: its record.

        Without `replace`, a speaker that is registered just as the draft says stays as it is, and its record is the
        answer: a caller that has lost the answer asks again.

        Args:
            replace: an older speaker of that name goes.
            allowance: what the caller may register: it replaces no speaker of others.

        Raises:
            SpeakerExists: the name is taken, by the speaker of another owner or without `replace`.
            NameReserved: the owner may not register a speaker of this name.
            QuotaExceeded: the owner has as many speakers as it may have.
            Overloaded: the limit of speakers is reached, or the disk is full.
        """
        [record] = self.add_all([draft], replace, allowance)
        return record

    def add_all(
        self,
        drafts: Sequence[Draft],
        replace: bool = False,
        allowance: Allowance = ANYTHING,
    ) -> list[SpeakerRecord]:
        """Register several speakers of different names as `add` does: all of them, or none."""
        by_key = {draft.record.key: draft for draft in drafts}
        with contextlib.ExitStack() as held:
            for key in sorted(by_key):  # in one order: two imports never wait for each other
                held.enter_context(self._changing(key))
            found = {} if replace else self._registered(drafts)
            while True:
                again = {key for key in found if key in self._unconfirmed}
                new = [draft for key, draft in by_key.items() if key not in found or key in again]
                try:
                    written = self._write(new, replace, again, allowance)
                    break
                except SpeakerExists:  # perhaps another server of the fleet has just registered the same
                    before, found = found, {} if replace else self._registered(drafts)
                    if found.keys() == before.keys():
                        raise
        found |= {record.key: record for record in written}
        return [found[key] for key in by_key]

    def _registered(self, drafts: Sequence[Draft]) -> dict[str, SpeakerRecord]:
        """By key, the speakers that are registered just as these drafts say."""
        there = [(self._records.get(draft.record.key), draft) for draft in drafts]
        return {record.key: record for record, draft in there if record is not None and self._holds(record, draft)}

    def _holds(self, record: SpeakerRecord, draft: Draft) -> bool:
        """Whether what is stored of a speaker is what the draft has: the bytes of its clips, and where there is no clip
        the artifacts.
        """
        if not record.says_the_same(draft.record):
            return False
        try:
            return all(self._store.read_audio(record, style) == clip for style, clip in draft.clips.items()) and all(
                _are_equal(self._store.read_artifacts(record, each, info.fingerprint), draft.artifacts[each])
                for style, clip in draft.record.clips.items()
                if style not in draft.clips
                for each, info in clip.artifacts.items()
            )
        except (Damaged, Superseded):
            return False

    def _write(
        self,
        drafts: Sequence[Draft],
        replace: bool,
        again: Collection[str],
        allowance: Allowance,
    ) -> list[SpeakerRecord]:
        """Write speakers, while nothing else on this server changes them; those of the keys `again` once more."""
        if not drafts:
            return []
        names = [parse_name(draft.record.name) for draft in drafts if draft.record.key not in again]
        kind = drafts[0].record.kind  # of all of them

        def approve() -> None:
            self.check_free(*names, replace=replace, allowance=allowance, kind=kind)
            check_bytes(self._records, self._creating, drafts, allowance)

        keys = [draft.record.key for draft in drafts]
        replaced = self._records.keys() & keys
        try:
            with self._promised(drafts, approve):
                written = self._store.write(drafts, approve)
            self._unconfirmed.difference_update(keys)
            for record in written:
                log.info("registered the %s %r, generation %d", kind, record.name, record.generation)
            for key in replaced:
                with contextlib.suppress(VoiceCloneError):  # the next delete tries again
                    self._store.purge(key)
            return written
        except NotDurable:
            self._unconfirmed.update(keys)
            raise

    def publish(
        self,
        record: SpeakerRecord,
        made: Mapping[ArtifactId, Made],
        renew: bool = False,
        guard: Callable[[], bool] = lambda: True,
    ) -> SpeakerRecord:
        """Store artifacts of a speaker that is held; with `renew`, as a new generation of it. Returns: its record.

        Raises:
            Superseded: the speaker was deleted or replaced, or `guard` answers that they are no longer wanted.
        """

        def approve() -> SpeakerRecord:
            now = self.current(record)
            if not guard():
                raise Superseded
            return now

        return self._store.amend(made, approve, renew)

    def note(self, record: SpeakerRecord, change: Callable[[SpeakerRecord], SpeakerRecord]) -> SpeakerRecord:
        """Write what `change` makes of the record of a speaker that is held. Returns: it.

        Raises:
            Superseded: the speaker was deleted or replaced.
            Exception: as `change`.
        """
        return self._store.amend({}, lambda: change(self.current(record)))

    @contextlib.contextmanager
    def holding(self, record: SpeakerRecord) -> Iterator[SpeakerRecord]:
        """The newest record of this generation; this server does not change it during the body.

        Raises:
            Superseded: the speaker was deleted or replaced.
        """
        with self._changing(record.key):
            yield self.current(record)

    def revise(
        self, name: SpeakerName, allowance: Allowance, kind: Kind, change: Callable[[SpeakerRecord], Draft | None]
    ) -> SpeakerRecord:
        """Write what `change` makes of a record, or again what the disk did not confirm. Returns: the newest one.

        Raises:
            SpeakerNotFound, InvalidArgument: as `remove`.
            QuotaExceeded: the owner would have more bytes than it may.
            Superseded: another server changed or deleted it meanwhile.
            Exception: as `change`.
        """
        with self._changing(name.key):
            record = self._own(name, allowance.owner, kind)
            try:
                draft = change(record)
                if draft is not None:
                    drafts = [draft]

                    def approve() -> None:
                        self.current(record)
                        check_bytes(self._records, self._creating, drafts, allowance)

                    with self._promised(drafts, approve):
                        [written] = self._store.write(drafts, approve)
                elif name.key in self._unconfirmed:
                    written = self._store.amend({}, lambda: self.current(record))
                else:
                    return record
            except NotDurable:
                self._unconfirmed.add(name.key)
                raise
            self._unconfirmed.discard(name.key)
            return written

    def remove(self, name: SpeakerName, owner: str | None = None, kind: Kind = "voice") -> SpeakerRecord:
        """Delete a speaker, in the store and in memory. `owner`: as of `find`. Returns: its last record.

        What was set aside under its name goes, too; for the operator even if there is no such speaker.

        Raises:
            SpeakerNotFound: as `find`.
            InvalidArgument: the name is an alias.
        """

        def approve() -> SpeakerRecord:
            return self._own(name, owner, kind)

        with self._changing(name.key):
            try:
                record = self._store.remove(approve)
            except SpeakerNotFound:
                if owner is None:
                    self._store.purge(name.key)
                raise
            self._store.purge(name.key)
            return record

    def _own(self, name: SpeakerName, owner: str | None, kind: Kind) -> SpeakerRecord:
        """What the owner may change under that name. Raises: as `remove`."""
        record = self.find(name, owner, kind=kind)
        if record.key != name.key:
            raise InvalidArgument(
                f"the name {name.text!r} is an alias of {record.name!r}; name that voice, or remove the alias"
            )
        return record

    def set_aside(self, record: SpeakerRecord, reason: str) -> None:
        """Drop a speaker of which nothing can be read. What it has in flight fails on its own.

        Raises:
            Superseded: the speaker was deleted or replaced.
        """
        with self._changing(record.key):
            self._store.set_aside(lambda: self.current(record), reason)

    def _apply(self, changes: Sequence[Change]) -> None:
        """Follow the store, which reports the changes of one speaker in their order."""
        self._restored.wait()  # another server may be quicker than this one with what `restore` answered
        replaced = []
        for key, record, by_flight in changes:
            older = self._records.get(key)
            if record is not None:
                self._records[key] = record
            elif older is not None:
                del self._records[key]
            if older is not None and not by_flight and (record is None or _upload(record) != _upload(older)):
                replaced.append(older)
        for older in replaced:
            self._on_gone(older)

    @contextlib.contextmanager
    def _changing(self, key: str) -> Iterator[None]:
        """Serialise the changes of a speaker. The lock is dropped with its last user."""
        with self._lock:
            lock, users = self._changes.get(key, (threading.Lock(), 0))
            self._changes[key] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, users = self._changes[key]
                if users == 1:
                    del self._changes[key]
                else:
                    self._changes[key] = (lock, users - 1)


def _upload(record: SpeakerRecord) -> tuple[int, float]:
    """Which upload a record is of: a database that was restored from a backup may have given a generation twice."""
    return record.generation, record.created_at


def _are_equal(stored: Mapping[str, NDArray[Any]] | None, given: Mapping[str, NDArray[Any]]) -> bool:
    return (
        stored is not None
        and stored.keys() == given.keys()
        and all(np.array_equal(stored[name], tensor) for name, tensor in given.items())
    )
