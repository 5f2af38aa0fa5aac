"""An acknowledged voice can speak: what could not be made or saved is made later, or the old voice stays."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from tests.support.doubles.fakes import FakeEncoder, Voices, clip
from tests.support.waiting import until
from voice_clone.errors import DeadlineExceeded, Internal, InvalidArgument, Overloaded, Unsupported, VoiceCloneError
from voice_clone.speakers.background import AT_ONCE
from voice_clone.speakers.disk.files import Files
from voice_clone.speakers.encoders import Extraction

Make = Callable[..., Voices]


class Fault(FakeEncoder):
    """Raises `error` at each extraction, if there is one; `nan`: answers NaN."""

    error: VoiceCloneError | None = None
    nan = False

    def encode(self, model_type: str, waveform: NDArray[np.float32], sample_rate: int, mode: str | None) -> Extraction:
        if waveform.size and self.error is not None:
            raise self.error
        made = super().encode(model_type, waveform, sample_rate, mode)
        if waveform.size and self.nan:
            return Extraction(
                {
                    name: tensor if tensor.dtype.kind != "f" else tensor * np.nan
                    for name, tensor in made.artifacts.items()
                },
                made.fingerprint,
            )
        return made


class Disk(Files):
    """A disk that is full after `room` more files; None: it has room."""

    room: int | None = None

    def write(self, path: Path, data: bytes) -> None:
        if self.room is not None and "safetensors" in path.name:
            self.room -= 1
            if self.room < 0:
                raise OSError(errno.ENOSPC, "full")
        super().write(path, data)


def loud(peak: float) -> bytes:
    file = io.BytesIO()
    samples = np.random.default_rng(0).uniform(-peak, peak, 16_000).astype(np.float32)
    soundfile.write(file, samples, 16_000, format="WAV", subtype="FLOAT")
    return file.getvalue()


@pytest.mark.parametrize("wait", [False, True])
def test_a_clip_of_which_no_voice_can_be_made_leaves_the_old_voice(make_voices: Make, wait: bool) -> None:
    encoder = Fault()
    voices = make_voices(encoder=encoder)
    voices.upload("Ada", 1)
    before, speaks = voices.get("Ada"), voices.resolve("Ada").artifacts
    with pytest.raises(InvalidArgument, match="full scale"):
        voices.upload("Ada", wait=wait, audio=loud(3e38))
    encoder.nan = True
    with pytest.raises(InvalidArgument, match="no voice could be made of this clip: speaker_embedding came out as NaN"):
        voices.upload("Ada", 2, wait=wait, replace=True)
    encoder.nan = False
    for error in (Overloaded("busy"), Internal("broken"), DeadlineExceeded("slow")):
        encoder.error = error
        with pytest.raises(type(error)):
            voices.upload("Ada", 2, wait=wait, replace=True)
    encoder.error = None
    assert voices.get("Ada") == before and voices.resolve("Ada").artifacts == speaks
    voices.restart()
    assert voices.get("Ada") == before and voices.resolve("Ada").artifacts == speaks
    newer = voices.upload("Ada", 2, wait=wait, replace=True)
    assert [each["state"] for each in newer["artifacts"]] == ["ready"], "it can speak when it is acknowledged"
    assert voices.resolve("Ada").artifacts != speaks


def test_a_replacement_waits_for_no_encoder_that_is_not_there(make_voices: Make) -> None:
    encoder = Fault()
    voices = make_voices(encoder=encoder)
    voices.upload("Ada", 1)
    encoder.error = Unsupported("no such model")
    newer = voices.upload("Ada", 2, wait=False, replace=True)
    assert newer["generation"] > 1


def test_a_disk_that_fills_between_voice_and_artifacts(make_voices: Make) -> None:
    disk = Disk()
    voices = make_voices(files=disk, finish_seconds=0.05)
    disk.room = 1
    voices.upload("Ada", 1, reference_text="Hello.")

    def is_full() -> bool:
        state = voices.state("Ada")
        return state["state"] == "pending" and "the voice store is full" in state["reason"]

    until(is_full)
    spoken = voices.resolve("Ada")
    assert spoken.artifacts and voices.resolve("Ada").result["status"] == "hit"
    assert voices.state("Ada")["state"] in ("pending", "processing")
    disk.room = None
    until(lambda: voices.state("Ada")["state"] == "ready")
    extractions = voices.encoder.extractions
    assert extractions == 1, "what was made is saved, not made again"
    voices.restart()
    assert voices.resolve("Ada").result["status"] == "restored" and voices.resolve("Ada").artifacts == spoken.artifacts


def test_prepare_saves_what_is_in_memory_alone(make_voices: Make) -> None:
    disk = Disk()
    voices = make_voices(files=disk)
    disk.room = 1
    voices.upload("Ada", 1)
    for _ in range(2):
        with pytest.raises(Overloaded, match="full"):
            voices.call("prepare", name="Ada")
        assert voices.resolve("Ada").result["status"] == "hit"
    disk.room = None
    assert voices.call("prepare", name="Ada").result["status"] == "ready" and voices.encoder.extractions == 1
    assert voices.state("Ada")["state"] == "ready"
    voices.restart()
    assert voices.resolve("Ada").result["status"] == "restored"


def test_a_replacement_on_a_full_disk_leaves_the_old_voice(make_voices: Make) -> None:
    disk = Disk()
    voices = make_voices(files=disk)
    voices.upload("Ada", 1)
    before = voices.get("Ada")
    disk.room = 0
    with pytest.raises(Overloaded, match="full"):
        voices.upload("Ada", 2, replace=True)
    assert voices.get("Ada") == before and voices.resolve("Ada").artifacts


def test_what_an_earlier_process_left_undone_is_finished(make_voices: Make) -> None:
    disk = Disk()
    voices = make_voices(files=disk)
    disk.room = 1
    voices.upload("Ada", 1, wait=True)
    assert voices.state("Ada")["state"] == "pending"
    voices.restart(finish_seconds=0.05)
    until(lambda: voices.state("Ada")["state"] == "ready")
    voices.restart()
    assert voices.resolve("Ada").result["status"] == "restored"


@pytest.mark.parametrize(
    ("error", "state"),
    [(InvalidArgument("no speech in it"), "failed"), (Unsupported("40 s are too long for this family"), "unsupported")],
)
def test_what_the_clip_explains_is_not_tried_again(make_voices: Make, error: VoiceCloneError, state: str) -> None:
    encoder = Fault()
    encoder.error = error
    voices = make_voices(encoder=encoder, finish_seconds=0.02)
    voices.upload("Ada", 1)
    assert voices.state("Ada") == {
        "model_type": "qwen3_tts",
        "mode": "x_vector",
        "state": state,
        "reason": str(error),
    }
    encoder.error = None
    until(lambda: voices.stats()["in_flight"] == 0)
    assert voices.state("Ada")["state"] == state
    encoder.error = Overloaded("busy")
    voices.upload("Bob", 2)
    encoder.error = None
    until(lambda: voices.state("Bob")["state"] == "ready")
    assert voices.state("Ada")["state"] == state


def test_voices_of_which_a_family_can_make_nothing_keep_no_other_from_being_finished(make_voices: Make) -> None:
    """A family that needs a transcript can never be given the artifacts of voices without one."""
    encoder = Fault()
    encoder.error = Overloaded("busy")
    voices = make_voices(encoder=encoder, defaults=("fish_speech",))
    for number in range(2 * AT_ONCE):
        voices.upload(f"Ada {number}", number)
    voices.upload("Zoe", 9, reference_text="Hello.")
    assert voices.state("Ada 0", "fish_speech")["state"] == "unsupported"
    voices.restart(finish_seconds=0.02)
    until(lambda: voices.state("Zoe", "fish_speech")["state"] == "ready")


class Choosy(FakeEncoder):
    """Is always too busy for clips of two seconds."""

    def encode(self, model_type: str, waveform: NDArray[np.float32], sample_rate: int, mode: str | None) -> Extraction:
        if waveform.size > 1.5 * sample_rate:
            raise Overloaded("busy")
        return super().encode(model_type, waveform, sample_rate, mode)


def test_voices_that_fail_again_and_again_keep_no_other_from_being_finished(make_voices: Make) -> None:
    voices = make_voices(defaults=())
    for number in range(2 * AT_ONCE):
        voices.upload(f"Ada {number}", audio=clip(number, seconds=2.0))
    voices.upload("Zoe", 9)
    voices.defaults = ("qwen3_tts",)
    voices.restart(encoder=Choosy(), finish_seconds=0.02)
    until(lambda: voices.state("Zoe")["state"] == "ready")
    assert voices.state("Ada 0")["state"] in ("pending", "processing")
