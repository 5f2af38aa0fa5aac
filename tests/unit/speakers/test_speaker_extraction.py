"""What an extraction that is forced, fails, hangs or gives nonsense leaves of a voice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.doubles.fakes import FakeEncoder, Voices, clip, expected, together
from tests.support.waiting import until
from voice_clone.errors import DeadlineExceeded, Internal, Overloaded, Unsupported
from voice_clone.speakers.encoders import Extraction

STORES = ("files", "postgresql")  # all tests of this file run on both

Make = Callable[..., Voices]


def test_prepare_makes_ready_and_says_so_when_there_was_nothing_to_do(make_voices: Make) -> None:  # B1, B2
    voices = make_voices(defaults=())
    voices.upload()
    first = voices.call("prepare", name="Ada", model_type="qwen3_tts").result
    assert first["status"] == "ready" and "message" not in first and first["extraction_ms"] > 0
    assert voices.resolve().result["status"] == "hit"  # warm at once
    second = voices.call("prepare", name="Ada", model_type="qwen3_tts").result
    assert (second["status"], second["message"], second["extraction_ms"]) == ("ready", "already prepared", 0.0)
    voices.restart()
    assert voices.call("prepare", name="Ada", model_type="qwen3_tts").result["message"] == "already prepared"
    assert voices.encoder.extractions == 0 and voices.resolve().result["status"] == "hit"


def test_force_rebuilds_once_under_a_new_generation(voices: Voices) -> None:  # B4
    voices.upload(reference_text="Hello.")
    before = voices.resolve()
    again = voices.call("prepare", {"force": True}, name="Ada").result
    assert again["generation"] > before.result["generation"] and voices.encoder.extractions == 2
    after = voices.resolve()
    assert (after.result["status"], after.result["generation"]) == ("hit", again["generation"])
    assert voices.stats()["pools"]["registered"]["entries"] == 1  # the old generation is gone
    voices.restart()
    assert voices.resolve().result["generation"] == again["generation"]
    assert voices.get()["reference_text"] == "Hello."


def test_force_keeps_what_other_model_types_have(make_voices: Make) -> None:
    voices = make_voices(defaults=("qwen3_tts", "omnivoice"))
    voices.upload(reference_text="Hello.")
    before = voices.resolve(model_type="omnivoice").artifacts
    voices.call("prepare", {"force": True}, name="Ada", model_type="qwen3_tts")
    after = voices.resolve(model_type="omnivoice")
    assert (after.result["status"], after.artifacts) == ("restored", before)


def test_concurrent_forces_are_one_extraction(voices: Voices) -> None:  # B4, B9
    voices.upload()
    opened = threading.Event()
    voices.encoder.during = lambda: opened.wait(10)
    threading.Timer(0.1, opened.set).start()
    replies = together(20, lambda _: voices.call("prepare", {"force": True}, name="Ada"))
    assert len({reply.result["generation"] for reply in replies}) == 1 and voices.encoder.extractions == 2


class Fault(FakeEncoder):
    """An encoder that raises or hangs while a test wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.hang: threading.Event | None = None

    def encode(self, model_type: str, waveform: NDArray[np.float32], sample_rate: int, mode: str | None) -> Extraction:
        made = super().encode(model_type, waveform, sample_rate, mode)
        if waveform.size and self.hang is not None:
            self.hang.wait(10)
        if waveform.size and self.error is not None:
            raise self.error
        return made


def test_a_failed_extraction_restores_the_previous_state(make_voices: Make) -> None:  # B3, B14
    encoder = Fault()
    voices = make_voices(encoder=encoder, defaults=())
    voices.upload()
    encoder.error = Overloaded("no memory on the GPU")
    for options in ({}, {"force": True}):
        with pytest.raises(Overloaded, match="no memory"):
            voices.call("prepare", options, name="Ada", model_type="qwen3_tts")
        assert voices.get()["artifacts"] == []
    encoder.error = None
    ready = voices.call("prepare", name="Ada", model_type="qwen3_tts").result
    encoder.error = RuntimeError("CUDA error at /secret/path")
    with pytest.raises(Internal, match="the voice could not be extracted"):
        voices.call("prepare", {"force": True}, name="Ada", model_type="qwen3_tts")
    assert voices.state()["state"] == "ready" and voices.get()["generation"] == ready["generation"]
    assert voices.resolve().result["status"] == "hit"
    assert voices.stats()["extraction_failures"] == 3


def test_a_failure_in_the_background_is_reported_and_the_next_use_tries_again(make_voices: Make) -> None:  # B3, A2
    encoder = Fault()
    encoder.error = Overloaded("no memory on the GPU")
    voices = make_voices(encoder=encoder)
    speaker = voices.upload(wait=True)
    assert speaker["artifacts"] == [
        {
            "model_type": "qwen3_tts",
            "mode": "x_vector",
            "state": "pending",
            "reason": "no memory on the GPU; the server tries again",
        }
    ]
    encoder.error = None
    assert voices.resolve().result["status"] == "miss"
    assert voices.state()["state"] == "ready"


