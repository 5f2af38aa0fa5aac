"""VoxCPM2 on a real server beside Qwen3-TTS: what it says equals the bare stages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray
from voice_clone_client import Client, InvalidArgument, Unsupported, VoiceCloneError, VoiceNotFound

from perf.bench.gateway_process import Gateway
from tests.support.doubles.fakes import clip
from tests.support.families.factories import CheckpointFactory
from tests.support.families.voxcpm2_bare import BareVoxCPM2
from tests.support.families.voxcpm2_whole import make_voxcpm2
from tests.support.same_audio import is_same_audio
from tests.support.servers.running import SETTINGS, client_of_two_voices, restored_and_erased, running
from tools.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("families")]

TEXT, RATE, FRAME, FRAMES = "Good morning.", 48000, 7680, 14
STYLE = "whispering, very slow"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voxcpm2(tmp_path_factory.mktemp("voxcpm2") / "checkpoint")


@pytest.fixture(scope="module")
def bare(checkpoint: Path) -> BareVoxCPM2:
    return BareVoxCPM2(checkpoint)


@pytest.fixture(scope="module")
def server(
    checkpoint: Path, checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """Of VoxCPM2 and Qwen3-TTS."""
    folder = tmp_path_factory.mktemp("server")
    checkpoints = [checkpoint_folder("tiny", 0), checkpoint]
    with running(checkpoints, folder, **SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: TritonServer, reference_clip: bytes, reference_text: str) -> Iterator[Client]:
    """Of a server with the voices Ada, whose transcript is known, and Mute, of the same clip without it."""
    with client_of_two_voices(server, "voxcpm2", reference_clip, reference_text) as client:
        yield client


def heard(client: Client, text: str = TEXT, **given: Any) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Samples and the last info of a speech."""
    speech = client.speak(text, **{"seed": 2, "max_frames": FRAMES, **given})
    samples, rate = speech.read()
    assert rate == RATE
    return samples, dict(speech.info or {})


@pytest.mark.parametrize(
    ("voice", "mode", "given"),
    [
        ("Ada", "ref_continuation", {}),
        ("Ada", "continuation", {"options": {"mode": "continuation"}}),
        ("Ada", "reference", {"options": {"mode": "reference"}}),
        ("Mute", "reference", {}),
        ("Mute", "reference", {"options": {"style": STYLE}}),
        ("Ada", "ref_continuation", {"options": {"cfg_value": 1.5, "inference_timesteps": 6}, "temperature": 0.8}),
    ],
)
def test_each_mode_speaks_as_the_bare_stages(
    client: Client,
    bare: BareVoxCPM2,
    reference_clip: bytes,
    reference_text: str,
    voice: str,
    mode: str,
    given: dict[str, Any],
) -> None:
    samples, info = heard(client, voice=voice, **given)
    of_voice = bare.voice(reference_clip, reference_text if voice == "Ada" else None)
    expected = bare.speak(TEXT, of_voice, **{"seed": 2, "max_frames": FRAMES, **given})
    assert (info["mode"], info["cache"], info["finish_reason"]) == (mode, "hit", expected.finish)
    assert len(samples) == FRAME * len(expected.codes) and is_same_audio(samples, expected.samples)
    assert float(samples.std()) > 0.003


@pytest.mark.parametrize("options", [{}, {"style": "an old man, gently"}])
def test_it_speaks_without_a_voice(client: Client, bare: BareVoxCPM2, options: dict[str, Any]) -> None:
    samples, info = heard(client, options=options)
    expected = bare.speak(TEXT, None, options, seed=2, max_frames=FRAMES)
    assert info["mode"] == "zero_shot" and is_same_audio(samples, expected.samples)


