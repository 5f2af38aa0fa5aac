"""Voices in a directory against voices in PostgreSQL: what a look into each costs, and many voices in each.

    warm resolve   milliseconds of a voice that is in memory, through gRPC on the real server, by one caller and by
                   eight; the two servers take turns, so a slow moment of the machine affects both
    many voices    `--voices` are registered, 4 KB each, then a server starts: seconds until speaker_cache is ready,
                   its memory, milliseconds of a page of 1000 voices of the list, and of the first `resolve` of a voice

PostgreSQL is Debian's, started here on this machine with `fsync` on. The encoders are made up and take no time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf import report
from tests.support.cache_calls import Cache
from tests.support.fakes import FakeEncoder, Voices, clip
from tests.support.family_models import make_repository
from tests.support.postgres import PostgresServer, running_postgres
from tests.support.server_processes import process_of
from tools import guard
from tools.triton_server import TritonServer
from voice_clone.speakers.encoding import Extraction

STORES = ("files", "PostgreSQL")
EMBEDDING = 1024  # numbers of a voice
WRITERS = 16
PAGE = 1000


class AsOnServer(FakeEncoder):
    """The made-up encoder with the fingerprint that it has behind Triton."""

    def __init__(self, fingerprint: str) -> None:
        super().__init__()
        self._fingerprint = fingerprint

    def encode(self, model_type: str, waveform: NDArray[np.float32], sample_rate: int, mode: str | None) -> Extraction:
        return replace(super().encode(model_type, waveform, sample_rate, mode), fingerprint=self._fingerprint)


class Place:
    """Where one of the two keeps its voices.

    Args:
        dsn: of a database; None: a directory.
    """

    def __init__(self, folder: Path, models: Path, dsn: str | None, most: int) -> None:
        self.folder, self.models, self.dsn, self.most = folder, models, dsn, most
        folder.mkdir()

    def server(self) -> TritonServer:
        """A server of the cache alone, not started."""
        environment = {"VOICE_CLONE_MAX_SPEAKERS": str(self.most)}
        if self.dsn is not None:
            environment["VOICE_CLONE_VOICE_STORE"] = self.dsn
        return TritonServer(
            None, self.folder / "voices", models=self.models, log=self.folder / "log", environment=environment
        )

    def fill(self, voices: int, fingerprint: str) -> float:
        """Register voices by their embeddings, made by the encoder of this fingerprint. Returns: how many a second."""
        cache = Voices(self.folder / "voices", AsOnServer(fingerprint), dsn=self.dsn, max_speakers=self.most)
        began = time.perf_counter()

        def register(number: int) -> None:
            embedding = np.random.default_rng(number).standard_normal(EMBEDDING).astype(np.float32)
            cache.call("upload", name=f"Voice {number:06d}", speaker_embedding=embedding)

        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(register, range(voices)))
        cache.cache.close()
        return voices / (time.perf_counter() - began)


@contextlib.contextmanager
def places(scratch: Path, most: int) -> Iterator[dict[str, Place]]:
    models = make_repository(scratch / "models", ("qwen3_tts",))
    with running_postgres(fsync="on", full_page_writes="on") as database:
        assert isinstance(database, PostgresServer)
        dsns = {"files": None, "PostgreSQL": database.create_database("voices")}
        yield {name: Place(scratch / name, models, dsn, most) for name, dsn in dsns.items()}


def warm(found: dict[str, Place], calls: int, turns: int) -> dict[str, Any]:
    """Warm resolves of both, in turns."""
    figures: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(place.server()) for name, place in found.items()}
        for callers in (1, 8):
            spent: dict[str, list[float]] = {name: [] for name in servers}
            caches = {name: [Cache(server) for _ in range(callers)] for name, server in servers.items()}
            for each in caches.values():
                each[0]("upload", name="Warm", audio=clip(1), options={"wait": True})
                each[0]("resolve", name="Warm")
            with ThreadPoolExecutor(callers) as pool:
                for _ in range(turns):
                    for name, each in caches.items():
                        parts = pool.map(resolve_often, each, [calls // turns // callers] * callers)
                        spent[name] += [ms for part in parts for ms in part]
            for each in caches.values():
                for cache in each:
                    cache.close()
            figures[str(callers)] = {name: report.summary(times) for name, times in spent.items()}
        for server in servers.values():
            cache = Cache(server)
            cache("delete", name="Warm")
            cache.close()
    return figures


def resolve_often(cache: Cache, calls: int) -> list[float]:
    """Milliseconds of each."""
    spent = []
    for _ in range(calls):
        began = time.perf_counter()
        cache("resolve", name="Warm")
        spent.append(1e3 * (time.perf_counter() - began))
    return spent


def many(place: Place, voices: int) -> dict[str, Any]:
    """A server in front of many voices."""
    with place.server() as server:
        cache = Cache(server)
        cache("upload", name="Warm", audio=clip(1), options={"wait": True})
        fingerprint = cache("resolve", name="Warm")[0]["fingerprint"]
        cache("delete", name="Warm")
        cache.close()
    figures: dict[str, Any] = {"registered a second": place.fill(voices, fingerprint)}
    with place.server() as server:
        lines = [line for line in (place.folder / "log").read_text().splitlines() if "speaker_cache" in line]
        began, ready = ([line for line in lines if mark in line][-1] for mark in ("loading:", "uccessfully"))
        figures["seconds until ready"] = clock(ready) - clock(began)
        figures["memory, MB"] = resident(process_of("speaker_cache", server))
        cache = Cache(server)
        assert cache("stats")[0]["speakers"] == voices
        pages = []
        after = f"Voice {voices // 2:06d}"
        for _ in range(20):
            started = time.perf_counter()
            assert cache("list", options={"limit": PAGE, "after": after})[0]["count"] == PAGE
            pages.append(1e3 * (time.perf_counter() - started))
        figures["a page of the list, ms"] = report.summary(pages)["p50"]
        restored = []
        for number in np.random.default_rng(0).permutation(voices)[:500]:
            started = time.perf_counter()
            assert cache("resolve", name=f"Voice {number:06d}")[0]["status"] == "restored"
            restored.append(1e3 * (time.perf_counter() - started))
        figures["first resolve, ms"] = report.summary(restored)["p50"]
        figures["memory then, MB"] = resident(process_of("speaker_cache", server))
        cache.close()
    return figures


def clock(line: str) -> float:
    """Seconds of the day, of a line of Triton's log."""
    return sum(float(part) * unit for part, unit in zip(line.split()[1].split(":"), (3600.0, 60.0, 1.0), strict=True))


def resident(pid: int) -> float:
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="perf/voice_store", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--voices", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=4000, help="warm resolves of each store")
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    given = parser.parse_args()
    with guard.temporary_folder() as scratch, places(scratch, given.voices + 100) as found:
        resolves = warm(found, given.calls, turns=10)
        rows = [
            [f"{name}, {callers} caller(s)", *(times[figure] for figure in ("p50", "p95", "p99"))]
            for callers, both in resolves.items()
            for name, times in both.items()
        ]
        print(report.table(("warm resolve, ms", "p50", "p95", "p99"), rows), flush=True)
        crowds = {name: many(place, given.voices) for name, place in found.items()}
    rows = [[figure, *(crowds[name][figure] for name in STORES)] for figure in crowds["files"]]
    print(f"\n{report.table((f'{given.voices} voices', *STORES), rows)}")
    report.write(given.output, {"machine": report.machine(), "warm resolve": resolves, "many voices": crowds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
