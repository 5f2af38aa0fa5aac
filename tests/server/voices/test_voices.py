"""Registered voices on the real server: their life, and what a restart leaves of them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from voice_clone_client import Client, InvalidArgument, VoiceExists, VoiceNotFound

from tests.support.same_audio import is_same_audio
from voice_clone_server.triton_server import ServerFailed, TritonServer

pytestmark = pytest.mark.share("servers")


def say(client: Client, voice: str | None, **given: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """Samples and info of a short speech."""
    speech = client.speak("Good evening.", **{"voice": voice, "seed": 5, "max_frames": 10, **given})
    samples, _ = speech.read()
    return samples, dict(speech.info or {})


def test_upload_get_list_delete(client: Client, reference_clip: bytes) -> None:
    voice = client.upload("Ada", reference_clip, consent="by mail", description="a test", wait=True, replace=True)
    assert (voice.name, voice.consent, voice.description) == ("Ada", "by mail", "a test")
    assert voice.sample_rate == 22050 and voice.duration == pytest.approx(5.18, abs=0.01)
    assert voice.file_size == len(reference_clip) and voice.mime_type == "audio/wav"
    assert client.get("ada").generation == voice.generation
    assert [each.name for each in client.list()].count("Ada") == 1
    _, info = say(client, "ADA")
    assert info["mode"] == "x_vector" and info["voice"] == "Ada"
    client.delete("Ada")
    for gone in (client.get, client.delete, client.prepare, lambda name: say(client, name)):
        with pytest.raises(VoiceNotFound):
            gone("Ada")


def test_a_new_upload_replaces_and_is_never_stale(client: Client, reference_clip: bytes) -> None:
    import io

    import soundfile

    first = client.upload("Twice", reference_clip, wait=True)
    old, _ = say(client, "Twice")
    samples, rate = soundfile.read(io.BytesIO(reference_clip), dtype="float32")
    other = io.BytesIO()
    soundfile.write(other, samples[::-1], rate, format="WAV")
    with pytest.raises(InvalidArgument):
        client.upload("Twice", b"no audio", replace=True)
    assert is_same_audio(say(client, "Twice")[0], old)
    with pytest.raises(VoiceExists, match="'Twice'"):
        client.upload("twice", other.getvalue())
    assert client.upload("Twice", reference_clip).generation == first.generation, "it is the same"
    second = client.upload("Twice", other.getvalue(), wait=True, replace=True)
    assert second.generation > first.generation
    new, info = say(client, "Twice")
    assert info["generation"] == second.generation
    assert not is_same_audio(new, old)
    client.delete("Twice")


def test_a_request_by_name_is_small() -> None:  # A8
    from voice_clone_client import requests

    knobs: Any = {"language": "English", "seed": 2**63, "max_frames": 100}
    request = requests.speech("Good morning. " * 20, {"voice": "Harbour", **knobs}, None, None)
    request.model_name = "qwen3_tts"
    assert request.ByteSize() < 2048


def test_a_voice_is_extracted_once(client: Client, reference_clip: bytes) -> None:
    before = client.stats()["extractions"]
    client.upload("Once", reference_clip, reference_text="The harbour was quiet.", wait=True)
    for _ in range(3):
        assert say(client, "Once")[1]["cache"] == "hit"
    client.prepare("Once")
    assert client.stats()["extractions"] == before + 1
    client.prepare("Once", force=True)
    assert client.stats()["extractions"] == before + 2
    client.delete("Once")


def test_a_voice_from_an_embedding(client: Client, voice: str) -> None:
    size = int(np.zeros(64).size)
    embedding = np.random.default_rng(1).normal(size=size).astype(np.float32)
    try:
        client.upload("Direct", speaker_embedding=embedding)
    except InvalidArgument as error:
        size = next(int(word) for word in str(error).replace(";", " ").split() if word.isdigit() and int(word) != size)
        embedding = np.random.default_rng(1).normal(size=size).astype(np.float32)
        client.upload("Direct", speaker_embedding=embedding)
    before = client.stats()["extractions"]
    named, info = say(client, "Direct")
    inline, _ = say(client, None, speaker_embedding=embedding)
    assert is_same_audio(named, inline)
    assert info["mode"] == "x_vector" and client.stats()["extractions"] == before
    with pytest.raises(InvalidArgument, match="transcript"):
        say(client, "Direct", x_vector_only=False)
    client.delete("Direct")


def test_a_second_server_may_not_own_the_same_voices(server: TritonServer, tmp_path: Path) -> None:
    second = TritonServer(
        voices=server.voices,
        log=tmp_path / "log",
        options=["--model-control-mode=explicit", "--load-model=speaker_cache"],
    )
    try:
        with pytest.raises(ServerFailed, match=f"(?s)speaker_cache.*{_holder(server)}"):
            second.start()
    finally:
        second.stop()


def _holder(server: TritonServer) -> str:
    """The lock's message names the process that holds it: the model's process, a child of the server."""
    assert server.process is not None
    children = subprocess.run(
        ["pgrep", "-g", str(server.process.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    return f"({'|'.join(children)})"
