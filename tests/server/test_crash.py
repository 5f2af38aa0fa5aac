"""A stop of the real server, and kill -9 at random moments: acknowledged changes stay, no change is there in part."""

from __future__ import annotations

import hashlib
import random
import tempfile
import threading
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.utils
from numpy.typing import NDArray
from safetensors.numpy import load

from tests.support.cache_calls import Cache
from tests.support.fakes import FakeEncoder, Voices, clip
from tests.support.family_models import make_repository
from tools.triton_server import TritonServer
from voice_clone.audio import decode
from voice_clone.speakers import Extraction

NAMES = ("Ada", "Bob", "Cid", "Dee")
SEEDS = 12
Import = tuple[list[str], int]  # the names that it changes, and the clip that they all get


class Writer(threading.Thread):
    """Uploads, replaces, prepares and deletes until the server dies; remembers what was acknowledged.

    Each writer has names of its own, so what a name must be afterwards is known: the last acknowledged state, or
    that of the operation under way when the server died.
    """

    def __init__(
        self, server: TritonServer, names: tuple[str, ...], states: dict[str, set[int | None]], rng: random.Random
    ) -> None:
        super().__init__()
        self._cache = Cache(server)
        self._names = names
        self._states = states  # seed of the clip; None: no such voice
        self._random = rng
        self.acknowledged = 0
        self.importing: Import | None = None  # the one under way

    def run(self) -> None:
        try:
            while True:
                self._one(self._random.choice(self._names))
        except tritonclient.utils.InferenceServerException as error:
            if "UNAVAILABLE" not in str(error.status()) and "CANCELLED" not in str(error.status()):
                raise

    def _one(self, name: str) -> None:
        [now] = self._states[name]
        operation = self._random.choice(["upload", "upload", "delete", "prepare", "force", "import"])
        if operation == "import":
            seed = self._random.randrange(SEEDS)
            before = {name: self._states[name] for name in self._names}
            for name in self._names:
                self._states[name] = before[name] | {seed}
            self.importing = [name for name in self._names if before[name] != {seed}], seed
            self._cache("import", audio=bundle(self._names, seed))
            self.importing = None
            for name in self._names:
                self._states[name] = {seed}
        elif operation == "upload":
            seed = self._random.randrange(SEEDS)
            self._states[name] = {now, seed}
            self._cache("upload", name=name, audio=clip(seed), options={"wait": self._random.random() < 0.5})
            self._states[name] = {seed}
        elif now is not None and operation == "delete":
            self._states[name] = {now, None}
            self._cache("delete", name=name)
            self._states[name] = {None}
        elif now is not None:
            self._cache("prepare", name=name, options={"force": operation == "force"})
        self.acknowledged += 1


class ServedEncoder(FakeEncoder):
    """Has the fingerprint that speaker_cache makes of the model's answers."""

    def encode(self, model_type: str, waveform: NDArray[np.float32], sample_rate: int, mode: str | None) -> Extraction:
        made = super().encode(model_type, waveform, sample_rate, mode)
        fingerprint = hashlib.sha256(f"fingerprint={made.fingerprint}\n".encode()).hexdigest()
        return Extraction(made.artifacts, fingerprint, made.modes)


@lru_cache(maxsize=64)
def bundle(names: tuple[str, ...], seed: int) -> bytes:
    """The export of another server that has these names, each with the clip `seed`."""
    with tempfile.TemporaryDirectory() as folder:
        source = Voices(Path(folder), ServedEncoder())
        for name in names:
            source.upload(name, seed)
        exported = source.call("export").artifacts
        source.cache.close()
    assert exported is not None
    return exported


