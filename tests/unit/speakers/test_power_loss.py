"""The power goes at any moment: every acknowledged voice is there with its artifacts, and nothing else is.

The directory lies on a disk that forgets what was not synced. Now and then it is only the process that dies; what the
next one tells of the voices is then as good as acknowledged.
"""

from __future__ import annotations

import hashlib
import logging
import random
import shutil
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest

from tests.support.doubles.crash_worker import NAMES, bundle
from tests.support.doubles.fakes import FakeEncoder, Voices, clip
from tests.support.doubles.forgetful_disk import ForgetfulDisk
from voice_clone.audio import decode
from voice_clone.errors import Internal, SpeakerNotFound, VoiceCloneError
from voice_clone.speakers.encoders import pack_artifacts
from voice_clone.speakers.name import parse_name

SEEDS = 8
OTHER = "voxcpm2"  # a family whose artifacts are amended
FOREVER = 1 << 40
OPERATIONS = {"upload": 6, "import": 2, "delete": 3, "force": 2, "amend": 3, "spoil": 2}


@dataclass(frozen=True)
class Held:
    """A voice that was acknowledged: its generation, the seed of its clip, the families whose artifacts are saved."""

    generation: int
    seed: int
    families: frozenset[str] = frozenset({"qwen3_tts"})
    spoilt: bool = False  # the clip in its file


@dataclass(frozen=True)
class Operation:
    """The one under way when the disk went."""

    kind: str
    name: str
    seed: int


