"""How long one caller delays another: the first audio of a listener, before and while a second caller asks for much.

Both have a key of the gateway without limits. The listener asks for a short sentence in a voice that is in memory, now
and then; the time is from its request to the first audio, in milliseconds: median, 95th percentile and worst. The other
caller, a process of its own, keeps some requests open, and asks again as soon as one is answered or refused. With
`--keys 3` there are three of them. `--rounds 5` measures before and during in turns, five times. Of jobs it also says
how many sentences a minute were made beside the listener, and without one.

`--together MINUTES` measures no attack alone, but all of them at once, each with the last number of `--requests`. It
prints each minute what the listener hears and what the processes hold, and at the end what they hold once all is quiet
again, against before. Memory is the proportional set size (PSS), in MB.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil

from perf.bench.attacks import ATTACKS, CLIP, JOBS, SPEECH, VOICES
from perf.bench.gateway_process import Gateway
from voice_clone_server.families.recognition import OPTIONAL
from voice_clone_server.guard import marked
from voice_clone_server.triton_server import MODELS, ROOT, TritonServer

SHORT = "My sister wants a new car."
SETTLE = 3.0  # seconds from the begin of an attack to the first question
QUIET = 60.0  # seconds from the end of all attacks to the last look at memory: caches and connections time out
MINUTE = 60.0
HELD = ("gateway", "speaker_cache", "tritonserver")  # the last: with all of its models


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "tools" / "data" / "demo_voice")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 30], help="that the other caller keeps open")
    parser.add_argument("--keys", type=int, default=1, help="callers that attack")
    parser.add_argument("--questions", type=int, default=12, help="of the listener in each measurement")
    parser.add_argument("--rounds", type=int, default=1, help="of each measurement, before and during in turns")
    parser.add_argument("--together", type=float, metavar="MINUTES", help="all attacks at once, and the memory")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        keys = [f"key-{number}" for number in range(given.keys + 1)]
        (folder / "keys").write_text("\n".join(f"{key} speak,manage" for key in keys))
        models = [MODELS, OPTIONAL] if "detections" in given.attacks else [MODELS]
        with (
            TritonServer(
                given.checkpoint, folder / "voices", log=folder / "log", models=models, gives_way=True
            ) as server,
            Gateway(
                *(server.url, folder / "gateway", "--api-keys-file", str(folder / "keys")),
                *("--jobs-dir", str(folder / "jobs")),
            ) as gateway,
            httpx2.Client(base_url=gateway.url, headers={"Authorization": f"Bearer {keys[0]}"}, timeout=60.0) as http,
        ):
            for name in ("mine", "other"):
                form = {"name": name, "consent": "ours"}
                http.post(VOICES, data=form, files={"audio_sample": CLIP.read_bytes()}).raise_for_status()
            _asked(http, 5)
            print("ms to first audio, median / p95 / worst; refused")
            if given.together:
                _together(http, server, gateway, keys[1:], given.attacks, given.requests[-1], given.together)
                return 0
            for kind in given.attacks:
                for count in given.requests:
                    _measure(http, gateway.url, keys[1:], kind, count, given.questions, given.rounds)
    return 0


@contextmanager
def _attacked(url: str, keys: Sequence[str], kinds: Sequence[str], count: int) -> Iterator[None]:
    """While each of the keys makes attacks of these kinds, in one process: the servers need the cores.

    It has a session of its own, as the servers have: the kernel shares the cores between sessions, and the listener
    would wait for the attackers.
    """
    attackers = [
        subprocess.Popen(
            [sys.executable, "-m", "perf.bench.attacks", url, key, str(count), *kinds],
            cwd=ROOT,
            env=marked(),
            start_new_session=True,
        )
        for key in keys
    ]
    try:
        time.sleep(SETTLE)
        yield
        assert all(attacker.poll() is None for attacker in attackers), "an attacker has ended"
    finally:
        for attacker in attackers:
            attacker.kill()
            attacker.wait()


def _measure(
    http: httpx2.Client, url: str, keys: Sequence[str], kind: str, count: int, questions: int, rounds: int
) -> None:
    before: list[float | None] = []
    during: list[float | None] = []
    beside, alone = _Pace(url, keys), _Pace(url, keys)
    for _ in range(rounds):
        before += _asked(http, questions)
        with _attacked(url, keys, [kind], count):
            with beside.measured(kind):
                during += _asked(http, questions)
            with alone.measured(kind):
                time.sleep(beside.seconds / rounds if kind == "jobs" else 0.0)
        if kind == "jobs":
            _end_jobs(url, keys)
        time.sleep(1.0)  # what runs is cancelled
    print(f"{kind:13} {count:4} x {len(keys)}   {_shown(before)}  ->  {_shown(during)}{beside}{alone}", flush=True)


class _Pace:
    """The sentences of jobs that were made while it was measured."""

    def __init__(self, url: str, keys: Sequence[str]) -> None:
        self._url, self._keys = url, keys
        self.seconds, self._sentences = 0.0, 0

    @contextmanager
    def measured(self, kind: str) -> Iterator[None]:
        """Count what is made in this block, if it is of jobs."""
        if kind != "jobs":
            yield
            return
        began, before = time.monotonic(), self._made()
        yield
        self._sentences += self._made() - before
        self.seconds += time.monotonic() - began

    def _made(self) -> int:
        return sum(job["sentences"]["made"] for key in self._keys for job in _jobs(self._url, key))

    def __str__(self) -> str:
        return f"; {60 * self._sentences / self.seconds:.0f} sentences a minute" if self.seconds else ""


def _jobs(url: str, key: str) -> list[dict[str, Any]]:
    answer = httpx2.get(f"{url}{JOBS}", params={"limit": 100}, headers={"Authorization": f"Bearer {key}"})
    found: list[dict[str, Any]] = answer.raise_for_status().json()["data"]
    return found


def _end_jobs(url: str, keys: Sequence[str]) -> None:
    """Cancel and delete the jobs that an attacker has left."""
    for key in keys:
        headers = {"Authorization": f"Bearer {key}"}
        for job in _jobs(url, key):
            if job["status"] in ("queued", "in_progress"):
                httpx2.post(f"{url}{JOBS}/{job['id']}/cancel", headers=headers, timeout=60).raise_for_status()

            httpx2.delete(f"{url}{JOBS}/{job['id']}", headers=headers).raise_for_status()


def _together(
    http: httpx2.Client, server: TritonServer, gateway: Gateway, keys: Sequence[str], kinds: Sequence[str], count: int,
    minutes: float,
) -> None:  # fmt: skip
    def line(title: str, heard: Sequence[float | None]) -> Counter[str]:
        held = _held(server, gateway)
        shown = "".join(f"{held[name]:15d}" for name in HELD)
        print(f"{title:>8}{shown}   {_shown(heard)}", flush=True)
        return held

    print(f"{'minute':>8}{''.join(f'{name:>15}' for name in HELD)}   first audio", flush=True)
    before = line("before", _asked(http, 12))
    peak = before.copy()
    with _attacked(gateway.url, keys, kinds, count):
        began = time.monotonic()
        for minute in range(1, max(1, round(minutes)) + 1):
            heard: list[float | None] = []
            while time.monotonic() < began + minute * MINUTE:
                heard += _asked(http, 1)
            peak |= line(str(minute), heard)
    time.sleep(QUIET)
    after = line("after", _asked(http, 12))
    for name in HELD:
        print(
            f"{name}: {before[name]:.0f} MB before, at most {peak[name]:.0f}, {after[name] - before[name]:+.0f} after"
        )


def _held(server: TritonServer, gateway: Gateway) -> Counter[str]:
    """MB of the processes, by the names in `HELD`."""
    assert server.process is not None
    found: Counter[str] = Counter()
    for name, pid in (("gateway", gateway.process.pid), ("tritonserver", server.process.pid)):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # a process for a clip has ended
                held = round(process.memory_full_info().pss / 1e6)
                found[name] += held
                if re.search(r"/speaker_cache/\d+/model\.py", " ".join(process.cmdline())):
                    found["speaker_cache"] += held
    return found


def _asked(http: httpx2.Client, questions: int) -> list[float | None]:
    """Milliseconds to first audio of some questions; None: it was refused."""
    found: list[float | None] = []
    order = {"input": SHORT, "voice": "mine", "response_format": "pcm", "seed": 1}
    for _ in range(questions):
        began, heard = time.perf_counter(), None
        with suppress(httpx2.HTTPError), http.stream("POST", SPEECH, json=order) as answer:
            for _piece in answer.iter_raw():
                heard = 1e3 * (time.perf_counter() - began) if answer.is_success else None
                break
        found.append(heard)
        time.sleep(random.uniform(0.2, 0.4))
    return found


def _shown(found: Sequence[float | None]) -> str:
    heard = [each for each in found if each is not None]
    refused = f"; {len(found) - len(heard)} of {len(found)} refused" if len(heard) < len(found) else ""
    if len(heard) < 2:
        return "-" + refused
    late = statistics.quantiles(heard, n=20, method="inclusive")[-1]
    return f"{statistics.median(heard):.0f} / {late:.0f} / {max(heard):.0f}" + refused


if __name__ == "__main__":
    sys.exit(main())