def cycle(
    models: Path, folder: Path, states: dict[str, set[int | None]], rng: random.Random, imports: list[Import]
) -> int:
    """Start, check everything, work, kill. Returns the operations acknowledged.

    Args:
        imports: those that were under way when the server died; replaced by those of this cycle.
    """
    server = TritonServer(None, folder / "voices", models=models, log=folder / "log")
    try:
        server.start(60)
        check(server, folder, states)
        for names, seed in imports:
            assert len({states[name] == {seed} for name in names}) <= 1, "an import is there in part"
        writers = [Writer(server, NAMES[i::2], states, random.Random(rng.random())) for i in range(2)]
        for writer in writers:
            writer.start()
        while not any(writer.acknowledged for writer in writers) and all(writer.is_alive() for writer in writers):
            time.sleep(0.001)
        time.sleep(rng.uniform(0.05, 0.4))
        server.kill()
        for writer in writers:
            writer.join(30)
            assert not writer.is_alive()
        imports[:] = [writer.importing for writer in writers if writer.importing is not None]
        return sum(writer.acknowledged for writer in writers)
    finally:
        server.stop()


def check(server: TritonServer, folder: Path, states: dict[str, set[int | None]]) -> None:
    """Every voice is one that it may be, resolves to the artifacts of its clip, and no other file lies about."""
    cache = Cache(server)
    listed = {each["name"] for each in cache("list")[0]["speakers"]}
    for name, allowed in states.items():
        if name not in listed:
            assert None in allowed, f"{name} was acknowledged and is gone"
            states[name] = {None}
            continue
        _, artifacts = cache("resolve", name=name)
        got = load(artifacts)
        fits = [seed for seed in allowed if seed is not None and same(got, seed)]
        assert fits, f"{name} is none of {allowed}"
        states[name] = {fits[0]}
    files = [path.name for path in (folder / "voices").iterdir() if path.is_file()]
    assert not [name for name in files if "temporary" in name], files
    assert not list((folder / "voices").glob("quarantine/*"))
    assert cache("stats")[0]["speakers"] == len([1 for allowed in states.values() if allowed != {None}])
    cache.close()


def same(artifacts: dict[str, np.ndarray], seed: int) -> bool:
    decoded = decode(clip(seed))
    made: dict[str, Any] = dict(
        FakeEncoder().encode("qwen3_tts", decoded.waveform, decoded.sample_rate, "x_vector").artifacts
    )
    return all(np.array_equal(artifacts[name], array) for name, array in made.items())


def test_voices_survive_a_stop(tmp_path: Path) -> None:
    models = make_repository(tmp_path / "models", ("qwen3_tts",))

    def server() -> TritonServer:
        return TritonServer(None, tmp_path / "voices", models=models, log=tmp_path / "log")

    first = server().start()
    cache = Cache(first)
    kept = cache("upload", name="Keeper", audio=clip(1), options={"wait": True})[0]
    cache("upload", name="Gone", audio=clip(2), options={"wait": True})
    cache("delete", name="Gone")
    artifacts = cache("resolve", name="Keeper")[1]
    cache.close()
    assert first.stop() == 0
    with server() as second:
        cache = Cache(second)
        assert [each["name"] for each in cache("list")[0]["speakers"]] == ["Keeper"]
        again, restored = cache("resolve", name="Keeper")
        assert (again["status"], again["generation"]) == ("restored", kept["generation"]) and restored == artifacts
        assert cache("resolve", name="Keeper")[0]["status"] == "hit"
        assert cache("stats")[0]["extractions"] == 0
        assert cache("upload", name="Later", audio=clip(3))[0]["generation"] > kept["generation"]
        cache.close()
        second.kill()


@pytest.mark.parametrize("cycles", [3, pytest.param(200, marks=pytest.mark.long)])
def test_killed_at_random_moments(tmp_path: Path, cycles: int) -> None:  # B13, B10
    models = make_repository(tmp_path / "models", ("qwen3_tts",))
    states: dict[str, set[int | None]] = {name: {None} for name in NAMES}
    acknowledged = 0
    imports: list[Import] = []
    rng = random.Random(cycles)
    for _ in range(cycles):
        acknowledged += cycle(models, tmp_path, states, rng, imports)
    assert acknowledged >= cycles, "the server was always killed before it did anything"
    server = TritonServer(None, tmp_path / "voices", models=models, log=tmp_path / "log")
    with server:
        check(server, tmp_path, states)
        server.kill()
