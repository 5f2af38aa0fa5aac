"""A stop of the real server, and kill -9 at random moments: acknowledged changes stay, no change is there in part."""

from __future__ import annotations

import hashlib
import random
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.utils
from numpy.typing import NDArray
from safetensors.numpy import load

from tests.support.doubles.fakes import FakeEncoder, Voices, clip
from tests.support.families.factories import CheckpointFactory
from tests.support.servers.cache_calls import Cache
from tests.support.servers.family_models import make_repository
from tests.support.waiting import WAIT, until
from voice_clone.audio import decode
from voice_clone.speakers.disk.files import TEMPORARY
from voice_clone.speakers.encoders import Extraction
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.thorough

NAMES = ("Ada", "Bob", "Cid", "Dee")
SEEDS = 12
Import = tuple[list[str], int]  # the names that it changes, and the clip that they all get


@dataclass(eq=False)
class World:
    """What is killed again and again, and what is known of its voices.

    Attributes:
        start: a server, ready, on the same voices.
        bundle: the export of another server that has these names, each with the clip of this seed.
        same: whether artifacts are those of the clip of this seed.
        states: of each name the seeds of the clips that it may have; None: no such voice.
        saved: names whose artifacts were acknowledged.
    """

    start: Callable[[], TritonServer]
    bundle: Callable[[tuple[str, ...], int], bytes]
    same: Callable[[dict[str, np.ndarray], int], bool]
    states: dict[str, set[int | None]] = field(default_factory=lambda: {name: {None} for name in NAMES})
    saved: set[str] = field(default_factory=set)


class Writer(threading.Thread):
    """Uploads, replaces, prepares and deletes until the server dies; remembers what was acknowledged.

    Each writer has names of its own, so what a name must be afterwards is known: the last acknowledged state, or
    that of the operation under way when the server died.
    """

    def __init__(self, server: TritonServer, names: tuple[str, ...], world: World, rng: random.Random) -> None:
        super().__init__()
        self._cache = Cache(server)
        self._names = names
        self._world, self._states, self._saved = world, world.states, world.saved
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
            self._saved -= set(self._names)
            self._cache("import", audio=self._world.bundle(self._names, seed), options={"replace": True})
            self.importing = None
            for name in self._names:
                self._states[name] = {seed}
            self._saved |= set(self._names)
        elif operation == "upload":
            seed = self._random.randrange(SEEDS)
            self._states[name] = {now, seed}
            self._saved.discard(name)
            wait = self._random.random() < 0.5
            self._cache("upload", name=name, audio=clip(seed), options={"wait": wait, "replace": True})
            self._states[name] = {seed}
            if wait:
                self._saved.add(name)
        elif now is not None and operation == "delete":
            self._states[name] = {now, None}
            self._saved.discard(name)
            self._cache("delete", name=name)
            self._states[name] = {None}
        elif now is not None:
            self._cache("prepare", name=name, options={"force": operation == "force"})
            self._saved.add(name)
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


def cycle(world: World, folder: Path, rng: random.Random, imports: list[Import]) -> int:
    """Start, check everything, work, kill. Returns the operations acknowledged.

    Args:
        imports: those that were under way when the server died; replaced by those of this cycle.
    """
    server = world.start()
    try:
        check(server, folder, world)
        for names, seed in imports:
            assert len({world.states[name] == {seed} for name in names}) <= 1, "an import is there in part"
        writers = [Writer(server, NAMES[i::2], world, random.Random(rng.random())) for i in range(2)]
        for writer in writers:
            writer.start()
        while not any(writer.acknowledged for writer in writers) and all(writer.is_alive() for writer in writers):
            time.sleep(0.001)
        time.sleep(rng.uniform(0.05, 0.4))
        server.kill()
        for writer in writers:
            writer.join(WAIT)
            assert not writer.is_alive()
        imports[:] = [writer.importing for writer in writers if writer.importing is not None]
        return sum(writer.acknowledged for writer in writers)
    finally:
        server.stop()


def check(server: TritonServer, folder: Path, world: World) -> None:
    """Every voice is one that it may be, resolves to the artifacts of its clip, and no other file lies about.

    Artifacts that were acknowledged are those of the disk; nothing is extracted again.
    """
    cache, states = Cache(server), world.states
    listed = {each["name"] for each in cache("list")[0]["speakers"]}
    for name, allowed in states.items():
        if name not in listed:
            assert None in allowed, f"{name} was acknowledged and is gone"
            states[name] = {None}
            continue
        result, artifacts = cache("resolve", name=name)
        assert name not in world.saved or result["status"] == "restored", f"the artifacts of {name} were lost"
        got = load(artifacts)
        fits = [seed for seed in allowed if seed is not None and world.same(got, seed)]
        assert fits, f"{name} is none of {allowed}"
        states[name] = {fits[0]}
    until(lambda: not list((folder / "voices").rglob(f"{TEMPORARY}*")))  # it may store artifacts at the moment
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


def killed(world: World, folder: Path, cycles: int) -> None:
    """Many cycles, and a last check."""
    acknowledged = 0
    imports: list[Import] = []
    rng = random.Random(cycles)
    for _ in range(cycles):
        acknowledged += cycle(world, folder, rng, imports)
    assert acknowledged >= cycles, "the server was always killed before it did anything"
    with world.start() as server:
        check(server, folder, world)
        server.kill()


@pytest.mark.parametrize("cycles", [3, pytest.param(800, marks=pytest.mark.long)])
def test_killed_at_random_moments(tmp_path: Path, cycles: int) -> None:  # B13, B10
    models = make_repository(tmp_path / "models", ("qwen3_tts",))

    def start() -> TritonServer:
        return TritonServer(None, tmp_path / "voices", models=models, log=tmp_path / "log").start()

    killed(World(start, bundle, same), tmp_path, cycles)


@pytest.mark.long
def test_killed_at_random_moments_with_the_real_encoders(checkpoint_folder: CheckpointFactory, tmp_path: Path) -> None:
    checkpoint = checkpoint_folder("tiny", 0)
    encoders = [f"--load-model={name}" for name in ("qwen3_tts_voice_encoder", "speaker_cache")]
    options = ["--model-control-mode=explicit", *encoders]

    def start(voices: str = "voices") -> TritonServer:
        return TritonServer(checkpoint, tmp_path / voices, log=tmp_path / "log", options=options).start()

    bundles: dict[tuple[tuple[str, ...], int], bytes] = {}
    made: dict[int, dict[str, np.ndarray]] = {}
    with start("elsewhere") as server:
        cache = Cache(server)
        for names in (NAMES[0::2], NAMES[1::2]):
            for seed in range(SEEDS):
                for name in names:
                    cache("upload", name=name, audio=clip(seed), options={"wait": True, "replace": True})
                made[seed] = load(cache("resolve", name=names[0])[1])
                bundles[names, seed] = cache("export")[1]
            for name in names:
                cache("delete", name=name)
        cache.close()
        server.kill()
    assert len({each["speaker_embedding"].tobytes() for each in made.values()}) == SEEDS

    def as_made(artifacts: dict[str, np.ndarray], seed: int) -> bool:
        return all(np.array_equal(artifacts[name], array) for name, array in made[seed].items())

    killed(World(start, lambda names, seed: bundles[names, seed], as_made), tmp_path, 200)
