"""An encoder of several families in this process, clips to feed it, and a cache on top."""

from __future__ import annotations

import hashlib
import io
import threading
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import soundfile
from numpy.typing import NDArray
from psycopg.conninfo import make_conninfo

from voice_clone.audio import decode
from voice_clone.errors import Unsupported
from voice_clone.speakers.cache import SpeakerCache
from voice_clone.speakers.config import CacheConfig
from voice_clone.speakers.disk.files import Files
from voice_clone.speakers.disk.store import FileStore
from voice_clone.speakers.encoders import Extraction, pack_artifacts
from voice_clone.speakers.operations import Reply
from voice_clone.speakers.parsing import parse
from voice_clone.speakers.postgres.sessions import checked_address
from voice_clone.speakers.postgres.store import PostgresStore
from voice_clone.speakers.store import Store

RATE = 16_000
TIMEOUT = 20.0  # seconds for the database: the machine may be busy
Array = NDArray[Any]
# Artifacts by family and mode: name -> (type, shape). "t" stands for frames, at the family's rate a second.
FAMILIES: dict[str, tuple[float, dict[str, dict[str, tuple[str, tuple[int | str, ...]]]]]] = {
    "qwen3_tts": (
        12.5,
        {
            "icl": {"speaker_embedding": ("float32", (1024,)), "codec_codes": ("int32", ("t", 16))},
            "x_vector": {"speaker_embedding": ("float32", (1024,)), "codec_codes": ("int32", (0, 16))},
        },
    ),
    "fish_speech": (44100 / 2048, {"icl": {"ref_codes_fq": ("int64", ("t", 10)), "n_frames": ("int32", ())}}),
    "cosyvoice3": (
        25.0,
        {
            "icl": {
                "speech_feat": ("float32", (1, "2t", 80)),
                "speech_token": ("int32", (1, "t")),
                "speech_token_len": ("int32", (1,)),
                "embedding": ("float32", (1, 192)),
            }
        },
    ),
    "voxcpm2": (
        6.25,
        {
            "reference": {"ref_audio_feat": ("float32", ("t", 4, 64))},
            "continuation": {"ref_audio_feat": ("float32", ("t", 4, 64)), "audio_feat": ("float32", ("t", 4, 64))},
        },
    ),
    "omnivoice": (25.0, {"icl": {"ref_audio_tokens": ("int64", (8, "t")), "ref_rms": ("float32", ())}}),
    "voxtral": (12.5, {"x_vector": {"codes": ("int16", ("t", 37)), "voice_embedding": ("float16", ("t", 3072))}}),
}
# What each mode needs of a voice, the best mode first.
MODES: dict[str, dict[str, list[str]]] = {
    "qwen3_tts": {"icl": ["reference_text"], "x_vector": []},
    "fish_speech": {"icl": ["reference_text"]},
    "cosyvoice3": {"icl": ["reference_text"]},
    "voxcpm2": {"continuation": ["reference_text"], "reference": []},
    "omnivoice": {"icl": ["reference_text"]},
    "voxtral": {"x_vector": []},
}


class FakeEncoder:
    """Makes artifacts that depend on every sample of the clip, and counts what it is asked.

    Attributes:
        calls: extractions by model type and mode.
        describes: describe calls by model type and mode; None where the modes alone are asked for.
        during: called in the middle of each extraction.
        declares: the modes that the encoders declare; a family that is not in it declares none.
        presets: the voices that checkpoints bring, by family.
    """

    def __init__(self, checkpoint: str = "a", during: Callable[[], object] | None = None) -> None:
        self.checkpoint = checkpoint
        self.during = during
        self.calls: Counter[tuple[str, str | None]] = Counter()
        self.describes: Counter[tuple[str, str | None]] = Counter()
        self.declares = dict(MODES)
        self.presets: dict[str, tuple[str, ...]] = {}
        self._lock = threading.Lock()

    @property
    def extractions(self) -> int:
        return sum(self.calls.values())

    def encode(self, model_type: str, waveform: NDArray[np.float32], sample_rate: int, mode: str | None) -> Extraction:
        rate, modes = FAMILIES.get(model_type, (0.0, {}))
        if mode not in modes and (mode is not None or not modes or waveform.size):
            raise Unsupported(f"no encoder of {model_type} in mode {mode} is loaded")
        fingerprint = hashlib.sha256(f"{model_type} {self.checkpoint}".encode()).hexdigest()
        with self._lock:
            (self.calls if waveform.size else self.describes)[model_type, mode] += 1
        if waveform.size and self.during is not None:
            self.during()
        declared = self.declares.get(model_type)
        if mode is None:
            return Extraction({}, fingerprint, declared, presets=self.presets.get(model_type, ()))
        frames = int(np.ceil(waveform.size / sample_rate * rate))
        seed = hashlib.sha256(waveform.tobytes() + f"{sample_rate} {mode} {fingerprint}".encode()).digest()
        rng = np.random.default_rng(np.frombuffer(seed, np.uint32))
        artifacts = {}
        for name, (dtype, shape) in modes[mode].items():
            named = {"t": frames, "2t": 2 * frames}
            sizes = [named[size] if isinstance(size, str) else size for size in shape]
            array = np.asarray(rng.integers(0, 1000, sizes))
            artifacts[name] = array.astype(dtype) if waveform.size else np.zeros(sizes, dtype)
        return Extraction(artifacts, fingerprint, declared, presets=self.presets.get(model_type, ()))


