"""Speakers on disk: one file for each, written whole or not at all, in a directory that one process owns.

<directory>/lock          locked while a process owns the directory; names that process
<directory>/generation    a number not below any generation in use
<directory>/import        while an import is being finished: the names of its files (see `files`)
<directory>/voices/       <SHA-256 of the speaker's key>.safetensors: names never become paths
<directory>/quarantine/   files that could not be read, kept until a voice of that name is deleted
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from voice_clone.errors import Internal, Overloaded, VoiceCloneError
from voice_clone.speakers import voice_file
from voice_clone.speakers.disk.directory import LOCK, Generations, Quarantine, own, owned
from voice_clone.speakers.disk.files import (
    LIST,
    TEMPORARY,
    BatchWriter,
    Files,
    disk_errors,
    make_folder,
    make_path,
    replace_file,
)
from voice_clone.speakers.record import ArtifactId, SpeakerRecord
from voice_clone.speakers.store import MAX_KNOWN_VOICES, Change, Listener, Made, NotDurable
from voice_clone.speakers.tensor_file import Damaged
from voice_clone.speakers.voice_file import Tensors

if TYPE_CHECKING:  # what only reads makes none
    from voice_clone.speakers.draft import Draft

log = logging.getLogger(__name__)

VOICES = "voices"  # the folder of the speakers' files
_FILE = re.compile(r"[0-9a-f]{64}\.safetensors")
GENERATION = "generation"


class FileStore:
    """The `Store` of one server. Methods that touch the disk raise as said there.

    Args:
        directory: created if absent. Only its user may read it; if it existed, only its user may read the speakers.
        files: the operations on the file system.
        wait: seconds to wait for another process to release the directory.

    Raises:
        Overloaded: another process owns the directory; the message names it.
    """

    writes_whole = True

    def __init__(self, directory: Path, files: Files | None = None, wait: float = 0.0) -> None:
        self._files = files or Files()
        self._directory = directory
        self._voices = directory / VOICES
        self._quarantine = directory / "quarantine"
        with disk_errors("opened"):
            make_path(self._files, directory)
            self._lock_handle = own(directory / LOCK, wait)
            try:
                for path in (self._voices, self._quarantine):
                    make_folder(self._files, path)
            except BaseException:
                os.close(self._lock_handle)
                raise
        self._quarantined = Quarantine(self._quarantine, self._files)
        self._batch = BatchWriter(directory, self._voices, self._files)
        self._batch_lock = threading.Lock()
        self._unread: set[Path] = set()  # files of which `restore` made no speaker; some may lie where they were
        self._users = threading.Condition()
        self._active, self._closed = 0, False
        self._failures = 0
        self._generations = Generations(directory / GENERATION, self._files)
        self._listener: Listener = lambda changes: None

    def restore(self, listener: Listener) -> list[SpeakerRecord]:
        """As `Store.restore`; reads headers only.

        What is not a speaker's file goes to quarantine, whatever it is; files that an earlier owner did not finish are
        removed, and an import that it did not finish is finished.
        """
        self._listener = listener
        with disk_errors("read"):
            for entry in list(os.scandir(self._voices)):
                if not entry.is_file(follow_symlinks=False):
                    self._quarantined.try_to_take(Path(entry.path), "it is no file")
            kept_files = [self._directory / name for name in (GENERATION, LIST)]
            for path in (*kept_files, *map(self._temporary, (GENERATION, LIST))):
                if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
                    self._quarantined.try_to_take(path, "it is no file")
            self._batch.restore()
            if self._batch.unfinished:
                self._batch.finish()
            for leftover in (*self._voices.glob(TEMPORARY + "*"), *map(self._temporary, (GENERATION, LIST))):
                with contextlib.suppress(OSError):
                    self._files.remove(leftover)
            found = [self._restore_one(Path(entry.path)) for entry in list(os.scandir(self._voices))]
            records = [record for record in found if record is not None]
            self._generations.start(records)
            # Callers will see what is found: it must be durable, also if an earlier owner died before it synced.
            for folder in (self._quarantine, self._voices, self._directory):
                with contextlib.suppress(OSError):  # the next change reports it
                    self._files.sync_directory(folder)
        return records

    def refresh(self) -> None:
        """Does nothing: no other process changes the directory."""

    def write(self, drafts: Sequence[Draft], approve: Callable[[], None]) -> list[SpeakerRecord]:
        approve()
        new = [
            (each.record.of_generation(self._next_generation()), voice_file.file_tensors(each.clips, each.artifacts))
            for each in drafts
        ]
        if len(new) == 1:
            self._write(*new[0])
        else:
            self._write_all(new)
        return [record for record, _ in new]

    def amend(
        self, made: Mapping[ArtifactId, Made], approve: Callable[[], SpeakerRecord], renew: bool = False
    ) -> SpeakerRecord:
        """As `Store.amend`. The file keeps the artifacts of one encoder."""
        newer = older = approve()
        for artifact, (_, info) in made.items():
            newer = newer.with_artifacts(artifact, info)
        if renew:
            newer = newer.renewed(self._next_generation(), made)
        replaced = tuple(voice_file.tensor_name(artifact, "") for artifact in made)
        try:
            header, kept = self._read(older, lambda name: not name.startswith(replaced))
        except Damaged as error:
            log.error("the file of %r is damaged: %s", older.name, error)
            raise Internal(
                f"the stored voice {older.name!r} is damaged; upload it again, with the option `replace`"
            ) from None
        known = {name: header.digests[name] for name in kept}
        tensors = voice_file.file_tensors({}, {artifact: each.tensors for artifact, each in made.items()})
        self._write(newer, {**kept, **tensors}, known, renew)
        return newer

    def remove(self, approve: Callable[[], SpeakerRecord]) -> SpeakerRecord:
        record = approve()
        with self._changing(), disk_errors("changed"):
            with contextlib.suppress(FileNotFoundError):
                self._files.remove(self._path(record.key))
            with self._announced(Change(record.key, None)):
                self._confirm(self._voices)
        return record

    def set_aside(self, approve: Callable[[], SpeakerRecord], reason: str) -> None:
        """Move the speaker's file to quarantine."""
        record = approve()
        with self._changing(), disk_errors("changed"):
            self._quarantined.take(self._path(record.key), reason)
            with self._announced(Change(record.key, None, by_flight=True)):
                self._confirm(self._quarantine)
                self._confirm(self._voices)

    def purge(self, key: str) -> None:
        """As `Store.purge`: what quarantine has, and the file that `restore` could not read."""
        path = self._file(key)
        with self._changing(), disk_errors("changed"):
            if path in self._unread:
                with contextlib.suppress(FileNotFoundError):
                    self._files.remove(path)
                self._confirm(self._voices)
                self._unread.discard(path)
            self._quarantined.erase(path)

    def read_audio(self, record: SpeakerRecord, style: str = "") -> bytes | None:
        wanted = voice_file.audio_name(style)
        header, tensors = self._read(record, lambda name: name == wanted)
        voice_file.verify(header, tensors)
        return tensors[wanted].tobytes() if tensors else None

    def read_artifacts(
        self, record: SpeakerRecord, artifact: ArtifactId, fingerprint: str
    ) -> dict[str, NDArray[Any]] | None:
        if record.stored(artifact, fingerprint) is None:
            return None
        with disk_errors("read"):
            header, tensors = voice_file.read_artifacts(self._path(record.key), artifact)
        _check_generation(header, record)
        return tensors

    def read_all(self, record: SpeakerRecord) -> tuple[voice_file.Header, dict[str, NDArray[Any]]]:
        return self._read(record, lambda name: True)

    @contextlib.contextmanager
    def claim(self, record: SpeakerRecord, artifact: ArtifactId, fingerprint: str) -> Iterator[bool]:
        """Always granted: there is no other server."""
        yield True

    def counters(self) -> dict[str, Any]:
        return {"kind": "files", "quarantined": self._quarantined.taken, "write_failures": self._failures}

    def close(self) -> None:
        with self._users:
            if self._closed:
                return
        with contextlib.suppress(VoiceCloneError), self._changing(), disk_errors("written"):
            self._generations.give_back()
        with self._users:
            self._closed = True
            self._users.wait_for(lambda: self._active == 0)
        os.close(self._lock_handle)

    def _next_generation(self) -> int:
        with self._changing(), disk_errors("written"):
            return self._generations.next()

    def _write(
        self, record: SpeakerRecord, tensors: Tensors, known: Mapping[str, str] | None = None, by_flight: bool = False
    ) -> None:
        """Write the speaker's file; it replaces an older one. `known`: see `voice_file.pack`."""
        with self._changing(), disk_errors("written"):
            replace_file(self._files, self._path(record.key), voice_file.pack(record, tensors, known))
            with self._announced(Change(record.key, record, by_flight)):
                self._confirm(self._voices)

    def _write_all(self, speakers: Sequence[tuple[SpeakerRecord, Tensors]]) -> None:
        """Write the files of several speakers: all or none, whatever happens."""
        with self._changing(), disk_errors("written"), self._batch_lock:
            contents = [(self._path(record.key), partial(voice_file.pack, record, each)) for record, each in speakers]
            self._batch.replace(contents)
            with self._announced(*(Change(record.key, record) for record, _ in speakers)):
                try:
                    self._confirm(self._directory)
                finally:
                    with contextlib.suppress(OSError):  # the next change, or the next start, finishes it
                        self._batch.finish()

    @contextlib.contextmanager
    def _announced(self, *changes: Change) -> Iterator[None]:
        """Confirm changes in the body, then report them, even if they are not durable."""
        try:
            yield
        finally:
            self._unread.difference_update(self._file(change.key) for change in changes)
            self._listener(changes)

    def _file(self, key: str) -> Path:
        return self._voices / f"{hashlib.sha256(key.encode()).hexdigest()}.safetensors"

    def _path(self, key: str) -> Path:
        """Where the bytes of a speaker's file are now."""
        return self._batch.path_of(self._file(key))

    def _temporary(self, name: str) -> Path:
        return self._directory / f"{TEMPORARY}{name}"

    def _read(
        self, record: SpeakerRecord, wanted: Callable[[str], bool]
    ) -> tuple[voice_file.Header, dict[str, NDArray[Any]]]:
        with disk_errors("read"):
            header, tensors = voice_file.read(self._path(record.key), wanted)
        _check_generation(header, record)
        return header, tensors

    def _restore_one(self, path: Path) -> SpeakerRecord | None:
        try:
            if not _FILE.fullmatch(path.name):
                raise Damaged("not a speaker's file")
            record = voice_file.read_header(path).record
            if self._path(record.key) != path:
                raise Damaged("the file belongs to a speaker of another name")
            return record
        except OSError as error:  # the file may be intact: leave it
            log.warning("%s cannot be read and is skipped: %s", path.name, error.strerror)
        except Damaged as error:
            self._quarantined.try_to_take(path, str(error))
        self._unread.add(path)
        return None

    def _confirm(self, directory: Path) -> None:
        try:
            self._files.sync_directory(directory)
        except OSError as error:
            log.error("the voice store was changed, but the disk did not confirm it: %s", error)
            raise NotDurable("the disk did not confirm the change; it may not survive a crash") from None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Guard a change: none may happen after `close`, when another process may own the directory."""
        with self._users:
            if self._closed:
                raise Overloaded("the voice store is closed; the server is stopping")
            self._active += 1
        try:
            with self._users, disk_errors("changed"):
                self._lock_handle = owned(self._directory / LOCK, self._lock_handle)
            if self._batch.unfinished:
                with self._batch_lock, disk_errors("changed"):
                    if self._batch.unfinished:
                        self._batch.finish()
            yield
        except VoiceCloneError:
            self._failures += 1
            raise
        finally:
            with self._users:
                self._active -= 1
                self._users.notify_all()


def _check_generation(header: voice_file.Header, record: SpeakerRecord) -> None:
    if header.record.generation != record.generation:
        raise Damaged("the file belongs to another generation")


class KnownInDirectory:
    """The `KnownVoices` of a directory. The owner replaces files as a whole and may do so meanwhile."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def latest(self, artifact: ArtifactId) -> Iterator[tuple[SpeakerRecord, dict[str, NDArray[Any]]]]:
        for path in _latest_first(self._directory / VOICES)[:MAX_KNOWN_VOICES]:
            try:
                header, tensors = voice_file.read_artifacts(path, artifact)
            except (OSError, Damaged) as error:
                log.debug("skipped a voice on disk: %s", error)
                continue
            if tensors:
                yield header.record, tensors

    def origins(self) -> set[str]:
        found = set()
        for path in _latest_first(self._directory / VOICES):
            with contextlib.suppress(OSError, Damaged):
                found.add(voice_file.read_header(path).record.origin.voice)
        return found


def _latest_first(folder: Path) -> list[Path]:
    found: list[tuple[int, str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # there may be none yet
        for entry in entries:
            with contextlib.suppress(OSError):  # it has just gone
                if _FILE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.path))
    return [Path(path) for _, path in sorted(found, reverse=True)]
