"""What is done once for an upload: its clip is decoded, its extraction is timed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import voice_clone.audio
from tests.support.doubles.fakes import FakeEncoder, Voices, clip
from tests.support.waiting import until
from voice_clone.audio import decode
from voice_clone.speakers.cache import SpeakerCache
from voice_clone.speakers.config import CacheConfig
from voice_clone.speakers.disk.store import FileStore
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
    until(lambda: not voices.cache._voice_states.clips._waiting)
    voices.resolve(mode="x_vector")  # later needs are read from disk
    assert len(decoded) == 2


def test_clips_that_wait_are_bounded(make_voices: Make, decoded: list[bytes]) -> None:
    size = 4 * 16_000  # of one second
    opened = threading.Event()
    encoder = FakeEncoder(during=lambda: opened.wait(10))
    voices = make_voices(encoder=encoder, workers=1, max_waiting_bytes=2 * size)
    for seed in range(5):
        voices.upload(f"v{seed}", seed, wait=False)
    waiting = voices.cache._voice_states.clips._waiting
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
