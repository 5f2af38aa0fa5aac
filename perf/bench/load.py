"""Load on a running server, over gRPC: latency at the listeners, throughput of the server.

    perf/load --checkpoint DIR --concurrency 1,2,4,8          starts a server
    perf/load --url HOST:8001 --metrics HOST:8002 --rate 0.5,1,2

Closed loop (`--concurrency N`): N callers, each of which sends its next request when its speech is over. Open loop
(`--rate R`): requests are sent at random times, R a second on average (Poisson), whether the server keeps up or not,
and times count from when a request was due. `--seed` determines everything random.

Times are seconds at the client. `first audio` is the first sample's arrival, with which playback starts. A `stall` is a
chunk that arrived after playback had run dry. `in time` is the share of the other chunks, `gapless` the share of
speeches without a stall.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voice_clone_client.aio import AsyncClient
from voice_clone_client.errors import VoiceCloneError

from perf.bench import report
from perf.bench.playback import Playback
from perf.bench.reference import TRANSCRIPT, fresh_clip
from voice_clone_server import guard
from voice_clone_server.triton_server import TritonServer

TEXTS = (
    "Good morning.",
    "The boats lay still on the silver water, and no one spoke.",
    "Every evening they came home, tired and content, to a house that smelled of bread and of the sea.",
    "Tell me again how the story ends, for I have forgotten it, and the night is long and the fire is warm.",
)
COLUMNS = (
    *("load", "speeches", "errors", "first audio p50", "p95", "p99", "gap p95", "chunks", "in time %", "gapless"),
    *("stalled s", "RTF p50", "p95", "audio s/s"),
)


@dataclass(frozen=True)
class Mix:
    """The kinds of requests: shares in 0..1."""

    hit: float  # registered voices; the rest sends a clip that no one has sent before
    icl: float  # of the clips, with their transcript
    cancel: float  # closed by the caller after a chunk
    max_frames: int
    voices: int


@dataclass(frozen=True)
class Outcome:
    """One request."""

    playback: Playback
    error: str | None  # its slug, or `cancelled` where the caller closed it
    cache: str | None  # hit, miss or restored


Speak = Callable[[float], Coroutine[Any, Any, Outcome]]
"""Makes a request; takes the time at which it was due."""


class Load:
    """Requests at one server.

    Args:
        client: of that server.
        mix: what they ask for.
        seed: of all that is random.
    """

    def __init__(self, client: AsyncClient, mix: Mix, seed: int) -> None:
        self._client = client
        self._mix = mix
        self._random = random.Random(seed)
        self.names = [f"load {number}" for number in range(mix.voices)]

    async def register(self) -> None:
        """Upload the voices, each from another clip, and wait for them; or list those that the checkpoint brings."""
        if not self._mix.voices:
            self.names = [preset.name for preset in await self._client.presets()]
            if not self.names:
                raise SystemExit("the checkpoint brings no voices; give --voices 1 or more")
            return
        for name in self.names:
            await self._client.upload(
                name,
                fresh_clip(self._random.getrandbits(32)),
                reference_text=TRANSCRIPT,
                wait=True,
                replace=True,  # what a run that was killed has left
            )

    async def unregister(self) -> None:
        """Delete the voices that were uploaded."""
        for name in self.names[: self._mix.voices]:
            await self._client.delete(name)

    async def closed(self, callers: int, requests: int) -> list[Outcome]:
        """Make `requests` in all from `callers`, who wait for each to end."""
        return await self._callers(callers, iter([self._request() for _ in range(requests)]))

    async def lasting(self, callers: int, seconds: float) -> list[Outcome]:
        """Make requests for so many seconds from `callers`, who wait for each to end."""
        end = time.perf_counter() + seconds
        return await self._callers(callers, iter(lambda: self._request() if time.perf_counter() < end else None, None))

    async def _callers(self, callers: int, todo: Iterator[Speak]) -> list[Outcome]:
        async def caller() -> list[Outcome]:
            return [await speak(time.perf_counter()) for speak in todo]

        return [outcome for each in await asyncio.gather(*(caller() for _ in range(callers))) for outcome in each]

    async def open(self, rate: float, requests: int) -> list[Outcome]:
        """Make `requests` at random times, `rate` a second on average."""
        due, tasks = time.perf_counter(), []
        for _ in range(requests):
            due += self._random.expovariate(rate)
            speak = self._request()
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(speak(due)))
        return list(await asyncio.gather(*tasks))

    def _request(self) -> Speak:
        """Return the next request. All that is random about it is drawn now, in the order of the requests."""
        draw, mix = self._random, self._mix
        text, seed = draw.choice(TEXTS), draw.getrandbits(32)
        stop_after = draw.randint(1, 4) if draw.random() < mix.cancel else None
        if draw.random() < mix.hit:
            given: dict[str, Any] = {"voice": draw.choice(self.names)}
        else:
            given = {"reference_audio": fresh_clip(draw.getrandbits(32))}
            if draw.random() < mix.icl:
                given["reference_text"] = TRANSCRIPT

        async def speak(began: float) -> Outcome:
            playback, cache = Playback(began), None
            try:
                async with self._client.speak(text, seed=seed, max_frames=mix.max_frames, **given) as speech:
                    chunks = 0
                    async for chunk in speech:
                        playback.add(time.perf_counter(), len(chunk.samples) / chunk.sample_rate)
                        cache = cache or (chunk.info or {}).get("cache")
                        chunks += 1
                        if chunks == stop_after and not chunk.final:
                            return Outcome(playback, "cancelled", cache)
            except VoiceCloneError as error:
                return Outcome(playback, error.slug, cache)
            return Outcome(playback, None, cache)

        return speak


def figures(load: str, outcomes: list[Outcome], seconds: float) -> dict[str, Any]:
    """Return the figures of a level of load."""
    whole = [outcome.playback for outcome in outcomes if outcome.error is None]
    heard = [outcome.playback for outcome in outcomes if outcome.playback.first is not None]
    stalls = [stall for playback in heard for stall in playback.stalls]
    chunks = sum(playback.chunks for playback in heard)
    return {
        "load": load,
        "seconds": round(seconds, 3),
        "speeches": len(whole),
        "errors": dict(Counter(outcome.error for outcome in outcomes if outcome.error)),
        "cache": dict(Counter(outcome.cache for outcome in outcomes if outcome.cache)),
        "first_audio_s": report.summary([playback.first_audio or 0.0 for playback in heard]),
        "gap_s": report.summary([gap for playback in heard for gap in playback.gaps]),
        "real_time_factor": report.summary([playback.real_time_factor or 0.0 for playback in whole]),
        "chunks": chunks,
        "in_time": round(1 - len(stalls) / chunks, 6) if chunks else None,
        "gapless": round(sum(not playback.stalls for playback in heard) / len(heard), 4) if heard else None,
        "stall_s": report.summary(stalls),
        "stalled_s": round(sum(stalls), 3),
        "audio_seconds_per_second": round(sum(playback.seconds for playback in heard) / seconds, 4),
    }


def row(found: dict[str, Any]) -> list[Any]:
    """A level as a line of the table."""
    first, factor = found["first_audio_s"], found["real_time_factor"]
    errors = ", ".join(f"{slug} {count}" for slug, count in found["errors"].items())
    times = [first.get("p50"), first.get("p95"), first.get("p99"), found["gap_s"].get("p95")]
    in_time = None if found["in_time"] is None else f"{100 * found['in_time']:.2f}"
    late = [found["chunks"], in_time, found["gapless"], found["stalled_s"]]
    ends = [factor.get("p50"), factor.get("p95"), found["audio_seconds_per_second"]]
    return [found["load"], found["speeches"], errors or 0, *times, *late, *ends]


def scrape(address: str | None) -> dict[str, float]:
    """Return our counters on a server's /metrics, without gauges and buckets."""
    if address is None:
        return {}
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # what is measured has no proxy
    with direct.open(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    lines = re.findall(r"^(voice_clone_\w+(?:_total|_sum|_count)(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in lines}


async def run(url: str, metrics: str | None, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all levels, one after the other."""
    mix = Mix(arguments.hit, arguments.icl, arguments.cancel, arguments.max_frames, arguments.voices)
    levels = [("c", number) for number in arguments.concurrency] + [("r", rate) for rate in arguments.rate]
    found = []
    async with AsyncClient(url, timeout=600.0) as client, _registered(Load(client, mix, arguments.seed)) as load:
        await load.closed(1, arguments.warm_up)
        for kind, amount in levels:
            before, began = scrape(metrics), time.perf_counter()
            outcomes = await speak_level(load, kind, amount, arguments)
            name = f"{amount:g} callers" if kind == "c" else f"{amount:g}/s"
            level = figures(name, outcomes, time.perf_counter() - began)
            after = scrape(metrics)
            deltas = {name: after[name] - before.get(name, 0.0) for name in after if after[name] != before.get(name)}
            found.append({**level, "server": deltas})
            print(report.table(COLUMNS, [row(found[-1])]).splitlines()[-1], file=sys.stderr, flush=True)
    return found


async def speak_level(load: Load, kind: str, amount: float, arguments: argparse.Namespace) -> list[Outcome]:
    """Make the requests of a level: of `amount` callers if the kind is `c`, else `amount` a second."""
    seconds = arguments.seconds
    if kind == "r":
        return await load.open(amount, arguments.requests if seconds is None else max(1, round(amount * seconds)))
    if seconds is None:
        return await load.closed(int(amount), arguments.requests)
    return await load.lasting(int(amount), seconds)


@contextlib.asynccontextmanager
async def _registered(load: Load) -> AsyncIterator[Load]:
    await load.register()
    try:
        yield load
    finally:
        await load.unregister()


@contextlib.contextmanager
def _server(arguments: argparse.Namespace) -> Iterator[tuple[str, str | None]]:
    """Yield the addresses of gRPC and metrics: of the given server, or of one that is started."""
    if arguments.checkpoint is None:
        yield arguments.url, arguments.metrics
        return
    with guard.temporary_folder() as scratch:
        log = scratch / "log"
        with TritonServer(arguments.checkpoint, scratch / "voices", log=log) as server:
            yield f"localhost:{server.grpc_port}", f"localhost:{server.metrics_port}"


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="perf/load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="localhost:8001", help="gRPC endpoint")
    parser.add_argument("--metrics", help="host:port of /metrics, for the server's own counters")
    parser.add_argument("--checkpoint", type=Path, help="start a server with this checkpoint instead")
    parser.add_argument("--concurrency", type=_numbers, default=[], help="callers, one level each: 1,2,4,8")
    parser.add_argument("--rate", type=_numbers, default=[], help="requests a second, one level each: 0.5,1")
    parser.add_argument("--requests", type=int, default=20, help="of each level")
    parser.add_argument("--seconds", type=float, help="that requests are sent for at each level, whatever their number")
    parser.add_argument("--warm-up", type=int, default=2, help="requests before the first level")
    parser.add_argument("--hit", type=float, default=1.0, help="share of requests with a registered voice")
    parser.add_argument("--icl", type=float, default=0.5, help="share of the sent clips that have a transcript")
    parser.add_argument("--cancel", type=float, default=0.0, help="share of requests that the caller closes early")
    parser.add_argument("--voices", type=int, default=4, help="voices to register; 0: the checkpoint's own speak")
    parser.add_argument("--max-frames", type=int, default=100, help="longest speech, in frames")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    arguments = parser.parse_args()
    if not arguments.concurrency and not arguments.rate:
        arguments.concurrency = [1.0]
    with _server(arguments) as (url, metrics):
        found = asyncio.run(run(url, metrics, arguments))
    print(report.table(COLUMNS, [row(level) for level in found]))
    # Only the names of paths: their folders on this machine mean nothing elsewhere.
    given = {name: value.name if isinstance(value, Path) else value for name, value in vars(arguments).items()}
    report.write(arguments.output, {"arguments": given, "levels": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
