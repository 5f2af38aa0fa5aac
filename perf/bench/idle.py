"""What `tools/serve --idle-minutes` gives back, and what the next callers wait for.

Memory is the proportional set size (PSS) of all processes of tools/serve, in MB, while the server works and while it is
idle. Then the server is started again and again by one speech that comes when it has ended: seconds to its first audio.
Then some callers come at once, in turns once it has ended, while it ends, and at about the moment when it begins to.
With `--busy` other processes want the cores, too. Each answer counts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2
import psutil
import websockets.sync.client

from perf.bench.report import summary, table, write
from voice_clone_server.demo import CLIP, SHIPPED
from voice_clone_server.guard import VARIABLE, marked
from voice_clone_server.triton_server import ROOT, free_ports

VOICE, TEXT = "Ada", "My sister wants a new car."
ORDER = {"input": TEXT, "voice": VOICE, "response_format": "pcm", "seed": 1}
WAIT = 300.0  # seconds
WORK = 15.0  # seconds of speech before memory is looked at: then another gateway stands by
PERIOD = 0.02  # seconds between two looks
MOMENTS = ("idle", "ending", "about then")


class Served:
    """`tools/serve` with its gateway and one voice, which ends its server after `seconds` without work; a context
    manager.
    """

    def __init__(self, checkpoint: Path, folder: Path, seconds: float, **environment: str) -> None:
        self.folder, self.log, self.seconds = folder, folder / "log", seconds
        ports = free_ports(4)
        self.triton, self.url = f"127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[3]}"
        kinds = ("--grpc-port", "--http-port", "--metrics-port", "--gateway")
        words = [word for kind, port in zip(kinds, ports, strict=True) for word in (kind, str(port))]
        words += ["--checkpoint", str(checkpoint), "--voices", str(folder / "voices"), "--restarts", "99"]
        words += ["--idle-minutes", str(seconds / 60)]
        self.http = httpx2.Client(base_url=self.url, timeout=WAIT, trust_env=False, verify=False)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tools.run", "voice_clone_server.serve", *words],
                cwd=ROOT,
                env=marked({**os.environ, **environment}),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Served:
        self.until(lambda: "\nReady" in self.text)
        form = {"name": VOICE, "consent": "ours"}
        self.http.post("/v1/audio/voices", data=form, files={"audio_sample": CLIP.read_bytes()}).raise_for_status()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()
        self.process.kill()
        self.process.wait()

    @property
    def text(self) -> str:
        """What it has printed."""
        return self.log.read_text(errors="replace")

    @property
    def starts(self) -> int:
        """How often the server was started again."""
        return self.text.count("is ready again")

    @property
    def state(self) -> str:
        """What the gateway's /health says."""
        return str(self.http.get("/health").json()["status"])

    @property
    def server(self) -> psutil.Process | None:
        """The process of tritonserver, while there is one."""
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children():
                if child.name() == "tritonserver" and child.status() != psutil.STATUS_ZOMBIE:
                    return child
        return None

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until it holds."""
        deadline = time.monotonic() + WAIT
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, self.text
            time.sleep(PERIOD)

    def until_idle(self) -> None:
        """Wait until the server has ended."""
        self.until(lambda: self.state == "idle" and self.server is None)

    def memory(self) -> Counter[str]:
        """MB of its processes, by what they are."""
        mark, found = f"{VARIABLE}={self.process.pid}-".encode(), Counter[str]()
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                words = process.cmdline() or ["", ""]
                ours = process.pid == self.process.pid or f"{self.process.pid}-" in words[-1]
                if ours or mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                    names = {"voice_clone_gateway": "gateways", "voice_clone_server.serve": "tools/serve"}
                    name = next((name for word, name in names.items() if word in words), "tritonserver and models")
                    name = "guard" if words[-2:][0].endswith("guard.py") else name
                    found[name] += round(process.memory_full_info().pss / 1e6)
        return found


def speech(http: httpx2.Client) -> tuple[int, float]:
    """The status of a speech, and the seconds to its first audio."""
    began, heard = time.monotonic(), 0.0
    with http.stream("POST", "/v1/audio/speech", json=ORDER) as answer:
        for _ in answer.iter_raw():
            heard = heard or time.monotonic() - began
        return answer.status_code, heard


def _upload(http: httpx2.Client) -> int:
    form = {"name": f"Voice {random.randrange(10**9)}", "consent": "ours"}
    return http.post("/v1/audio/voices", data=form, files={"audio_sample": CLIP.read_bytes()}).status_code


def _websocket(http: httpx2.Client) -> int:
    url = str(http.base_url).replace("http", "ws", 1).rstrip("/")
    with websockets.sync.client.connect(f"{url}/v1/audio/speech/stream", proxy=None, open_timeout=WAIT) as socket:
        for message in ({"type": "session.config", "voice": VOICE}, {"type": "input.text", "text": TEXT}):
            socket.send(json.dumps(message))
        socket.send(json.dumps({"type": "input.done"}))
        got = [socket.recv(WAIT)]
        while isinstance(got[-1], bytes) or json.loads(got[-1])["type"] != "session.done":
            assert isinstance(got[-1], bytes) or json.loads(got[-1])["type"] != "error", got[-1]
            got.append(socket.recv(WAIT))
    return 200 if any(isinstance(each, bytes) for each in got) else 500


CALLERS: dict[str, Callable[[httpx2.Client], int]] = {
    "speech": lambda http: speech(http)[0],
    "another speech": lambda http: speech(http)[0],
    "upload": _upload,
    "list": lambda http: http.get("/v1/audio/voices").status_code,
    "file": lambda http: http.post("/v1/audio/speech", json={**ORDER, "response_format": "mp3"}).status_code,
    "WebSocket": _websocket,
}


def burst(served: Served, moment: str) -> Counter[str]:
    """Let all callers come at once; returns the answers of each, by caller and status."""
    if moment == "about then":
        time.sleep(max(0.0, served.seconds + random.uniform(-0.2, 0.5)))
    elif moment == "ending":
        served.until(lambda: served.state == "idle")
    else:
        served.until_idle()

    def ask(name: str) -> str:
        time.sleep(random.uniform(0.0, 0.2))
        try:
            return f"{name} {CALLERS[name](served.http)}"
        except Exception as error:
            return f"{name} {type(error).__name__}: {error}"

    with ThreadPoolExecutor(len(CALLERS)) as pool:
        return Counter(pool.map(ask, CALLERS))


def bursts(served: Served, wakes: int) -> Counter[str]:
    """Repeat `burst` at all moments in turn until the server was started so often; returns all answers."""
    found, first, turn = Counter[str](), served.starts, 0
    while served.starts - first < wakes:
        found += burst(served, MOMENTS[turn % len(MOMENTS)])
        turn += 1
    return found


@contextmanager
def _busy(count: int) -> Iterator[None]:
    spin = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(spin, env=marked(), start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for each in processes:
            each.kill()
            each.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=SHIPPED)
    parser.add_argument("--seconds", type=float, default=1.0, help="without work after which the server ends")
    parser.add_argument("--wakes", type=int, default=50, help="by one caller, and by several")
    parser.add_argument("--busy", type=int, default=0, help="processes that want a core, too")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    figures: dict[str, Any] = {"idle_after_s": given.seconds, "busy": given.busy}
    with (
        tempfile.TemporaryDirectory() as folder,
        Served(given.checkpoint, Path(folder), given.seconds) as served,
        _busy(given.busy),
    ):
        begun = time.monotonic()
        while time.monotonic() < begun + WORK:
            speech(served.http)
        before = served.memory()
        served.until_idle()
        time.sleep(1.0)  # the gateway that stood by ends, too
        after = served.memory()
        rows = [[name, before[name], after[name]] for name in before]
        print(table(["MB", "at work", "idle"], [*rows, ["sum", before.total(), after.total()]]), flush=True)
        figures["memory_mb"] = {"at_work": before, "idle": after}
        waits = []
        for _ in range(given.wakes):
            served.until_idle()
            time.sleep(random.uniform(0.0, 0.5))
            status, seconds = speech(served.http)
            assert status == 200, served.text
            waits.append(seconds)
        figures["first_audio_s"] = summary(waits)
        awake = [speech(served.http)[1] for _ in range(20)]
        figures["first_audio_awake_s"] = summary(awake)
        answers = bursts(served, given.wakes)
        figures["answers"] = dict(sorted(answers.items()))
        failed = sum(count for answer, count in answers.items() if not answer.endswith(" 200"))
        for name in ("first_audio_s", "first_audio_awake_s"):
            print(name, json.dumps(figures[name]))
        print(f"{answers.total()} answers, {failed} failed: {figures['answers']}")
    write(given.json, figures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
