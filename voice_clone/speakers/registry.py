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

from voice_clone.errors import Overloaded, SpeakerExists, SpeakerNotFound
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
        self._creating: set[str] = set()
        self._changes: dict[str, tuple[threading.Lock, int]] = {}  # by key: a lock, and the number of its users
        self._records = {record.key: record for record in store.restore()}

    def find(self, name: str) -> SpeakerRecord:
        """The speaker of that name.

        Raises:
            InvalidArgument: it is not a valid name.
            SpeakerNotFound: there is no such speaker.
        """
        parsed = parse_name(name)
        record = self._records.get(parsed.key)
        if record is None:
            raise SpeakerNotFound(f"no voice is registered under the name {parsed.text!r}")
        return record

    def speaks(self, record: SpeakerRecord) -> bool:
        """Whether there is a speaker of that name, with artifacts."""
        older = self._records.get(record.key)
        return older is not None and bool(older.artifacts)

    def records(self) -> list[SpeakerRecord]:
        """All speakers, by name."""
        return [record for _, record in sorted(self._records.copy().items())]

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

    def check_free(self, *names: str, immutable: bool = False) -> None:
        """An early refusal before the work begins; `add` decides. With `immutable`, every name must be free.

        Raises:
            SpeakerExists, Overloaded: as `add`.
        """
        parsed = [parse_name(name) for name in names]
        for text, key in parsed:
            if (immutable or self._immutable) and key in self._records:
                raise SpeakerExists(f"a voice is registered under the name {text!r} already; delete it first")
        held = self._records.keys() | self._creating
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
    ) -> SpeakerRecord:
        """Register a speaker as a new generation; it replaces an older one of that name. Returns: its record.

        Args:
            immutable: refuse to replace an older one, whatever the server's policy is.

        Raises:
            SpeakerExists: the name is taken and must not be replaced.
            Overloaded: the limit of speakers is reached, or the disk is full.
        """
        [record] = self._add([(draft, file_tensors(audio, artifacts))], immutable)
        return record

    def add_all(self, drafts: Sequence[Draft], immutable: bool = False) -> list[SpeakerRecord]:
        """Register several speakers of different names as `add` does: all of them, or none."""
        return self._add([(each.record, file_tensors(each.audio, each.artifacts)) for each in drafts], immutable)

    def _add(self, drafts: Sequence[tuple[SpeakerRecord, Tensors]], immutable: bool) -> list[SpeakerRecord]:
        if not drafts:
            return []
        keys = sorted(draft.key for draft, _ in drafts)  # in one order, so that two imports never wait for each other
        with contextlib.ExitStack() as held:
            for key in keys:
                held.enter_context(self._changing(key))
            with self._lock:
                self.check_free(*(draft.name for draft, _ in drafts), immutable=immutable)
                self._creating.update(keys)
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
                    self._creating.difference_update(keys)
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

    def remove(self, name: str) -> SpeakerRecord:
        """Delete a speaker, on disk and in memory.

        Raises:
            SpeakerNotFound: there is no speaker of that name.
        """
        with self._changing(parse_name(name).key):
            record = self.find(name)
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
