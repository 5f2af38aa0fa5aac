"""Output files that are whole or not there: each is written beside its place, then renamed."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

_LONGEST = 200  # bytes of a name, to which a prefix and a suffix are added


class WholeFile:
    """A binary file that takes the place of `path` with `keep`. The older file stays until then, and its mode is kept.

    It is written as `.out.wav.RANDOM.part.wav` in the same folder, and that remains if the process is killed. Links
    are followed. Pipes, devices and open streams such as /dev/stdout are written directly.

    Args:
        path: of the file.

    Raises:
        OSError: it cannot be written.
    """

    file: BinaryIO
    """To be written to."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        before = _status(self._path)
        self.replaces = before is not None
        """Whether there is a file that it is to replace."""
        self._aside: str | None = None
        if before is not None and (not stat.S_ISREG(before.st_mode) or _is_stream(self._path)):
            self.replaces = False
            self.file = open(self._path, "wb")  # noqa: SIM115
            return
        if before is not None:
            os.close(os.open(self._path, os.O_WRONLY))  # refuses as writing would
        self._target = os.path.realpath(self._path)
        self._aside = self._made_aside(before)
        self.file = open(self._aside, "w+b")  # noqa: SIM115
        if before is not None:
            with contextlib.suppress(OSError):  # another owner's file, in a folder that all may write
                os.chown(self._aside, before.st_uid, before.st_gid)
            os.chmod(self._aside, stat.S_IMODE(before.st_mode))

    def keep(self) -> None:
        """Put the file in its place: it is whole."""
        self.file.flush()
        if self._aside is not None:
            os.fsync(self.file.fileno())
        self.file.close()
        if self._aside is None:
            return
        try:
            os.replace(self._aside, self._target)
        except OSError:  # it is mounted, or its folder cannot be changed
            shutil.copyfile(self._aside, self._target)
            os.unlink(self._aside)

    def drop(self) -> None:
        """Remove the file. An older one stays as it was."""
        with contextlib.suppress(OSError):  # of a full disk, which has what it still holds
            self.file.close()
        if self._aside is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._aside)

    def _made_aside(self, before: os.stat_result | None) -> str:
        """Make a new file beside the target; elsewhere if only the target may be written, not its folder."""
        folder, name = os.path.split(self._target)
        begin = f".{os.fsdecode(os.fsencode(name)[:_LONGEST])}."
        end = f".part{os.path.splitext(self._path)[1]}"  # which still names the format
        aside = os.path.join(folder, f"{begin}{secrets.token_hex(4)}{end}")
        try:
            os.close(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except PermissionError as error:
            if before is None:
                raise OSError(error.errno, error.strerror, self._path) from None
            number, aside = tempfile.mkstemp(end, begin)
            os.close(number)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from None  # and not that of the other file
        return aside


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends without an error."""
    whole = WholeFile(path)
    try:
        yield whole.file
        whole.keep()
    except BaseException:
        whole.drop()
        raise


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _is_stream(path: str) -> bool:
    """Whether a path is that of an open file of this process, as /dev/stdout and /dev/fd/3 are."""
    while os.path.islink(path):
        folder = os.path.dirname(path)
        if os.path.realpath(folder).startswith("/proc/"):
            return True
        path = os.path.join(folder, os.readlink(path))
    return False