def test_modes_style_seed_and_options_change_what_is_heard(client: Client) -> None:
    orders: list[dict[str, Any]] = [
        {},
        {"options": {"mode": "continuation"}},
        {"options": {"mode": "reference"}},
        {"options": {"style": STYLE}},
        {"options": {"cfg_value": 1.5}},
        {"options": {"inference_timesteps": 20}},
        {"temperature": 0.5},
        {"seed": 3},
    ]
    assert len({heard(client, voice="Ada", **order)[0].tobytes() for order in orders}) == len(orders)


def test_without_the_transcript_a_voice_is_its_clip_alone(client: Client) -> None:
    expected = heard(client, voice="Mute")[0]
    assert is_same_audio(heard(client, voice="Ada", options={"mode": "reference"})[0], expected)
    styled = heard(client, voice="Ada", options={"style": STYLE})[0]
    assert is_same_audio(styled, heard(client, text=f"({STYLE}){TEXT}", voice="Mute")[0])


def test_a_clip_in_the_request_is_the_same_voice(client: Client, reference_clip: bytes, reference_text: str) -> None:
    samples, info = heard(client, reference_audio=reference_clip, reference_text=reference_text)
    assert info["mode"] == "ref_continuation" and is_same_audio(samples, heard(client, voice="Ada")[0])
    samples, info = heard(client, reference_audio=reference_clip)
    assert info["mode"] == "reference" and is_same_audio(samples, heard(client, voice="Mute")[0])


def test_company_of_all_kinds_changes_no_speech(client: Client) -> None:
    """Numbers of steps and guidance meet in one batch."""
    orders: list[dict[str, Any]] = [
        {"voice": voice, "seed": seed, "options": {"inference_timesteps": steps, "cfg_value": cfg}}
        for seed, (voice, steps, cfg) in enumerate(
            [("Ada", 10, 2.0), ("Mute", 4, 1.0), ("Ada", 17, 3.0), ("Mute", 30, 2.5), ("Ada", 10, 1.0), ("Mute", 6, 2)]
        )
    ]
    alone = [heard(client, **order)[0] for order in orders]
    with ThreadPoolExecutor(len(orders)) as pool:
        beside = list(pool.map(lambda order: heard(client, **order)[0], orders))
    for one, other in zip(alone, beside, strict=True):
        assert is_same_audio(one, other)


def test_two_voices_with_one_transcript_never_meet(
    client: Client, bare: BareVoxCPM2, reference_clip: bytes, reference_text: str
) -> None:
    other = clip(7, 4.0, RATE)
    client.upload("Eve", other, reference_text=reference_text, wait=True)
    expected = {
        name: bare.speak(TEXT, bare.voice(audio, reference_text), seed=2, max_frames=FRAMES).samples
        for name, audio in (("Ada", reference_clip), ("Eve", other))
    }
    for name in ("Ada", "Eve", "Ada", "Eve"):
        assert is_same_audio(heard(client, voice=name)[0], expected[name])
    client.delete("Eve")


def test_a_known_reference_is_read_once(client: Client) -> None:
    """The next prompts of the voice begin behind it; so they sound the same."""
    client.upload("Once", clip(9, 5.0, RATE), wait=True)
    first, again = (heard(client, voice="Once", max_frames=6) for _ in range(2))
    assert is_same_audio(first[0], again[0])
    kept = client.stats()["kept"]["voxcpm2_talker"]
    client.delete("Once")
    assert client.stats()["kept"]["voxcpm2_talker"]["voices"] == kept["voices"] - 1


def test_the_longest_clip_speaks(client: Client) -> None:
    client.upload("Long", clip(5, 30.0, RATE), reference_text="Many words.", wait=True)
    samples, info = heard(client, voice="Long", max_frames=5)
    assert (info["reference_frames"], info["prompt_frames"]) == (188, 188) and len(samples) == 5 * FRAME
    client.delete("Long")


def test_the_budget_of_a_text_ends_a_speech(client: Client) -> None:
    samples, info = heard(client, text="Ah", voice="Mute", max_frames=None, seed=0)
    assert info["finish_reason"] in ("budget", "stop")
    assert 4 <= len(samples) // FRAME <= 6 * info["text_tokens"] + 10


