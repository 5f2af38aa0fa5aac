"""How long one caller delays another: the first audio of a listener, before and while a second caller asks for much.

Both have a key of the gateway without limits. The listener asks for a short sentence in a voice that is in memory, now
and then; the time is from its request to the first audio, in milliseconds: median and worst. The other caller, a
process of its own, keeps some requests open, and asks again as soon as one is answered or refused. With `--keys 3`
there are three of them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import httpx2

from perf.bench.gateway_process import Gateway
from tools.triton_server import ROOT, TritonServer

CLIP = ROOT / "tools" / "data" / "reference.wav"
LONG = "The old captain sold his boat. My sister wants a new car. The teacher opened the window. " * 3
SHORT = "My sister wants a new car."
SETTLE = 3.0  # seconds from the begin of an attack to the first question

Ask = Callable[[httpx2.AsyncClient, int], Awaitable[httpx2.Response]]


async def _streams(http: httpx2.AsyncClient, number: int) -> httpx2.Response:
    return await http.post("/v1/audio/speech", json={"input": LONG, "voice": "other", "response_format": "pcm"})


async def _batches(http: httpx2.AsyncClient, number: int) -> httpx2.Response:
    items = [{"input": LONG} for _ in range(32)]
    return await http.post("/v1/audio/speech/batch", json={"voice": "other", "items": items})


async def _clips(http: httpx2.AsyncClient, number: int) -> httpx2.Response:
    import base64

    audio = "data:audio/wav;base64," + base64.b64encode(CLIP.read_bytes()).decode()
    order = {"input": "Hello.", "reference_audio": audio, "cache": False, "max_frames": 1, "response_format": "pcm"}
    return await http.post("/v1/audio/speech", json={**order, "allow_partial": True})


async def _uploads(http: httpx2.AsyncClient, number: int) -> httpx2.Response:
    form = {"name": f"v{number}", "consent": "ours", "replace": "true"}
    return await http.post("/v1/audio/voices", data=form, files={"audio_sample": CLIP.read_bytes()})


async def _lists(http: httpx2.AsyncClient, number: int) -> httpx2.Response:
    return await http.get("/v1/audio/voices")


async def _health(http: httpx2.AsyncClient, number: int) -> httpx2.Response:
    return await http.get("/health")


ATTACKS: dict[str, Ask] = {
    "streams": _streams,
    "batches": _batches,
    "cold clips": _clips,
    "uploads": _uploads,
    "lists": _lists,
    "health": _health,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "tools" / "data" / "demo_voice")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 30], help="that the other caller keeps open")
    parser.add_argument("--keys", type=int, default=1, help="callers that attack")
    parser.add_argument("--questions", type=int, default=12, help="of the listener in each measurement")
    parser.add_argument("--attack", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.attack:
        url, key, kind, count = given.attack
        asyncio.run(_attack(url, key, ATTACKS[kind], int(count)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        keys = [f"key-{number}" for number in range(given.keys + 1)]
        (folder / "keys").write_text("\n".join(f"{key} speak,manage" for key in keys))
        with (
            TritonServer(given.checkpoint, folder / "voices", log=folder / "log") as server,
            Gateway(server.url, folder / "gateway", "--api-keys-file", str(folder / "keys")) as gateway,
            httpx2.Client(base_url=gateway.url, headers={"Authorization": f"Bearer {keys[0]}"}, timeout=60.0) as http,
        ):
            for name in ("mine", "other"):
                form = {"name": name, "consent": "ours"}
                http.post("/v1/audio/voices", data=form, files={"audio_sample": CLIP.read_bytes()}).raise_for_status()
            _asked(http, 5)
            print("ms to first audio, median / worst; refused")
            for kind in given.attacks:
                for count in given.requests:
                    _measure(http, gateway.url, keys[1:], kind, count, given.questions)
    return 0


def _measure(http: httpx2.Client, url: str, keys: Sequence[str], kind: str, count: int, questions: int) -> None:
    before = _asked(http, questions)
    command = [sys.executable, "-m", "perf.bench.callers", "--attack", url]
    attackers = [subprocess.Popen([*command, key, kind, str(count)], cwd=ROOT) for key in keys]
    try:
        time.sleep(SETTLE)
        during = _asked(http, questions)
    finally:
        for attacker in attackers:
            attacker.kill()
            attacker.wait()
    print(f"{kind:12} {count:4} x {len(keys)}   {_shown(before)}  ->  {_shown(during)}", flush=True)
    time.sleep(1.0)  # what runs is cancelled


def _asked(http: httpx2.Client, questions: int) -> list[float | None]:
    """Milliseconds to first audio of some questions; None: it was refused."""
    found: list[float | None] = []
    order = {"input": SHORT, "voice": "mine", "response_format": "pcm", "seed": 1}
    for _ in range(questions):
        began = time.perf_counter()
        with http.stream("POST", "/v1/audio/speech", json=order) as answer:
            for _piece in answer.iter_raw():
                break
            found.append(1e3 * (time.perf_counter() - began) if answer.is_success else None)
        time.sleep(random.uniform(0.2, 0.4))
    return found


def _shown(found: Sequence[float | None]) -> str:
    heard = [each for each in found if each is not None]
    refused = f"; {len(found) - len(heard)} of {len(found)} refused" if len(heard) < len(found) else ""
    return (f"{statistics.median(heard):.0f} / {max(heard):.0f}" if heard else "-") + refused


async def _attack(url: str, key: str, ask: Ask, count: int) -> None:
    async def again(number: int) -> None:
        while True:
            with suppress(httpx2.HTTPError):
                if not (await ask(http, number)).is_success:
                    await asyncio.sleep(0.05)

    limits = httpx2.Limits(max_connections=count)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=300.0, limits=limits) as http:
        await asyncio.gather(*(again(number) for number in range(count)))


if __name__ == "__main__":
    sys.exit(main())
