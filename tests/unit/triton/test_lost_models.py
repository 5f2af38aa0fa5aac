"""Processes that die or stand still are noticed, and only those of models, and only when they do."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import until
from voice_clone.triton import lost_models
from voice_clone.triton.lost_models import BUSY, CHECKED, IDLE, LostModels, ModelProcesses

WAIT = 30.0
EXIT = {"x86_64": 60, "aarch64": 93}  # numbers of the system call that ends one thread

# A server that starts these processes and cares about none of them.
SERVER = """
import subprocess, sys, time
children = [subprocess.Popen([sys.executable, file]) for file in sys.argv[1:]]
print("ready", flush=True)
time.sleep(600)
"""
REAPING = SERVER.replace("time.sleep", "for child in children: child.wait()\ntime.sleep")  # as at an unload


def named(name: str) -> str:
    return f"open('/proc/self/comm', 'w').write({name!r})\n"


DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
ABORTS = "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()"
WAITS = "import os, time\nwhile not os.path.exists(__file__ + '.go'): time.sleep(0.02)\n"  # until `Watched.go`
LIVES = "import time; time.sleep(600)"
LEADER_ENDS = (  # the process goes on with its other thread, though it looks like a zombie
    "import ctypes, threading, time\n"
    "threading.Thread(target=time.sleep, args=(600,)).start()\n"
    f"ctypes.CDLL(None).syscall({EXIT.get(platform.machine(), 0)}, 0)"
)


@pytest.fixture(autouse=True)
def own_name() -> Iterator[None]:
    path = Path("/proc/self/comm")
    before = path.read_text()
    yield
    path.write_text(before)


@dataclass
class Watched:
    """A server with these models, and a watch of one more of them, of `family`.

    Attributes:
        lost: set when the watch says that this model's callers need an error.
    """

    server: subprocess.Popen[bytes]
    children: list[int]
    lost: threading.Event
    folder: Path
    watch: LostModels

    def go(self, model: str) -> None:
        """Let a model go on that waits."""
        (self.folder / model / "1" / "model.py.go").touch()

    def ends(self, seconds: float = WAIT) -> bool:
        """Whether the server ends in some time."""
        try:
            return self.server.wait(seconds) < 0
        except subprocess.TimeoutExpired:
            return False

    def stands_still(self) -> bool:
        """Whether the server is stopped."""
        return "T" in Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    """Makes one, of the code of each model; a name that is used twice gets the second one's code."""
    with contextlib.ExitStack() as stack:

        def make(
            family: str = "", patience: float = WAIT, standstill: float = WAIT, program: str = SERVER, **codes: str
        ) -> Watched:
            files = []
            for model, code in codes.items():
                files.append(tmp_path / model / "1" / "model.py")
                files[-1].parent.mkdir(parents=True)
                files[-1].write_text(code)
            command = [sys.executable, "-c", program, *map(str, files)]
            server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            assert server.stdout is not None and server.stdout.readline() == b"ready\n"
            children = [int(pid) for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]
            for child, code in zip(children, codes.values(), strict=True):
                until(
                    lambda path=Path(f"/proc/{child}/comm"), code=code: (
                        named(path.read_text().strip()) in code or code == DIES
                    )
                )
            lost = threading.Event()
            watch = LostModels(server.pid, family, lambda: False, lost.set, patience, standstill, period=0.05)

            def end() -> None:
                watch.close()
                for process in (*children, server.pid):
                    subprocess.run(["kill", "-KILL", str(process)], stderr=subprocess.DEVNULL, check=False)

            stack.callback(end)
            return Watched(server, children, lost, tmp_path, watch)

        yield make


def test_a_lost_model_ends_its_server(watched: Callable[..., Watched]) -> None:
    found = watched("a", a_talker=named(IDLE) + DIES, a_prompt=named(BUSY) + LIVES)
    assert found.ends() and found.lost.is_set()


