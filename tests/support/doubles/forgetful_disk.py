"""A disk that forgets, when the power goes, what was not synced; data and names apart."""

from __future__ import annotations

import errno
import os
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path

from voice_clone.speakers.disk.files import Files


@dataclass(eq=False)
class _File:
    """Data of a file, whatever its names are."""

    data: bytes
    synced: bool = False


@dataclass(eq=False)
class _Folder:
    """Names of a folder: those that are durable, and the changes since, oldest first. None: the name goes."""

    durable: dict[str, _File | _Folder] = field(default_factory=dict)
    changes: list[dict[str, _File | _Folder | None]] = field(default_factory=list)

    def now(self) -> dict[str, _File | _Folder]:
        """The names as a process sees them."""
        return _applied(self.durable, self.changes)


def _applied(
    names: dict[str, _File | _Folder], changes: list[dict[str, _File | _Folder | None]]
) -> dict[str, _File | _Folder]:
    found = dict(names)
    for change in changes:
        for name, node in change.items():
            if node is None:
                found.pop(name, None)
            else:
                found[name] = node
    return found


class ForgetfulDisk(Files):
    """Operations on a real folder, with an account of what a loss of power would leave of it.

    What POSIX and the journals of file systems leave open is open here. Of a file that was not synced any part of the
    data is there, or other bytes. Of the names of a folder that changed since it was synced each change is there or
    not, whatever came before or after it. A rename within a folder is one change; between two folders it is one of
    each. A synced file may have no name.

    Args:
        root: a folder that is durable, and empty or the result of `after_loss`.
        rng: decides where the power goes within an operation, and what is left.
        dies_at: the number of the operation at which the process dies, or the power goes; from then on all fail.
        skips: a sync that it pretends to do: of the folder of that path below the root, or `FILES`.
    """

    FILES = "*"

    def __init__(self, root: Path, rng: random.Random, dies_at: int, skips: str | None = None) -> None:
        self._root, self._rng, self._skips = root, rng, skips
        self._left = dies_at
        self._lock = threading.Lock()
        self._folders: dict[Path, _Folder] = {}
        self._top = self._adopt(root)

    @property
    def dead(self) -> bool:
        """Whether the process has died, or the power is gone."""
        return self._left <= 0

    def revive(self, dies_at: int) -> None:
        """Another process works on what the first one has left, in the same life of the machine."""
        self._left = dies_at

    def write(self, path: Path, data: bytes) -> None:
        with self._lock:
            dies = self._step()
            if dies and self._rng.random() < 0.3:
                raise _gone()
            node = _File(data)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "wb") as file:
                file.write(data[: self._rng.randrange(len(data) + 1)] if dies else data)
            self._change(path.parent, {path.name: node})
            if dies:
                raise _gone()
            node.synced = self._skips != self.FILES

    def rename(self, old: Path, new: Path) -> None:
        with self._lock:
            dies = self._step()
            if not dies or self._rng.random() < 0.5:
                os.replace(old, new)
                node = self._folders[old.parent].now()[old.name]
                if old.parent == new.parent:
                    self._change(new.parent, {new.name: node, old.name: None})
                else:
                    self._change(new.parent, {new.name: node})
                    self._change(old.parent, {old.name: None})
            if dies:
                raise _gone()

    def remove(self, path: Path) -> None:
        with self._lock:
            dies = self._step()
            if not dies or self._rng.random() < 0.5:
                os.unlink(path)
                self._change(path.parent, {path.name: None})
            if dies:
                raise _gone()

    def make_directory(self, path: Path, mode: int) -> None:
        with self._lock:
            dies = self._step()
            if not dies or self._rng.random() < 0.5:
                os.mkdir(path, mode)
                self._folders[path] = _Folder()
                self._change(path.parent, {path.name: self._folders[path]})
            if dies:
                raise _gone()

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            dies = self._step()
            folder = self._folders.get(path)
            if folder is None:  # above the root, where all is durable
                return
            skipped = path.relative_to(self._root).as_posix() == self._skips
            if not skipped and (not dies or self._rng.random() < 0.5):
                folder.durable, folder.changes = folder.now(), []
            if dies:
                raise _gone()

    def spoil(self, path: Path, part: bytes) -> None:
        """A byte of a file's data goes bad, within this part of it."""
        with self._lock:
            node = self._folders[path.parent].now()[path.name]
            assert isinstance(node, _File) and part in node.data
            at = node.data.index(part) + len(part) // 2
            node.data = node.data[:at] + bytes([node.data[at] ^ 1]) + node.data[at + 1 :]
            path.write_bytes(node.data)

    def after_loss(self, root: Path) -> None:
        """Write what a loss of power leaves to the empty folder `root`."""
        _write_out(self._top, root, self._rng)

    def _step(self) -> bool:
        """Whether this operation is the last one."""
        if self.dead:
            raise _gone()
        self._left -= 1
        return self.dead

    def _change(self, folder: Path, change: dict[str, _File | _Folder | None]) -> None:
        self._folders[folder].changes.append(change)

    def _adopt(self, path: Path) -> _Folder:
        """The account of a folder that is durable as it is."""
        folder = self._folders[path] = _Folder()
        for entry in path.iterdir():
            folder.durable[entry.name] = self._adopt(entry) if entry.is_dir() else _File(entry.read_bytes(), True)
        return folder


def _gone() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


def _write_out(folder: _Folder, path: Path, rng: random.Random) -> None:
    kept = rng.choice([0.0, 0.5, 0.5, 0.9, 1.0])
    names = _applied(folder.durable, [change for change in folder.changes if rng.random() < kept])
    for name, node in names.items():
        if isinstance(node, _Folder):
            (path / name).mkdir(0o700)
            _write_out(node, path / name, rng)
        else:
            (path / name).write_bytes(node.data if node.synced else _torn(node.data, rng))


def _torn(data: bytes, rng: random.Random) -> bytes:
    """What may be left of data that were not synced."""
    length = rng.randrange(len(data) + 1)
    return rng.choice([b"", data, data[:length], data[:length] + bytes(len(data) - length), rng.randbytes(length)])