@lru_cache(maxsize=512)
def clip(seed: int = 0, seconds: float = 1.0, rate: int = RATE) -> bytes:
    """A WAV file of noise, another one for every seed."""
    samples = np.random.default_rng(seed).uniform(-0.5, 0.5, int(seconds * rate))
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="PCM_16")
    return file.getvalue()


class Voices:
    """A speaker cache under test; `restart` closes it and starts another on the same store.

    Args:
        directory: of the voices; unused with `dsn`.
        dsn: of a database that holds them instead.
        config: of `CacheConfig`, the families of uploads (`defaults`), and what the store takes.
    """

    def __init__(
        self, directory: Path, encoder: Any = None, files: Files | None = None, dsn: str | None = None, **config: Any
    ) -> None:
        self.directory = directory
        self.dsn = dsn
        self.encoder = encoder or FakeEncoder()
        self._of_store = {name: config.pop(name) for name in ("wait", "stale_seconds", "timeout") if name in config}
        self._config = config
        self.defaults: tuple[str, ...] = config.pop("defaults", ("qwen3_tts",))
        self.cache = self._open(files)

    def _open(self, files: Files | None = None) -> SpeakerCache:
        store: Store
        if self.dsn is None:
            store = FileStore(self.directory, files, **self._of_store)
        else:
            given = {"timeout": TIMEOUT, **self._of_store}
            address = make_conninfo(checked_address(self.dsn), connect_timeout=max(2, int(given["timeout"])))
            store = PostgresStore(address, **given)
        return SpeakerCache(store, self.encoder, CacheConfig(**self._config), lambda: self.defaults)

    def restart(self, encoder: Any = None, files: Files | None = None, **config: Any) -> None:
        self.cache.close()
        self.encoder = encoder or FakeEncoder()
        self._config |= config
        self.cache = self._open(files)

    def call(self, operation: str, options: dict[str, Any] | None = None, **fields: Any) -> Reply:
        return self.cache.call(parse(operation, fields, options or {}))

    def upload(
        self, name: str = "Ada", seed: int = 0, wait: bool = True, replace: bool = False, **fields: Any
    ) -> dict[str, Any]:
        fields.setdefault("audio", clip(seed))
        return self.call("upload", {"wait": wait, "replace": replace}, name=name, **fields).result

    def resolve(self, name: str = "Ada", model_type: str = "qwen3_tts", **options: Any) -> Reply:
        return self.call("resolve", options, name=name, model_type=model_type)

    def get(self, name: str = "Ada") -> dict[str, Any]:
        return self.call("get", name=name).result

    def state(self, name: str = "Ada", model_type: str = "qwen3_tts") -> dict[str, Any]:
        """The state of one model type's artifacts."""
        found: list[dict[str, Any]] = [a for a in self.get(name)["artifacts"] if a["model_type"] == model_type]
        assert len(found) == 1, found
        return found[0]

    def stats(self) -> dict[str, Any]:
        return self.call("stats").result

    def on_disk(self) -> list[Path]:
        """All files of the directory but those that the store keeps for itself; of a database, all that has bytes."""
        if self.dsn is not None:
            with psycopg.connect(self.dsn) as connection:
                found = connection.execute(
                    "SELECT token FROM voice_clone.voice WHERE record IS NOT NULL UNION "
                    "SELECT token FROM voice_clone.blob"
                ).fetchall()
            return [Path(str(token)) for (token,) in found]
        own = {self.directory / "lock", self.directory / "generation"}
        return sorted(path for path in self.directory.rglob("*") if path.is_file() and path not in own)


def together(count: int, action: Callable[[int], Any]) -> list[Any]:
    """Run `action(0)`, `action(1)`, ... at once; what each returned or raised."""
    barrier = threading.Barrier(count)
    results: list[Any] = [None] * count

    def run(index: int) -> None:
        barrier.wait()
        try:
            results[index] = action(index)
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def file_of(voices: Voices) -> Path:
    """The file of the only voice."""
    (path,) = (voices.directory / "voices").iterdir()
    return path


def expected(voices: Voices, data: bytes, mode: str = "x_vector", model_type: str = "qwen3_tts") -> bytes:
    """What the encoder makes of a clip, without any cache."""
    decoded = decode(data)
    made = FakeEncoder(voices.encoder.checkpoint).encode(model_type, decoded.waveform, decoded.sample_rate, mode)
    return pack_artifacts(made.artifacts)