@pytest.mark.parametrize("force", [False, True])
def test_an_extraction_that_hangs_goes_back_after_its_time(
    make_voices: Make, force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:  # B3
    encoder = Fault()
    voices = make_voices(encoder=encoder)
    flights = voices.cache.voice_states.flights
    if force:
        voices.upload()
    encoder.hang = threading.Event()
    if force:
        with monkeypatch.context() as patch, pytest.raises(DeadlineExceeded):
            patch.setattr(flights, "timeout", 0.1)  # of this extraction alone
            voices.call("prepare", {"force": True}, name="Ada")
    else:
        speaker = voices.upload(wait=False)
        until(lambda: voices.state()["state"] == "processing" and voices.stats()["in_flight"] == 1)
        [[flight]] = [by_key.values() for by_key in flights._flights.values()]
        flight.deadline = time.monotonic()
        assert voices.state()["state"] == "pending"
        assert speaker["generation"] == 1
    generation = voices.get()["generation"]
    hung, encoder.hang = encoder.hang, None
    assert voices.resolve().result["status"] == ("hit" if force else "miss")
    hung.set()  # what hung comes to an end, and changes nothing any more
    until(lambda: voices.stats()["in_flight"] == 0)
    assert voices.get()["generation"] == generation and voices.resolve().result["status"] == "hit"


def test_a_caller_with_little_time_gets_its_deadline_and_the_work_goes_on(make_voices: Make) -> None:
    encoder = Fault()
    encoder.hang = threading.Event()
    voices = make_voices(encoder=encoder)
    voices.upload(wait=False)
    with pytest.raises(DeadlineExceeded, match="not ready in time"):
        voices.resolve(timeout=0.05)
    until(lambda: voices.state()["state"] == "processing")
    encoder.hang.set()
    assert voices.resolve().artifacts == expected(voices, clip(0)) and encoder.extractions == 1


def test_cold_voices_do_not_hold_up_warm_ones(make_voices: Make) -> None:
    encoder = Fault()
    voices = make_voices(encoder=encoder, workers=2)
    voices.upload("Warm", 1)
    encoder.hang = threading.Event()
    for index in range(5):
        voices.upload(f"cold {index}", 10 + index, wait=False)
    until(lambda: encoder.extractions == 3)
    for _ in range(50):
        assert voices.resolve("Warm").result["status"] == "hit"
    encoder.hang.set()
    until(lambda: encoder.extractions == 6)


def test_a_model_type_without_encoder_is_unsupported_and_changes_nothing(voices: Voices) -> None:  # B17, C16, A14
    voices.upload()
    before = voices.get()
    for operation in ("prepare", "resolve"):
        with pytest.raises(Unsupported, match="no encoder of moshi in mode x_vector is loaded"):
            voices.call(operation, name="Ada", model_type="moshi")
    with pytest.raises(Unsupported):
        voices.call("resolve", audio=clip(1), model_type="moshi")
    assert voices.get() == before


def test_an_answer_that_is_no_artifact_is_refused_and_not_kept(make_voices: Make) -> None:
    class Odd(FakeEncoder):
        def encode(
            self, model_type: str, waveform: NDArray[np.float32], sample_rate: int, mode: str | None
        ) -> Extraction:
            made = super().encode(model_type, waveform, sample_rate, mode)
            if not waveform.size:
                return made
            return Extraction({**made.artifacts, "speaker_embedding": self.answer}, made.fingerprint)

        answer: NDArray[Any] = np.full(1024, np.nan, np.float32)

    encoder = Odd()
    voices = make_voices(encoder=encoder, defaults=())
    voices.upload()
    for answer, words in ((encoder.answer, "NaN or infinity"), (np.array([b"x"], object), "as object")):
        encoder.answer = answer
        with pytest.raises((Internal, Exception), match=words):
            voices.resolve()
    assert voices.get()["artifacts"] == [] and voices.stats()["entries"] == 0


def test_waveforms_reach_the_encoder_as_float_arrays(make_voices: Make) -> None:  # B16
    seen: list[Any] = []

    class Looking(FakeEncoder):
        def encode(
            self, model_type: str, waveform: NDArray[np.float32], sample_rate: int, mode: str | None
        ) -> Extraction:
            seen.append((type(waveform), waveform.dtype, waveform.ndim, sample_rate))
            return super().encode(model_type, waveform, sample_rate, mode)

    voices = make_voices(encoder=Looking())
    voices.upload()
    assert seen[-1] == (np.ndarray, np.float32, 1, 16_000)
