"""OmniVoice on a real server beside Qwen3-TTS: what it says equals the bare stages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray
from voice_clone_client import (
    Client,
    DeadlineExceeded,
    InvalidArgument,
    Unsupported,
    VoiceCloneError,
    VoiceNotFound,
)

from perf.bench.gateway_process import Gateway
from tests.support.families.factories import CheckpointFactory
from tests.support.families.omnivoice import BareOmniVoice, make_omnivoice
from tests.support.same_audio import is_same_audio
from tests.support.servers.running import SETTINGS, client_of_two_voices, restored_and_erased, running
from tools.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("families")]

TEXT, RATE, FRAME = "Good morning, this is a voice.", 24000, 960
INSTRUCTION = "female, low pitch"
QUICK: dict[str, Any] = {"num_step": 6, "duration": 2.0}
LONG = "We read the same story twice, and then we spoke of it. Nobody knew which one they liked. " * 6
IN_CHUNKS: dict[str, Any] = {"num_step": 4, "audio_chunk_duration": 5.0, "audio_chunk_threshold": 8.0}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_omnivoice(tmp_path_factory.mktemp("omnivoice") / "checkpoint")


@pytest.fixture(scope="module")
def bare(checkpoint: Path) -> BareOmniVoice:
    return BareOmniVoice(checkpoint)


@pytest.fixture(scope="module")
def server(
    checkpoint: Path, checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """Of OmniVoice and Qwen3-TTS."""
    folder = tmp_path_factory.mktemp("server")
    checkpoints = [checkpoint_folder("tiny", 0), checkpoint]
    with running(checkpoints, folder, **SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: TritonServer, reference_clip: bytes, reference_text: str) -> Iterator[Client]:
    """Of a server with the voices Ada, whose transcript is known, and Mute, of the same clip without it."""
    with client_of_two_voices(server, "omnivoice", reference_clip, reference_text) as client:
        yield client


def heard(client: Client, text: str = TEXT, **given: Any) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Samples and the last info of a speech."""
    speech = client.speak(text, **{"seed": 2, "options": QUICK, **given})
    samples, rate = speech.read()
    assert rate == RATE
    return samples, dict(speech.info or {})