def test_models_may_abort_when_the_server_unloads_them(watched: Callable[..., Watched]) -> None:
    """As those of newer servers do at each stop: it waits for them, and must end by itself, not by a watch."""
    models = {"a_talker": named(IDLE) + WAITS + ABORTS, "a_prompt": named(IDLE) + WAITS + ABORTS}
    found = watched("a", program=REAPING, b_talker=named(IDLE) + WAITS + "", **models)
    for model in ("b_talker", *models):
        found.go(model)
    until(lambda: not psutil.Process(found.server.pid).children())
    assert not found.ends(1.5) and not found.lost.is_set()


def test_a_server_that_takes_no_response_ends(watched: Callable[..., Watched]) -> None:
    found = watched("a", a_talker=named(IDLE) + LIVES)
    stuck: list[float] = []
    watch = LostModels(
        found.server.pid, "a", sending=lambda: min(stuck, default=time.monotonic()), hang=1.2, period=0.05
    )
    try:
        assert not found.ends(2.0), "it takes them one after the other"
        stuck.append(time.monotonic())
        assert found.ends()
    finally:
        watch.close()


def test_time_in_which_the_server_stands_still_does_not_count(watched: Callable[..., Watched]) -> None:
    """As under a debugger."""
    found = watched("a", a_talker=named(IDLE) + LIVES)
    began = time.monotonic()
    os.kill(found.server.pid, signal.SIGSTOP)
    watch = LostModels(found.server.pid, "a", sending=lambda: began, hang=1.2, period=0.05)
    try:
        assert not found.ends(2.5)
        os.kill(found.server.pid, signal.SIGCONT)
        assert not found.ends(0.6)
        assert found.ends(), "it still takes none"
    finally:
        watch.close()


def test_a_process_that_is_no_model_may_die(watched: Callable[..., Watched]) -> None:
    assert not watched(some_tool=DIES, a_talker=named(IDLE) + LIVES).ends(2.0)


@pytest.mark.parametrize(("family", "lost"), [("a", True), ("a_b", True), ("b", False), ("", False)])
def test_another_family_goes_on_while_it_is_at_work(watched: Callable[..., Watched], family: str, lost: bool) -> None:
    first = {"a_talker": named(IDLE) + WAITS + DIES, "a_b_talker": named(IDLE) + LIVES}
    second = {"b_talker": named(IDLE) + LIVES, "b_code2wav": named(BUSY) + WAITS + named(IDLE) + LIVES}
    found = watched(family, **first, **second)
    found.go("a_talker")
    if lost:
        until(found.lost.is_set)
    assert not found.ends(2.0) and found.lost.is_set() == lost
    found.go("b_code2wav")
    assert found.ends() and found.lost.is_set(), "it has a pause"


def test_a_kind_of_a_family_does_not_go_on_without_it(watched: Callable[..., Watched]) -> None:
    first = {"a_talker": named(IDLE) + LIVES, "a_code2wav": named(IDLE) + WAITS + DIES}
    found = watched("a_b", **first, a_b_talker=named(BUSY) + LIVES)
    found.go("a_code2wav")
    assert found.ends() and found.lost.is_set()


def test_a_moment_between_two_requests_is_no_pause(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_models, "PAUSE", 5.0)  # a busy machine makes the moments longer
    moments = f"import os, time\nwhile not os.path.exists(__file__ + '.go'):\n    {named(IDLE)}    time.sleep(0.1)\n"
    moments += f"    {named(BUSY)}    time.sleep(0.1)\n{named(IDLE)}{LIVES}"
    first, second = {"a_talker": named(IDLE) + WAITS + DIES}, {"b_talker": named(BUSY) + moments}
    found = watched("b", **first, **second)
    found.go("a_talker")
    assert not found.ends(6.0) and not found.lost.is_set()
    monkeypatch.setattr(lost_models, "PAUSE", 0.5)
    found.go("b_talker")
    assert found.ends() and found.lost.is_set()


