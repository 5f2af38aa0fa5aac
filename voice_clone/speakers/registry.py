"""The registered speakers: records in memory and files on disk, kept in step.

Readers take no lock: records are immutable and the map changes by single assignments. Changes of one speaker are
serialised; changes of different speakers are not. A change is written to disk first; if that fails, nothing changes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from voice_clone.errors import Overloaded, QuotaExceeded, SpeakerExists, SpeakerNotFound
from voice_clone.speakers.disk.store import NotDurable, SpeakerStore
from voice_clone.speakers.disk.voice_file import Tensors, file_tensors
from voice_clone.speakers.draft import Draft
from voice_clone.speakers.flight import Superseded
from voice_clone.speakers.name import parse_name
from voice_clone.speakers.record import ArtifactId, ArtifactInfo, SpeakerRecord

log = logging.getLogger(__name__)


class Registry:
    """All registered speakers.

    Args:
        store: used by this registry alone.
        max_speakers: their limit; speakers already on disk are kept even beyond it.
        immutable: whether an upload may not replace a speaker.
        on_gone: called with each record that was deleted or replaced, before the operation returns.
    """

    def __init__(
        self, store: SpeakerStore, max_speakers: int, immutable: bool, on_gone: Callable[[SpeakerRecord], None]
    ) -> None:
        self._store = store
        self._max_speakers = max_speakers
        self._immutable = immutable
        self._on_gone = on_gone
        self._lock = threading.Lock()  # held for moments only, never during input or output
        self._creating: dict[str, str | None] = {}  # by key: the owner
        self._changes: dict[str, tuple[threading.Lock, int]] = {}  # by key: a lock, and the number of its users
        self._records = {record.key: record for record in store.restore()}

    def find(self, name: str, owner: str | None = None, *, shared: bool = False) -> SpeakerRecord:
        """The speaker of that name.

        Args:
            owner: for whom the caller acts; the speakers of others are not there for it.
            shared: except those that are shared.

        Raises:
            InvalidArgument: it is not a valid name.
            SpeakerNotFound: there is no such speaker.
        """
        parsed = parse_name(name)
        record = self._records.get(parsed.key)
        if record is None or not record.serves(owner, shared=shared):
            raise SpeakerNotFound(f"no voice is registered under the name {parsed.text!r}")
        return record

    def speaks(self, record: SpeakerRecord) -> bool:
        """Whether there is a speaker of that name, with artifacts."""
        older = self._records.get(record.key)
        return older is not None and bool(older.artifacts)

    def records(self, owner: str | None = None, *, shared: bool = False) -> list[SpeakerRecord]:
        """All speakers, by name; those that `find` finds for this owner."""
        found = sorted(self._records.copy().items())
        return [record for _, record in found if record.serves(owner, shared=shared)]

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

    def check_free(
        self, *names: str, immutable: bool = False, owner: str | None = None, max_owned: int | None = None
    ) -> None:
        """An early refusal before the work begins; `add` decides. With `immutable`, every name must be free.

        Raises:
            SpeakerExists, QuotaExceeded, Overloaded: as `add`.
        """
        parsed = [parse_name(name) for name in names]
        for text, key in parsed:
            there = self._records.get(key)
            if there is not None and not there.serves(owner, shared=False):
                raise SpeakerExists(f"the name {text!r} is taken; choose another one")
            if (immutable or self._immutable) and key in self._records:
                raise SpeakerExists(f"a voice is registered under the name {text!r} already; delete it first")
        if owner is not None and max_owned is not None:
            held = {key for key, record in self._records.copy().items() if record.owner == owner}
            held |= {key for key, creator in self._creating.copy().items() if creator == owner}
            if len(held | {key for _, key in parsed}) > max(max_owned, len(held)):
                raise QuotaExceeded(
                    f"{len(held)} voices are registered, and at most {max_owned} are allowed; delete one"
                )
        held = self._records.keys() | self._creating.keys()
        new = {key for _, key in parsed} - self._records.keys()
        if new and len(held | new) > self._max_speakers:
            raise Overloaded(
                f"{len(held)} voices are registered; this server keeps at most {self._max_speakers}, delete some first"
            )

    def add(
        self,
        draft: SpeakerRecord,
        audio: bytes | None,
        artifacts: Mapping[ArtifactId, Tensors],
        immutable: bool = False,
        owner: str | None = None,
        max_owned: int | None = None,
    ) -> SpeakerRecord:
        """Register a speaker as a new generation; it replaces an older one of that name. Returns: its record.

        Args:
            immutable: refuse to replace an older one, whatever the server's policy is.
            owner: for whom the caller acts: it replaces no speaker of others.
            max_owned: how many speakers this owner may have.

        Raises:
            SpeakerExists: the name is taken and must not be replaced.
            QuotaExceeded: the owner has `max_owned` speakers.
            Overloaded: the limit of speakers is reached, or the disk is full.
        """
        [record] = self._add([(draft, file_tensors(audio, artifacts))], immutable, owner, max_owned)
        return record

    def add_all(
        self,
        drafts: Sequence[Draft],
        immutable: bool = False,
        owner: str | None = None,
        max_owned: int | None = None,
    ) -> list[SpeakerRecord]:
        """Register several speakers of different names as `add` does: all of them, or none."""
        packed = [(each.record, file_tensors(each.audio, each.artifacts)) for each in drafts]
        return self._add(packed, immutable, owner, max_owned)

    def _add(
        self,
        drafts: Sequence[tuple[SpeakerRecord, Tensors]],
        immutable: bool,
        owner: str | None,
        max_owned: int | None,
    ) -> list[SpeakerRecord]:
        if not drafts:
            return []
        keys = sorted(draft.key for draft, _ in drafts)  # in one order, so that two imports never wait for each other
        with contextlib.ExitStack() as held:
            for key in keys:
                held.enter_context(self._changing(key))
            with self._lock:
                self.check_free(
                    *(draft.name for draft, _ in drafts), immutable=immutable, owner=owner, max_owned=max_owned
                )
                self._creating.update({draft.key: draft.owner for draft, _ in drafts})
            try:
                new = [(draft.of_generation(self._store.next_generation()), tensors) for draft, tensors in drafts]
                write = partial(self._store.write, *new[0]) if len(new) == 1 else partial(self._store.write_all, new)
                with _even_if_not_durable(write):
                    older = [self._records.get(key) for key in keys]
                    for record, _ in new:
                        self._records[record.key] = record
                    for record in filter(None, older):
                        self._on_gone(record)
            finally:
                with self._lock:
                    for key in keys:
                        self._creating.pop(key, None)
        return [record for record, _ in new]

    def publish(
        self,
        record: SpeakerRecord,
        artifact: ArtifactId,
        tensors: Mapping[str, NDArray[Any]],
        info: ArtifactInfo,
        generation: int | None = None,
        guard: Callable[[], bool] = lambda: True,
    ) -> SpeakerRecord:
        """Store artifacts of a speaker; with `generation`, as a new generation of it.

        Raises:
            Superseded: the speaker was deleted or replaced, or `guard` answers that they are no longer wanted.
        """
        with self._changing(record.key):
            now = self.current(record)
            if not guard():
                raise Superseded
            newer = now.with_artifacts(artifact, info)
            if generation is not None:
                newer = newer.of_generation(generation)
            with _even_if_not_durable(lambda: self._store.amend(now, newer, artifact, tensors)):
                self._records[newer.key] = newer
        return newer

    @contextlib.contextmanager
    def holding(self, record: SpeakerRecord) -> Iterator[SpeakerRecord]:
        """The newest record of this generation; it stays the newest during the body.

        Raises:
            Superseded: the speaker was deleted or replaced.
        """
        with self._changing(record.key):
            yield self.current(record)

    def remove(self, name: str, owner: str | None = None) -> SpeakerRecord:
        """Delete a speaker, on disk and in memory. `owner` and errors: as `find`."""
        with self._changing(parse_name(name).key):
            record = self.find(name, owner)
            with _even_if_not_durable(lambda: self._store.remove(record)):
                del self._records[record.key]
                self._on_gone(record)
        return record

    def set_aside(self, record: SpeakerRecord, reason: str) -> None:
        """Drop a speaker whose file is damaged; the file goes to quarantine. Its flights fail on their own.

        Raises:
            Superseded: the speaker was deleted or replaced.
        """
        with self._changing(record.key):
            self.current(record)
            with _even_if_not_durable(lambda: self._store.quarantine(record, reason)):
                del self._records[record.key]

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


@contextlib.contextmanager
def _even_if_not_durable(write: Callable[[], None]) -> Iterator[None]:
    """Run the body once `write` has changed the disk, even if `write` then raises NotDurable."""
    try:
        write()
    except NotDurable:
        yield
        raise
    yield