@dataclass
class Machine:
    """A machine, what its callers know, and what they may find after a loss of power.

    Attributes:
        skips: as of `ForgetfulDisk`.
        voices: of each name; None: no such voice.
        set_aside: names of which quarantine holds a file.
        purging: those of which it may hold one, or not.
        newest: the largest generation that was reported.
        acknowledged: operations.
    """

    folder: Path
    rng: random.Random
    skips: str | None = None
    voices: dict[str, Held | None] = field(default_factory=lambda: dict.fromkeys(NAMES))
    set_aside: set[str] = field(default_factory=set)
    purging: set[str] = field(default_factory=set)
    newest: int = 0
    acknowledged: int = 0
    _roots: int = 0

    def __post_init__(self) -> None:
        self._disk = ForgetfulDisk(self._new_root(), self.rng, self._moment(), self.skips)

    def live(self) -> None:
        """Work until the disk goes, then find out what is left."""
        doubt = self._work()
        while self.rng.random() < 0.3:  # first the process dies, perhaps again while it starts
            if self.rng.random() < 0.5:
                self._start_and_die()
                continue
            self._disk.revive(FOREVER)
            voices = self._open()
            self._check(voices, doubt)
            self._disk.revive(self._moment())
            doubt = self._work(voices)
        self._lose_power()
        while self.rng.random() < 0.3:  # once more, while it starts
            self._start_and_die()
            self._lose_power()
        self._disk.revive(FOREVER)
        voices = self._open()
        self._check(voices, doubt)
        assert voices.upload("New", 0)["generation"] > self.newest
        self.newest = voices.call("delete", name="New").result["generation"]
        voices.cache.close()
        self._disk.revive(self._moment())

    def _start_and_die(self) -> None:
        self._disk.revive(self.rng.randrange(1, 12))
        try:
            self._open().cache.close()
        except VoiceCloneError:
            assert self._disk.dead

    def _moment(self) -> int:
        return self.rng.choice([self.rng.randrange(1, 12), self.rng.randrange(1, 80)])

    def _new_root(self) -> Path:
        self._root = self.folder / str(self._roots)
        self._roots += 1
        self._root.mkdir()
        return self._root

    def _lose_power(self) -> None:
        old = self._root
        self._disk.after_loss(self._new_root())
        self._disk = ForgetfulDisk(self._root, self.rng, FOREVER, self.skips)
        shutil.rmtree(old)

    def _open(self) -> Voices:
        return Voices(self._root / "data" / "voices", FakeEncoder(), self._disk)

    def _work(self, voices: Voices | None = None) -> Operation | None:
        """Operations until the disk goes; the one that was under way."""
        try:
            voices = voices or self._open()
        except VoiceCloneError:
            assert self._disk.dead
            return None
        try:
            while not self._disk.dead:
                kind = self.rng.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
                operation = Operation(kind, self.rng.choice(NAMES), self.rng.randrange(SEEDS))
                try:
                    self._do(voices, operation)
                    self.acknowledged += 1
                except VoiceCloneError:
                    if not self._disk.dead:
                        raise
                    return operation
            return None
        finally:
            voices.cache.close()

    def _do(self, voices: Voices, operation: Operation) -> None:
        """One operation, and what its answer promises."""
        kind, name, seed = operation.kind, operation.name, operation.seed
        held = self.voices[name]
        if kind == "upload":
            found = voices.upload(name, seed, replace=True)
            # They are written after the voice. If the disk went meanwhile, that write may be one it did not confirm.
            ready = {each["model_type"] for each in found["artifacts"] if each["state"] == "ready"}
            saved = set() if self._disk.dead else ready
            self._replaced(name, Held(found["generation"], seed, frozenset(saved)))
        elif kind == "import":
            for each in voices.call("import", {"replace": True}, audio=bundle(seed)).result["speakers"]:
                self._replaced(each["name"], Held(each["generation"], seed))
        elif kind == "delete":
            try:
                voices.call("delete", name=name)
                assert held is not None
            except SpeakerNotFound:
                assert held is None
            self._now(name, None)
            self.set_aside.discard(name)
        elif held is None:
            with pytest.raises(SpeakerNotFound):
                voices.call("prepare", name=name)
        elif kind == "spoil" or held.spoilt:
            if not held.spoilt:
                self.voices[name] = replace(held, spoilt=True)
                self._disk.spoil(self._file(name), clip(held.seed))
            with pytest.raises(Internal) as raised:
                voices.call("prepare", {"force": True}, name=name)
            if self._disk.dead:
                raise raised.value
            if not held.families - {"qwen3_tts"}:  # else there is something left to speak with
                self._now(name, None)
                self.set_aside.add(name)
        elif kind == "force":
            found = voices.call("prepare", {"force": True}, name=name).result
            self._now(name, replace(held, generation=found["generation"]))
        else:
            voices.call("prepare", name=name, model_type=OTHER)
            self._now(name, replace(held, families=held.families | {OTHER}))

    def _replaced(self, name: str, held: Held) -> None:
        """A voice is written; if it replaces another, then what was set aside of its name goes, where the disk can."""
        if self.voices[name] is not None:
            (self.purging.add if self._disk.dead else self.set_aside.discard)(name)
        self._now(name, held)

    def _now(self, name: str, held: Held | None) -> None:
        self.voices[name] = held
        self.newest = max(self.newest, 0 if held is None else held.generation)

    def _file(self, name: str) -> Path:
        key = hashlib.sha256(parse_name(name).key.encode()).hexdigest()
        return self._root / "data" / "voices" / "voices" / f"{key}.safetensors"

    def _check(self, voices: Voices, doubt: Operation | None) -> None:
        """Compare what is there with what was acknowledged; what is there is what callers know from now on."""
        listed = {each["name"]: each["generation"] for each in voices.call("list").result["speakers"]}
        doubtful = () if doubt is None else NAMES if doubt.kind == "import" else (doubt.name,)
        changed = {name: self._check_one(voices, name, listed, doubt, name in doubtful) for name in NAMES}
        if doubt is not None and doubt.kind == "import":
            assert len(set(changed.values())) == 1, "an import is there in part"
        assert set(listed) <= set(NAMES)
        folder = self._root / "data" / "voices"
        there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        there -= {"lock", "generation"}
        aside = {name for name in NAMES if any(self._file(name).name in each for each in there if "quarantine" in each)}
        unknown = self.purging | set(doubtful)
        assert aside - unknown == self.set_aside - unknown, "quarantine is not what it was"
        assert len(there) == len(listed) + sum(each.startswith("quarantine/") for each in there), there
        self.set_aside, self.purging = aside, set()

    def _check_one(
        self, voices: Voices, name: str, listed: dict[str, int], doubt: Operation | None, doubtful: bool
    ) -> bool:
        """Whether the operation in doubt was done to this voice."""
        held = self.voices[name]
        before = voices.encoder.extractions
        if held is not None and listed.get(name) == held.generation:
            families = set(held.families)
            for family in held.families:
                assert voices.resolve(name, family).artifacts == made_of(held.seed, family)
            assert voices.encoder.extractions == before, "acknowledged artifacts are lost"
            if doubtful and doubt is not None and doubt.kind == "amend" and not held.spoilt:
                families.add(OTHER)  # there now, whether they were or not
                voices.call("prepare", name=name, model_type=OTHER)
            self.voices[name] = replace(held, families=frozenset(families))
            return False
        if held is None and name not in listed:
            return False
        assert doubtful and doubt is not None, f"{name} is not what was acknowledged"
        if name not in listed:
            assert doubt.kind == "delete" or (held and held.spoilt), "an acknowledged voice is lost"
            self.voices[name] = None
            return True
        assert doubt.kind in ("upload", "import", "force") and listed[name] > (0 if held is None else held.generation)
        assert doubt.kind != "force" or held is not None
        seed = held.seed if doubt.kind == "force" and held is not None else doubt.seed
        assert voices.resolve(name).artifacts == made_of(seed, "qwen3_tts")
        speaks = held is not None and bool(held.families)
        if speaks or doubt.kind == "import":  # one that replaces another that can speak comes with its artifacts
            assert voices.encoder.extractions == before
        voices.call("prepare", name=name)  # saves them, where they were not
        kept = held.families if doubt.kind == "force" and held is not None else frozenset({"qwen3_tts"})
        self._now(name, Held(listed[name], seed, kept))
        return True