def test_a_family_that_has_just_worked_goes_on(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one's death is looked at while this one is between two requests."""
    monkeypatch.setattr(lost_models, "PAUSE", WAIT)
    second = {"b_talker": named(BUSY) + WAITS + named(IDLE) + LIVES}
    found = watched("b", a_talker=named(IDLE) + WAITS + DIES, **second)
    assert not found.ends(0.5)
    found.go("b_talker")
    found.go("a_talker")
    assert not found.ends(1.0) and not found.lost.is_set()
    monkeypatch.setattr(lost_models, "PAUSE", 0.5)
    assert found.ends() and found.lost.is_set()


def test_patience_with_another_family_ends(watched: Callable[..., Watched]) -> None:
    models = {"a_talker": named(IDLE) + WAITS + DIES, "b_talker": named(BUSY) + LIVES}
    found = watched("b", patience=1.0, **models)
    found.go("a_talker")
    assert found.ends() and found.lost.is_set()


def test_no_family_goes_on_without_what_serves_all(watched: Callable[..., Watched]) -> None:
    models = {"a_talker": named(BUSY) + LIVES, "b_talker": named(BUSY) + LIVES}
    found = watched("a", speaker_cache=named(IDLE) + WAITS + DIES, **models)
    found.go("speaker_cache")
    assert found.ends() and found.lost.is_set()


def test_a_server_stands_still_with_its_model(watched: Callable[..., Watched]) -> None:
    found = watched("a", a_talker=named(IDLE) + LIVES, b_talker=named(IDLE) + LIVES)
    first, second = found.children
    for _ in range(2):
        os.kill(first, signal.SIGSTOP)
        until(found.stands_still)
        os.kill(second, signal.SIGSTOP)
        os.kill(first, signal.SIGCONT)
        time.sleep(2 * CHECKED)
        assert found.stands_still()
        os.kill(second, signal.SIGCONT)
        until(lambda: not found.stands_still())
    assert not found.lost.is_set() and 0 < time.monotonic() - found.watch.went_on() < WAIT


def test_a_standstill_is_bounded(watched: Callable[..., Watched]) -> None:
    found = watched("a", standstill=0.5, a_talker=named(IDLE) + LIVES)
    os.kill(found.children[0], signal.SIGSTOP)
    assert found.ends()
    until(
        lambda: (
            psutil.Process(found.children[0]).status() == psutil.STATUS_ZOMBIE
            if psutil.pid_exists(found.children[0])
            else True
        )
    )


@pytest.mark.skipif(platform.machine() not in EXIT, reason="the number of the system call is not known here")
def test_a_process_that_still_has_a_thread_is_not_dead(watched: Callable[..., Watched]) -> None:
    assert not watched(a_talker=named(IDLE) + LEADER_ENDS).ends(2.0)


def test_a_watch_that_is_closed_ends_nothing() -> None:
    threads = set(threading.enumerate())
    began = time.monotonic()
    LostModels(1, period=WAIT).close()
    assert set(threading.enumerate()) <= threads and time.monotonic() - began < WAIT / 2


def test_a_process_that_was_seen_before_it_ran_its_model_has_the_name_of_that(tmp_path: Path) -> None:
    file = tmp_path / "first_talker" / "1" / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text(named(IDLE) + LIVES)
    processes = ModelProcesses(os.getpid())
    command = ["sh", "-c", f"read go; exec {sys.executable} {file}"]  # as between a server's fork and exec
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        assert processes.find() and child.pid not in {each.pid for each in processes.look()}
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.close()
        until(lambda: "first_talker" in {each.model for each in processes.look()})
        child.kill()
        until(lambda: [each.model for each in processes.look() if each.pid == child.pid and each.dead])
        assert [each.model for each in processes.look() if each.pid == child.pid] == ["first_talker"]
