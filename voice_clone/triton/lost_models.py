"""Models watch each other's processes, which Triton 2.51 does not when one dies or is stopped, and Triton itself.

Death (fault: dead-model). Triton 2.51 does not start the process of a model again and does not answer its requests:
their clients wait for ever, and the server still reports that it is ready (seen with the talker and with code2wav after
a SIGKILL, which the kernel sends when memory is short). Newer releases report that the model is not ready, and do no
more. So the other models of its family answer their requests with an error and refuse new ones, and the server is
killed: at once, or, where another family is at work, as soon as that has a pause, at the latest after `patience`.
Families whose names begin with another's share models with that one, and count as it. A supervisor (`tools/serve`,
systemd, docker compose, Kubernetes) starts it again, with all its voices. A model of no family, such as speaker_cache,
serves all of them.

Standstill (fault: model-held-up). A process may be stopped for a while, by a debugger or a SIGSTOP. If it gets a
request meanwhile, Triton takes it for dead after 0.7 to 1 s and frees memory that the process still reads; later both
crash. So the server is stopped with it, before that, and goes on after it. Nothing is lost; all callers wait. A process
that stands still for longer than `standstill` counts as dead.

Hang (fault: cancel-beside-response). Triton can lock itself up when a client leaves a gRPC stream: then it takes no
response of a model any more, no caller gets an answer, and the server still reports that it is ready. So a model that
cannot send a response for `hang` seconds ends the server. Time in which server or model stand still does not count.

Unload (fault: abort-at-unload). Newer releases let each model's process abort when the model is unloaded. The server
waits for it then, so it is gone before it counts as dead here.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

PERIOD = 0.15  # seconds between two looks
LISTED, YOUNG = 200, 15  # looks between two listings of the server's children, which take 10 ms; the same at first
SURE = 0.3  # seconds; a process that ends normally is gone by then
CHECKED = 0.6  # seconds after a standstill; meanwhile the process reports to the server every 0.3 s
GAP = 1.0  # seconds between two looks, by which this process sees that it stood still itself
PAUSE = 0.6  # seconds without work of other families; a model says after up to `PERIOD` that it has some
HANG = 10.0  # seconds for which a response may be on its way to the server, which takes it within milliseconds
ANSWERED = 0.2  # seconds in which all other models notice, too, and answer their callers
TALKER = "_talker"  # ends the name of one model of each family

log = logging.getLogger(__name__)


class LostModels:
    """Watches the models of the server that started this process, which becomes one of them.

    Where the system has no `/proc`, this is logged and nothing is watched.

    Args:
        server: the process of the server.
        family: of this model; "" if it serves all of them.
        busy: whether this model works on a request.
        lost: called once, when a model that this one's callers need has died.
        patience: seconds for which other families may go on without the one that has lost a model.
        standstill: seconds for which a process may stand still.
        sending: when the oldest response was sent that the server has not taken, on the monotonic clock; None: it has
            taken all.
        hang: seconds after which such a response shows that the server hangs.
        period: seconds between two looks.
    """

    def __init__(
        self,
        server: int,
        family: str = "",
        busy: Callable[[], bool] = lambda: False,
        lost: Callable[[], None] = lambda: None,
        patience: float = 20.0,
        standstill: float = 30.0,
        sending: Callable[[], float | None] = lambda: None,
        hang: float = HANG,
        period: float = PERIOD,
    ) -> None:
        self._server = server
        self._family = family
        self._busy = busy
        self._lost = lost
        self._patience = patience
        self._standstill = standstill
        self._sending = sending
        self._hang = hang
        self._period = period
        self._models = ModelProcesses(server)
        self._since: dict[tuple[int, str], float] = {}  # when a process was first seen dead, or still
        self._worked: dict[str, float] = {}  # when each model was last seen at work
        self._logged = self._answered = False  # the log and this model's callers know that a model has died
        self._holds: str = ""  # the model that stands still, and with it the server
        self._logs_standstill = False  # whether this process logged that
        self._held = self._seen = 0.0  # when that began, and when it was last seen
        self._went_on = 0.0
        self._looked = time.monotonic()  # when the states were last looked at
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lost models", daemon=True)
        try:
            name_this_process(False)
        except OSError as error:
            log.warning("the death of a model's process will not be noticed: %s", error)
            self._closing.set()
        if server == 1:  # no process inside its container can kill or stop it
            log.warning("a server that hangs cannot be killed: run it under an init, e.g. docker run --init")
        self._models.find()
        self._thread.start()

    def close(self) -> None:
        """Stop watching; call it when this model is unloaded."""
        self._closing.set()
        self._thread.join()

    def went_on(self) -> float:
        """When the server or this process last stood still, on the monotonic clock; 0 if it never did."""
        now = time.monotonic()
        if self._holds or now - self._looked > GAP:
            self._went_on = now
        return self._went_on

    def _run(self) -> None:
        named = False
        for look in itertools.count():
            if self._closing.wait(self._period):
                return
            # Models that load later appear.
            if look % (YOUNG if look < LISTED else LISTED) == 0 and not self._models.find():
                log.warning("the death of a model's process will not be noticed: no list of child processes here")
                return
            if (busy := self._busy()) != named:
                name_this_process(busy)
                named = busy
            if self._look(self._models.look()):
                return

    def _look(self, models: Collection[ModelProcess]) -> bool:
        """Do what these states ask for; whether it is the server's end."""
        self.went_on()
        self._looked = now = time.monotonic()
        self._worked.update({each.model: now for each in models if each.busy and not each.dead})
        seen = {(each.pid, "dead" if each.dead else "still") for each in models if each.dead or each.still}
        self._since = {key: self._since.get(key, now) for key in seen}
        logs = os.getpid() == min((each.pid for each in models if not (each.dead or each.still)), default=0)
        still = [each for each in models if each.still and self._since[each.pid, "still"] < now]  # at the second look
        if self._hold(still, now, logs):
            return self._end(models)
        if self._hangs(now):
            since = f"for {self._hang:g} s it took no response of a model"
            _log_directly(f"the server hangs: {since}; it ends, for only a new one goes on")
            return self._end(models)
        for each in models:
            if each.dead and now - self._since[each.pid, "dead"] >= SURE:
                return self._handle_death(each, models, now, logs)
        return False

    def _hold(self, still: Collection[ModelProcess], now: float, logs: bool) -> bool:
        """Stop the server with models that stand still, let it go on after them; whether they do so for too long."""
        if still:
            if not self._holds:
                self._signal(self._server, signal.SIGSTOP)
                self._holds, self._held = next(iter(still)).model, now
                self._logs_standstill = logs
                if logs:
                    limit = f"for {self._standstill:g} s at most, then it ends"
                    _log_directly(
                        f"the process of the model {self._holds} stands still; the server waits for it {limit}"
                    )
            self._seen = now
            return now - self._held > self._standstill
        if self._holds and now - self._seen > CHECKED:
            self._signal(self._server, signal.SIGCONT)
            if self._logs_standstill:  # the model itself may log by now, but does not know of it
                _log_directly(f"the process of the model {self._holds} goes on after {self._seen - self._held:.1f} s")
            self._holds = ""
        return False

    def _hangs(self, now: float) -> bool:
        """Whether the server has not taken a response for too long, though it runs."""
        began = self._sending()
        if began is None or now - began < GAP:
            return False
        if _is_stopped(self._server):  # by this model, or by a debugger
            self._went_on = now
        return now - max(began, self._went_on) > self._hang

    def _handle_death(self, dead: ModelProcess, models: Collection[ModelProcess], now: float, logs: bool) -> bool:
        """Answer the callers of a dead model, and end the server unless another family is at work."""
        families = {each.model.removesuffix(TALKER) for each in models if each.model.endswith(TALKER)}
        family = min((each for each in families if _is_of(dead.model, each)), key=len, default="")
        others = {each for each in families if not f"{each}_".startswith(f"{family}_")}
        worked = [at for model, at in self._worked.items() if any(_is_of(model, each) for each in others)]
        spent = now - self._since[dead.pid, "dead"]
        waits = bool(family) and now - max(worked, default=float("-inf")) < PAUSE and spent < self._patience
        if logs and not self._logged:  # now, because this process may be gone before the end
            self._logged = True
            when = f" when no other family is at work, in {self._patience:g} s at the latest" if waits else ""
            _log_directly(
                f"the process of the model {dead.model} has died; the server ends{when}, for only a new one can load it"
            )
        if not self._answered and (not waits or f"{self._family}_".startswith(f"{family}_")):
            self._answered = True
            answers = threading.Thread(target=self._lost, daemon=True)
            answers.start()  # a server that hangs must not hold this thread
            answers.join(ANSWERED)
        if waits or spent < SURE + ANSWERED:
            return False
        return self._end(models)

    def _end(self, models: Collection[ModelProcess]) -> bool:
        """Kill the server. Several models may do this at once."""
        for each in models:
            if each.still:  # it would keep what the next server needs
                self._signal(each.pid, signal.SIGKILL)
        for number in (signal.SIGTERM, signal.SIGKILL):  # the first is for a server that nothing here can kill
            self._signal(self._server, number)
        return True

    @staticmethod
    def _signal(process: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _is_stopped(process: int) -> bool:
    found = _status(process)
    return found is not None and found[1][0] in (b"T", b"t")


def _is_of(model: str, family: str) -> bool:
    return model.startswith(f"{family}_")


def _log_directly(text: str) -> None:
    """Into the server's log, without the server, which may stand still or hang."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())


UNKNOWN = "?"
IDLE, BUSY = "voice_clone", "voice_clone_on"  # names of processes, at most 15 bytes; a dead one still has its name
_NAMES = IDLE.encode(), BUSY.encode()


@dataclass(frozen=True)
class ModelProcess:
    """The process of a model at one moment.

    Attributes:
        pid: its number.
        model: its model, such as "speaker_cache"; `UNKNOWN` if it died before it was first seen.
        busy: whether it works on a request, by its own name.
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
        """Find the models that are loaded by now; False if this system does not list the children of a process."""
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


def _status(pid: int) -> tuple[bytes, list[bytes]] | None:
    """The name of a process, and the fields after it, which proc(5) lists; None if it is gone."""
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
    return status[begin:end], status[end + 2 :].split(b" ", 18)


def _read(pid: int, model: str, server: int) -> ModelProcess | None:
    """None if the process is gone."""
    found = _status(pid)
    if found is None:
        return None
    name, fields = found
    state, parent, threads = fields[0], int(fields[1]), int(fields[17])
    if parent != server:
        return None
    if name not in _NAMES:  # it loads, or is no model
        return ModelProcess(pid, "", False, False, False)
    if model == UNKNOWN:  # it was listed before it ran its file: until then it has other arguments
        model = _model_of(pid)
    # A dead process is a zombie without a thread; with threads it is still ending.
    return ModelProcess(pid, model, name == _NAMES[True], state == b"Z" and threads <= 1, state in (b"T", b"t"))
