"""Eight writers and sixteen readers on the real server: no reply is of a voice that was not there at the time."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import tritonclient.utils

from tests.support.cache_calls import Cache
from tests.support.fakes import clip
from tests.support.family_models import make_repository
from tools.triton_server import TritonServer

NAMES = [f"voice {number}" for number in range(20)]
WRITERS, READERS, CLIPS = 8, 16, 10
FOREVER = float("inf")


@dataclass
class Life:
    """A generation, from when it may have been there until when it may have been there, and its clip."""

    seed: int
    since: float
    until: float = FOREVER


@dataclass
class History:
    """Each writer has names of its own, so the lives of a name's generations follow each other."""

    lives: dict[str, dict[int, Life]] = field(default_factory=lambda: {name: {} for name in NAMES})
    reads: list[tuple[str, int, bytes, float, float]] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def change(self, name: str, generation: int | None, seed: int | None, began: float) -> None:
        """A new generation, or (None) a deletion, was acknowledged just now."""
        now = time.monotonic()
        lives = self.lives[name]
        for life in lives.values():
            if life.until == FOREVER:
                life.until = now
                seed = life.seed if seed is None else seed
        if generation is not None:
            assert seed is not None
            lives[generation] = Life(seed, began)


def write(cache: Cache, history: History, names: list[str], rng: random.Random, until: float) -> None:
    there: set[str] = set()
    while time.monotonic() < until:
        name, began, kind = rng.choice(names), time.monotonic(), rng.random()
        try:
            if kind < 0.5 or name not in there:
                seed = rng.randrange(CLIPS)
                options = {"wait": rng.random() < 0.5}
                made = cache("upload", name=name, audio=clip(seed), options=options)[0]["generation"]
                history.change(name, made, seed, began)
                there.add(name)
            elif kind < 0.7:
                cache("delete", name=name)
                history.change(name, None, None, began)
                there.discard(name)
            else:
                force = kind > 0.9
                made = cache("prepare", name=name, options={"force": force})[0]["generation"]
                if force:
                    history.change(name, made, None, began)
        except BaseException as error:
            history.errors.append(error)


def read(cache: Cache, history: History, rng: random.Random, until: float) -> None:
    while time.monotonic() < until:
        name, began = rng.choice(NAMES), time.monotonic()
        try:
            result, artifacts = cache("resolve", name=name)
        except tritonclient.utils.InferenceServerException as error:
            if error.status() != "StatusCode.NOT_FOUND":
                history.errors.append(error)
            continue
        history.reads.append((name, result["generation"], artifacts, began, time.monotonic()))


@pytest.mark.parametrize("seconds", [4.0, pytest.param(60.0, marks=pytest.mark.long)])
def test_writers_and_readers(tmp_path: Path, seconds: float) -> None:  # C6, B10
    models = make_repository(tmp_path / "models", ("qwen3_tts",))
    history = History()
    with TritonServer(None, tmp_path / "voices", models=models, log=tmp_path / "log") as server:
        until = time.monotonic() + seconds
        caches = [Cache(server) for _ in range(WRITERS + READERS)]
        threads = [
            threading.Thread(target=write, args=(caches[n], history, NAMES[n::WRITERS], random.Random(n), until))
            for n in range(WRITERS)
        ]
        threads += [
            threading.Thread(target=read, args=(caches[WRITERS + n], history, random.Random(100 + n), until))
            for n in range(READERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert history.errors == [], history.errors[0]
        stats = caches[0]("stats")[0]
        newest = caches[0]("upload", name="last", audio=clip(0), options={"wait": True})[0]["generation"]
        by_clip = {}
        for seed in range(CLIPS):
            by_clip[seed] = caches[0]("resolve", audio=clip(seed), options={"mode": "x_vector"})[1]
        for cache in caches:
            cache.close()
        server.kill()
    assert stats["extractions"] <= newest and stats["extraction_failures"] == 0
    assert len(history.reads) > 50 * seconds
    for name, generation, artifacts, began, ended in history.reads:
        life = history.lives[name][generation]
        assert life.since <= ended and began <= life.until, "not live during the request"
        assert artifacts == by_clip[life.seed], "another voice"