@pytest.mark.parametrize(
    ("voice", "mode", "options"),
    [
        ("Ada", "icl", QUICK),
        ("Ada", "icl", {"num_step": 6, "instruct": INSTRUCTION, "class_temperature": 0.7}),
        ("Ada", "icl", {**QUICK, "remove_silence": False, "denoise": False, "guidance_scale": 0.0}),
        (None, "instruct", {**QUICK, "instruct": INSTRUCTION}),
        (None, "auto", {"num_step": 6, "speed": 0.8}),
    ],
)
def test_each_mode_speaks_as_the_bare_stages(
    client: Client,
    bare: BareOmniVoice,
    reference_clip: bytes,
    reference_text: str,
    voice: str | None,
    mode: str,
    options: dict[str, Any],
) -> None:
    samples, info = heard(client, voice=voice, options=options)
    clone = (None, None) if voice is None else (reference_clip, reference_text)
    expected = bare.speak(TEXT, *clone, seed=2, **options)
    assert (info["mode"], info["finish_reason"], info["frames"]) == (mode, "stop", len(expected.codes))
    assert is_same_audio(samples, expected.samples)
    assert not samples[: RATE // 10].any() and not samples[-RATE // 10 :].any()
    assert float(samples.std()) > 0.003
    if voice is None:
        assert np.isclose(np.abs(samples).max(), 0.5, atol=1e-3)


def test_a_clip_in_the_request_is_the_same_voice(client: Client, reference_clip: bytes, reference_text: str) -> None:
    samples, info = heard(client, reference_audio=reference_clip, reference_text=reference_text)
    assert info["mode"] == "icl" and is_same_audio(samples, heard(client, voice="Ada")[0])


@pytest.mark.parametrize("voice", ["Ada", None])
def test_a_long_text_is_heard_chunk_by_chunk(
    client: Client, bare: BareOmniVoice, reference_clip: bytes, reference_text: str, voice: str | None
) -> None:
    """Each chunk of it is heard while the next one is made; they are joined as official does it."""
    speech = client.speak(LONG, voice=voice, seed=2, options=IN_CHUNKS)
    parts = [chunk.samples for chunk in speech]
    info = speech.info or {}
    clone = (None, None) if voice is None else (reference_clip, reference_text)
    expected = bare.speak(LONG, *clone, seed=2, **IN_CHUNKS)
    assert info["text_chunks"] > 3 and info["frames"] == len(expected.codes)
    assert is_same_audio(np.concatenate(parts), expected.samples)
    assert sum(len(part) > 0 for part in parts) > 1
    assert info["first_chunk_ms"] < info["queue_ms"] + info["prefill_ms"] + info["talker_ms"], "it came with the end"


def test_company_changes_no_speech(client: Client) -> None:
    orders = [
        {"voice": voice, "seed": seed, "text": text}
        for seed, (voice, text) in enumerate((each, text) for each in ("Ada", None) for text in (TEXT, "Yes, two."))
    ]
    alone = [heard(client, **order)[0] for order in orders]
    with ThreadPoolExecutor(len(orders)) as pool:
        beside = list(pool.map(lambda order: heard(client, **order)[0], orders))
    for one, other in zip(alone, beside, strict=True):
        assert is_same_audio(one, other)
    assert len({samples.tobytes() for samples in alone}) == len(alone)


def test_a_deadline_ends_it_between_two_steps(client: Client) -> None:
    with pytest.raises(DeadlineExceeded):
        heard(client, voice="Ada", options={"num_step": 1000, "duration": 20.0}, deadline=0.5)
    began = time.monotonic()
    heard(client, voice="Ada", options={"num_step": 1, "duration": 1.0})
    assert time.monotonic() - began < 10, "the talker still works for a caller that has left"


def test_the_same_voice_serves_the_other_family(client: Client) -> None:
    states = {each.model_type: (each.mode, each.state) for each in client.get("Ada").artifacts}
    assert states == {"omnivoice": ("icl", "ready"), "qwen3_tts": ("icl", "ready")}
    states = {each.model_type: (each.mode, each.state) for each in client.get("Mute").artifacts}
    assert states == {"omnivoice": ("icl", "unsupported"), "qwen3_tts": ("x_vector", "ready")}
    samples, rate = client.speak(TEXT, voice="Ada", model="qwen3_tts", seed=1, max_frames=3).read()
    assert len(samples) == 3 * 1920 and rate == 24000


def test_it_speaks_through_the_openai_api(server: TritonServer, client: Client, tmp_path: Path) -> None:
    """`instructions` are the option `instruct`."""
    with (
        Gateway(server.url, tmp_path / "log") as gateway,
        httpx2.Client(base_url=gateway.url, timeout=60.0, trust_env=False) as http,
    ):
        body = {"model": "omnivoice", "input": TEXT, "voice": "Ada", "seed": 2, "options": QUICK}
        answer = http.post("/v1/audio/speech", json={**body, "response_format": "pcm", "instructions": INSTRUCTION})
        assert answer.status_code == 200, answer.text
    samples = np.frombuffer(answer.content, "<i2").astype(np.float32) / 32767
    expected, _ = heard(client, voice="Ada", options={**QUICK, "instruct": INSTRUCTION})
    assert len(samples) == len(expected) and np.abs(samples - expected).max() <= 2 / 32768


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"text": "Hello<|text_end|>there."}, InvalidArgument, r"text .*<\|text_end\|>"),
        ({"options": {"instruct": "sounding like a robot"}}, InvalidArgument, "instruct"),
        ({"options": {"instruct": 3}}, InvalidArgument, "instruct is 3; it must be of type str"),
        ({"options": {"num_step": 0}}, InvalidArgument, "num_step is 0"),
        ({"options": {"style": 1}}, InvalidArgument, "'style' is unknown"),
        ({"language": "Klingon"}, Unsupported, "Klingon"),
        ({"temperature": 0.7}, Unsupported, "this model has no temperature"),
        ({"non_streaming_mode": False}, Unsupported, "reads the whole text first"),
        ({"voice": None, "speaker_embedding": np.ones(192)}, Unsupported, "no speaker embedding"),
        ({"voice": "Mute"}, Unsupported, "reference_text"),
        ({"voice": "Nobody"}, VoiceNotFound, "Nobody"),
        ({"max_frames": 0}, InvalidArgument, "max_frames"),
    ],
)
def test_what_it_refuses(client: Client, given: dict[str, Any], error: type[VoiceCloneError], message: str) -> None:
    asked = {name: value for name, value in {"voice": "Ada", **given}.items() if value is not None}
    with pytest.raises(error, match=message):
        heard(client, **asked)


def test_voices_are_restored_and_erased(checkpoint: Path, server: TritonServer, client: Client, tmp_path: Path) -> None:
    with restored_and_erased(server, client, checkpoint, tmp_path, heard) as of_other:
        assert heard(of_other)[1]["mode"] == "auto"
