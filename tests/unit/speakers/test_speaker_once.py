"""What is done once for an upload: its clip is decoded, its extraction is timed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import voice_clone.audio
from tests.support.doubles.fakes import FakeEncoder, Voices, clip
from tests.support.waiting import until
from voice_clone.audio import decode
from voice_clone.speakers.cache import SpeakerCache
from voice_clone.speakers.config import CacheConfig
from voice_clone.speakers.disk.files import Files
from voice_clone.speakers.disk.store import FileStore
from voice_clone.speakers.encoders import Extraction
from voice_clone.speakers.parsing import parse
from voice_clone.speakers.voice_states import DecodedClips

STORES = ("files", "postgresql")  # all tests of this file run on both

Make = Callable[..., Voices]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The files that were decoded, in order."""
    files: list[bytes] = []
    read = voice_clone.audio.read_samples

    def reading(encoded: bytes, file_format: str, most: int) -> Any:
        files.append(encoded)
        return read(encoded, file_format, most)

    monkeypatch.setattr(voice_clone.audio, "read_samples", reading)
    return files


@pytest.mark.parametrize("wait", [False, True])
def test_an_upload_is_decoded_once_for_all_families(make_voices: Make, decoded: list[bytes], wait: bool) -> None:
    families = ("qwen3_tts", "fish_speech", "omnivoice")
    voices = make_voices(defaults=families)
    voices.upload(reference_text="Hello.", wait=wait)
    until(lambda: {a["state"] for a in voices.get()["artifacts"]} == {"ready"})
    assert voices.encoder.extractions == 3 and len(decoded) == 1
    until(lambda: not voices.cache.voice_states.clips._waiting)
    voices.resolve(mode="x_vector")  # later needs are read from disk
    assert len(decoded) == 2


class Disk(Files):
    """Counts the files of voices that are written."""

    written = 0

    def write(self, path: Path, data: bytes) -> None:
        self.written += "safetensors" in path.name
        super().write(path, data)


class Stopped(FakeEncoder):
    """An encoder of one family stands still until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def encode(self, model_type: str, waveform: NDArray[np.float32], sample_rate: int, mode: str | None) -> Extraction:
        if model_type == "cosyvoice3" and waveform.size:
            self.go.wait(60)
        return super().encode(model_type, waveform, sample_rate, mode)


@pytest.mark.files
@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("families", [("qwen3_tts",), ("moshi", "qwen3_tts", "fish_speech", "omnivoice", "cosyvoice3")])
def test_what_is_made_for_all_families_is_written_at_once(
    make_voices: Make, families: tuple[str, ...], wait: bool
) -> None:
    disk = Disk()
    voices = make_voices(defaults=families, files=disk)
    voices.upload(reference_text="Hello.", wait=wait)
    until(lambda: voices.stats()["in_flight"] == 0)
    assert {each["state"] for each in voices.get()["artifacts"] if each["model_type"] != "moshi"} == {"ready"}
    assert disk.written == 2, "the clip, which is safe when it is acknowledged, and the artifacts"
    voices.upload(seed=1, reference_text="Hello.", wait=wait, replace=True)
    until(lambda: voices.stats()["in_flight"] == 0)
    assert disk.written == 3, "a voice that replaces another one has its artifacts from the start"
    voices.restart()
    assert {voices.resolve(model_type=each).result["status"] for each in families if each != "moshi"} == {"restored"}


@pytest.mark.files
def test_what_is_made_speaks_and_can_be_saved_while_another_encoder_is_slow(make_voices: Make) -> None:
    disk, encoder = Disk(), Stopped()
    voices = make_voices(defaults=("qwen3_tts", "cosyvoice3"), files=disk, encoder=encoder, max_entries=0)
    voices.upload(reference_text="Hello.", wait=False)
    until(lambda: voices.state()["state"] == "ready" and voices.state(model_type="cosyvoice3")["state"] == "processing")
    assert disk.written == 1
    assert voices.call("prepare", name="Ada").result["status"] == "ready" and disk.written == 2
    assert voices.resolve().result["status"] == "restored"
    encoder.go.set()
    until(lambda: voices.state(model_type="cosyvoice3")["state"] == "ready")
    assert disk.written == 3 and encoder.extractions == 2


@pytest.mark.files
@pytest.mark.parametrize("forced", [False, True])
def test_what_is_made_does_not_wait_for_an_encoder_for_ever(make_voices: Make, forced: bool) -> None:
    encoder = Stopped()
    voices = make_voices(defaults=("qwen3_tts", "cosyvoice3"), encoder=encoder, finish_seconds=60 if forced else 0.05)
    voices.upload(reference_text="Hello.", wait=False)
    until(lambda: voices.state()["state"] == "ready")
    if forced:  # a new generation takes along what was made of the one before
        voices.call("prepare", {"force": True, "mode": "x_vector"}, name="Ada")
    until(lambda: voices.cache.registry.get("Ada").artifacts.keys() >= {("qwen3_tts", "icl", "")})  # type: ignore[union-attr]
    assert encoder.calls["qwen3_tts", "icl"] == 1
    encoder.go.set()


def test_clips_that_wait_are_bounded(make_voices: Make, decoded: list[bytes]) -> None:
    size = 4 * 16_000  # of one second
    opened = threading.Event()
    encoder = FakeEncoder(during=lambda: opened.wait(10))
    voices = make_voices(encoder=encoder, workers=1, max_waiting_bytes=2 * size)
    for seed in range(5):
        voices.upload(f"v{seed}", seed, wait=False)
    waiting = voices.cache.voice_states.clips._waiting
    assert sum(each.waveform.nbytes for each in waiting) <= 2 * size
    opened.set()
    until(lambda: all(voices.state(f"v{seed}")["state"] == "ready" for seed in range(5)))
    assert len(decoded) == 5 + 3 and encoder.extractions == 5
    until(lambda: not waiting)
    for seed in range(5):
        again = decode(clip(seed))
        made = FakeEncoder().encode("qwen3_tts", again.waveform, again.sample_rate, "x_vector")
        stored = voices.call("resolve", {"cache": False}, name=f"v{seed}").result
        assert stored["status"] == "restored" and stored["fingerprint"] == made.fingerprint


def test_a_lent_clip_is_free_when_its_holder_is_gone() -> None:
    clips, whole = DecodedClips(70_000), decode(clip(1))
    lent = clips.lend(whole)
    assert lent is not None and lent.waveform is whole.waveform and lent.encoded == b""
    assert clips.lend(whole) is None
    del lent
    assert clips.lend(whole) is not None


def test_an_extraction_is_timed_once(tmp_path: Path) -> None:
    seconds: list[float] = []
    cache = SpeakerCache(
        FileStore(tmp_path), FakeEncoder(), CacheConfig(), lambda: ["qwen3_tts"], on_extraction=seconds.append
    )
    try:
        speaker = cache.call(parse("upload", {"name": "Ada", "audio": clip(0)}, {"wait": True})).result
        cache.call(parse("resolve", {"audio": clip(1)}, {}))
        stats = cache.call(parse("stats", {}, {})).result
    finally:
        cache.close()
    assert len(seconds) == stats["extractions"] == stats["extraction_seconds"]["count"] == 2
    assert sum(seconds) == pytest.approx(stats["extraction_seconds"]["sum"])
    assert speaker["artifacts"][0]["extraction_ms"] == pytest.approx(1e3 * seconds[0], abs=1e-3)
