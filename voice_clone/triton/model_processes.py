"""The processes of a server's models, as `/proc` shows them to each other."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

UNKNOWN = "?"
IDLE, BUSY = "voice_clone", "voice_clone_on"  # names of processes, at most 15 bytes; a dead one still has its name
_NAMES = IDLE.encode(), BUSY.encode()


@dataclass(frozen=True)
class ModelProcess:
    """The process of a model at one moment.

    Attributes:
        pid: its number.
        model: its model, such as "speaker_cache"; `UNKNOWN` if it died before anybody looked.
        busy: whether it works on a request, as it says itself.
        dead: whether it has died, and the server has not noticed.
        still: whether a signal or a debugger has stopped it.
    """

    pid: int
    model: str
    busy: bool
    dead: bool
    still: bool


class ModelProcesses:
    """The processes of the models of one server.

    Args:
        server: the process of the server.
    """

    def __init__(self, server: int) -> None:
        self._server = server
        self._models: dict[int, str] = {}  # of the server's children

    def find(self) -> bool:
        """Find those that there are by now; False if this system does not tell a process' children."""
        children: set[int] = set()
        for path in Path(f"/proc/{self._server}/task").glob("*/children"):  # the children of each thread
            with contextlib.suppress(OSError):  # the thread has just ended
                children.update(map(int, path.read_text().split()))
        for pid in children - self._models.keys():
            self._models[pid] = _model_of(pid)
        return bool(children)

    def look(self) -> list[ModelProcess]:
        """Their present states."""
        read = {pid: _read(pid, model, self._server) for pid, model in self._models.items()}
        found = {pid: process for pid, process in read.items() if process is not None}
        self._models = {pid: process.model or self._models[pid] for pid, process in found.items()}
        return [process for process in found.values() if process.model]


def name_this_process(busy: bool) -> None:
    """Let the others see that this process is a model, and whether it works on a request.

    Raises:
        OSError: the system has no `/proc`.
    """
    Path("/proc/self/comm").write_text(BUSY if busy else IDLE, encoding="ascii")


def _model_of(pid: int) -> str:
    """The model in the path of its file, which is the first argument of its process."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        folders = words[1].split("/") if len(words) > 1 else []
        return folders[-3] if len(folders) >= 3 and folders[-1] == "model.py" else UNKNOWN
    return UNKNOWN


def _read(pid: int, model: str, server: int) -> ModelProcess | None:
    """None if the process is gone. Fields of the file: proc(5)."""
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        status = os.read(file, 4096)
    except OSError:
        return None
    finally:
        os.close(file)
    begin, end = status.index(b"(") + 1, status.rindex(b")")
    name, fields = status[begin:end], status[end + 2 :].split(b" ", 18)
    state, parent, threads = fields[0], int(fields[1]), int(fields[17])
    if parent != server:
        return None
    if name not in _NAMES:  # it loads, or is no model
        return ModelProcess(pid, "", False, False, False)
    if model == UNKNOWN:  # it was listed before it ran its file: until then it has other arguments
        model = _model_of(pid)
    # A dead process is a zombie without a thread; with threads it is still ending.
    return ModelProcess(pid, model, name == _NAMES[True], state == b"Z" and threads <= 1, state in (b"T", b"t"))