def test_style_through_the_openai_api(server: TritonServer, client: Client, tmp_path: Path) -> None:
    with (
        Gateway(server.url, tmp_path / "log") as gateway,
        httpx2.Client(base_url=gateway.url, timeout=60.0, trust_env=False) as http,
    ):
        body = {"model": "voxcpm2", "input": TEXT, "voice": "Ada", "seed": 2, "max_new_tokens": FRAMES}
        more = {"response_format": "pcm", "allow_partial": True, "instructions": STYLE}
        answer = http.post("/v1/audio/speech", json={**body, **more})
        assert answer.status_code == 200, answer.text
        assert "x-speech-warning" not in answer.headers
        refused = http.post("/v1/audio/speech", json={**body, **more, "options": {"mode": "continuation"}})
        assert refused.status_code == 400 and "would be read aloud" in json.dumps(refused.json())
    samples = np.frombuffer(answer.content, "<i2").astype(np.float32) / 32767
    expected, _ = heard(client, voice="Ada", options={"style": STYLE})
    assert len(samples) == len(expected) and np.abs(samples - expected).max() <= 2 / 32768


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"text": "Hello</s>there."}, InvalidArgument, "the text holds '</s>', a control token; remove it"),
        ({"options": {"style": " "}}, InvalidArgument, "style is blank"),
        ({"options": {"style": "softly", "mode": "continuation"}}, InvalidArgument, "would be read aloud"),
        ({"options": {"style": 3}}, InvalidArgument, "style is 3; it must be of type str"),
        ({"options": {"speed": 1}}, InvalidArgument, "this model has cfg_value, inference_timesteps, mode, style"),
        ({"options": {"mode": "icl"}}, InvalidArgument, "it must be one of reference, continuation, ref_continuation"),
        ({"options": {"cfg_value": 4}}, InvalidArgument, "cfg_value is 4; it must lie in 1"),
        ({"options": {"inference_timesteps": 1}}, InvalidArgument, "inference_timesteps is 1; it must lie in 4"),
        ({"options": {"mode": "continuation"}, "voice": "Mute"}, InvalidArgument, "needs the clip's transcript"),
        ({"options": {"mode": "reference"}, "voice": None}, InvalidArgument, "give a voice or reference_audio"),
        ({"x_vector_only": False, "voice": "Mute"}, InvalidArgument, "has no transcript"),
        ({"x_vector_only": True}, Unsupported, "no speaker embedding; give a voice or reference_audio"),
        ({"voice": None, "speaker_embedding": np.ones(192)}, Unsupported, "no speaker embedding"),
        ({"do_sample": False}, Unsupported, "this model has no do_sample"),
        ({"top_k": 5}, Unsupported, "this model has no top_k"),
        ({"top_p": 0.5}, Unsupported, "this model has no top_p"),
        ({"repetition_penalty": 1.1}, Unsupported, "this model has no repetition_penalty"),
        ({"temperature": -1.0}, InvalidArgument, "temperature"),
        ({"language": "English"}, Unsupported, "takes no language, got 'English'"),
        ({"non_streaming_mode": False}, Unsupported, "reads the whole text first"),
        ({"voice": "Nobody"}, VoiceNotFound, "Nobody"),
        ({"max_frames": 0}, InvalidArgument, "max_frames"),
    ],
)
def test_what_it_refuses(client: Client, given: dict[str, Any], error: type[VoiceCloneError], message: str) -> None:
    asked = {name: value for name, value in {"voice": "Ada", **given}.items() if value is not None}
    with pytest.raises(error, match=message):
        heard(client, **asked)


def test_voices_are_restored_and_erased(checkpoint: Path, server: TritonServer, client: Client, tmp_path: Path) -> None:
    with restored_and_erased(server, client, checkpoint, tmp_path, heard):
        pass