@cache
def made_of(seed: int, family: str) -> bytes:
    """The artifacts of a clip."""
    mode = "x_vector" if family == "qwen3_tts" else "reference"
    decoded = decode(clip(seed))
    return pack_artifacts(FakeEncoder().encode(family, decoded.waveform, decoded.sample_rate, mode).artifacts)


LIVES = 4  # of a machine


def run(folder: Path, losses: int, skips: str | None = None) -> int:
    """Many losses of power; the operations that were acknowledged between them."""
    acknowledged = 0
    for seed in range(losses // LIVES):
        own = folder / str(seed)
        own.mkdir()
        machine = Machine(own, random.Random(seed), skips)
        for life in range(LIVES):
            try:
                machine.live()
            except (AssertionError, VoiceCloneError) as error:
                raise AssertionError(f"seed {seed}, life {life}: {error}") from error
        acknowledged += machine.acknowledged
        shutil.rmtree(own)
    return acknowledged


@pytest.fixture(autouse=True)
def silent(caplog: pytest.LogCaptureFixture) -> None:
    """Each operation that fails is logged."""
    caplog.set_level(logging.CRITICAL, "voice_clone")


@pytest.mark.parametrize(
    "losses",
    [
        80,
        pytest.param(200, marks=pytest.mark.thorough),
        pytest.param(10_000, marks=pytest.mark.long),
    ],
)
def test_every_acknowledged_voice_survives_and_nothing_else(tmp_path: Path, losses: int) -> None:
    assert run(tmp_path, losses) > 3 * losses, "the power went before anything was done"


@pytest.mark.parametrize(
    "skips", [ForgetfulDisk.FILES, ".", "data", "data/voices", "data/voices/voices", "data/voices/quarantine"]
)
def test_each_sync_is_needed(tmp_path: Path, skips: str) -> None:
    """Without one of them, voices are lost: this test would see it."""
    with pytest.raises(AssertionError, match="seed"):
        run(tmp_path, 400, skips)
