"""Writers, readers and speakers on the real server: no reply, no sound is of a voice that was not there at the time."""

from __future__ import annotations

import io
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tritonclient.utils
from voice_clone_client import Client, VoiceNotFound

from tests.support.doubles.fakes import RATE, clip
from tests.support.same_audio import is_same_audio
from tests.support.servers.cache_calls import Cache
from tests.support.servers.family_models import make_repository
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

NAMES = [f"voice {number}" for number in range(20)]
WRITERS, READERS, CLIPS = 8, 16, 10
FOREVER = float("inf")
Going = Callable[[], bool]


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


def write(cache: Cache, history: History, names: list[str], rng: random.Random, going: Going) -> None:
    there: set[str] = set()
    while going():
        name, began, kind = rng.choice(names), time.monotonic(), rng.random()
        try:
            if kind < 0.5 or name not in there:
                seed = rng.randrange(CLIPS)
                options = {"wait": rng.random() < 0.5, "replace": True}
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


def read(cache: Cache, history: History, rng: random.Random, going: Going) -> None:
    while going():
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
        end = time.monotonic() + seconds

        def going() -> bool:
            """Longer than that where it goes slowly."""
            return time.monotonic() < end or (len(history.reads) <= 50 * seconds and not history.errors)

        caches = [Cache(server) for _ in range(WRITERS + READERS)]
        threads = [
            threading.Thread(target=write, args=(caches[n], history, NAMES[n::WRITERS], random.Random(n), going))
            for n in range(WRITERS)
        ]
        threads += [
            threading.Thread(target=read, args=(caches[WRITERS + n], history, random.Random(100 + n), going))
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


SPOKEN = NAMES[:3]
TEXTS = [None, "These are the words of the clip."]  # of a clip: the two modes of its voices
SPEAKERS = 4


@lru_cache
def chord(seed: int) -> bytes:
    """A WAV file of a few tones: the embeddings of noise hardly differ."""
    draw, at = np.random.default_rng(seed), np.arange(19_200) / RATE
    tones = [np.sin(2 * np.pi * pitch * at) for pitch in draw.uniform(100, 3000, 5)]
    file = io.BytesIO()
    samples = draw.uniform(0.05, 0.15, 5) @ tones + draw.normal(0.0, 0.01, at.size)
    soundfile.write(file, samples, RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


def say(client: Client, name: str) -> tuple[np.ndarray, int]:
    """Samples of a short speech, and the generation of the voice that spoke."""
    speech = client.speak("Good evening.", voice=name, seed=5, max_frames=6)
    samples, _ = speech.read()
    return samples, int(dict(speech.info or {})["generation"])


def cycle(client: Client, history: History, name: str, cycles: int, rng: random.Random) -> None:
    """Upload a voice again and again, with another clip and mode each time; mostly delete it before."""
    there = False
    for _ in range(cycles):
        began = time.monotonic()
        if there and rng.random() < 0.8:
            client.delete(name)
            history.change(name, None, None, began)
            with pytest.raises(VoiceNotFound):
                say(client, name)
        seed, began = rng.randrange(CLIPS), time.monotonic()
        words = TEXTS[seed % len(TEXTS)]
        voice = client.upload(name, chord(seed), reference_text=words, wait=rng.random() < 0.3, replace=True)
        history.change(name, voice.generation, seed, began)
        there = True
        assert say(client, name)[1] == voice.generation, "not the voice that was just acknowledged"


@pytest.mark.parametrize("cycles", [30, pytest.param(1000, marks=pytest.mark.long)])
def test_speech_beside_deletions_and_uploads_is_in_the_voice_of_its_time(server: TritonServer, cycles: int) -> None:
    history, done = History(), threading.Event()
    spoken: list[tuple[str, int, np.ndarray, float, float]] = []

    def keep_cycling(number: int) -> None:
        try:
            with Client(server.url) as client:
                share = cycles // len(SPOKEN)
                cycle(client, history, SPOKEN[number], share, random.Random(number))
        except BaseException as error:
            history.errors.append(error)

    def keep_speaking(number: int) -> None:
        rng = random.Random(100 + number)
        with Client(server.url) as client:
            while not done.is_set():
                name, began = rng.choice(SPOKEN), time.monotonic()
                try:
                    samples, generation = say(client, name)
                except VoiceNotFound:
                    continue
                except BaseException as error:
                    history.errors.append(error)
                    return
                spoken.append((name, generation, samples, began, time.monotonic()))

    with Client(server.url) as client:
        sounds = {}
        for seed in range(CLIPS):
            client.upload("Sound", chord(seed), reference_text=TEXTS[seed % len(TEXTS)], wait=True, replace=True)
            sounds[seed] = say(client, "Sound")[0]
        client.delete("Sound")
        alike = [(a, b) for a in sounds for b in sounds if a < b and is_same_audio(sounds[a], sounds[b])]
        assert not alike, "the clips sound alike, which would prove nothing"
        writers = [threading.Thread(target=keep_cycling, args=(number,)) for number in range(len(SPOKEN))]
        speakers = [threading.Thread(target=keep_speaking, args=(number,)) for number in range(SPEAKERS)]
        for thread in writers + speakers:
            thread.start()
        for thread in writers:
            thread.join()
        done.set()
        for thread in speakers:
            thread.join()
        assert history.errors == [], history.errors[0]
        there = {voice.name: voice.generation for voice in client.list()}
        for name in SPOKEN:
            assert there[name] == max(history.lives[name]), "what was acknowledged last is not there"
            client.delete(name)
    assert len(spoken) > cycles // 3
    for name, generation, samples, began, ended in spoken:
        life = history.lives[name][generation]
        assert life.since <= ended and began <= life.until, "not live during the speech"
        assert is_same_audio(samples, sounds[life.seed]), "another voice"
