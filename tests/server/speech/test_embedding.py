"""The speaker embedding of a voice, taken out, blended and spoken, on the real server."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from voice_clone_client import Client
from voice_clone_client.embedding import blend, load
from voice_clone_command import cli

from tests.support.same_audio import is_same_audio
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.share("servers")


def say(client: Client, **given: Any) -> np.ndarray:
    """Samples of one sentence, by the speaker embedding alone where the voice has more."""
    return client.speak("Good evening.", seed=5, max_frames=10, **given).read()[0]


def assert_same(spoken: np.ndarray, expected: np.ndarray) -> None:
    """The same codes give the same samples but for rounding, which depends on how they were cut into chunks."""
    np.testing.assert_allclose(spoken, expected, rtol=0, atol=1e-4)


@pytest.fixture
def other_voice(client: Client, reference_clip: bytes) -> Iterator[str]:
    """Name of a voice that has another speaker embedding: the clip, faster."""
    samples, rate = soundfile.read(io.BytesIO(reference_clip), dtype="float32")
    faster = io.BytesIO()
    soundfile.write(faster, samples, round(rate * 1.3), format="WAV")
    client.upload("Faster", faster.getvalue(), wait=True)
    yield "Faster"
    client.delete("Faster")


def test_an_extracted_embedding_speaks_as_its_voice(client: Client, voice: str) -> None:
    embedding = client.speaker_embedding(voice)
    assert embedding.ndim == 1 and embedding.dtype == np.float32
    spoken = say(client, speaker_embedding=embedding)
    assert is_same_audio(spoken, say(client, voice=voice, x_vector_only=True))


@pytest.mark.parametrize("method", ["linear", "spherical"])
def test_a_blend_lies_between_its_ends(client: Client, voice: str, other_voice: str, method: Any) -> None:
    first, second = client.speaker_embedding(voice), client.speaker_embedding(other_voice)
    at_first = say(client, speaker_embedding=blend(first, second, 0.0, method))
    assert is_same_audio(at_first, say(client, voice=voice, x_vector_only=True))
    at_second = say(client, speaker_embedding=blend(first, second, 1.0, method))
    assert is_same_audio(at_second, say(client, voice=other_voice))
    assert not is_same_audio(at_first, at_second)


def test_the_command_extracts_blends_and_registers(
    server: TritonServer, client: Client, voice: str, other_voice: str, tmp_path: Path
) -> None:
    def run(*arguments: object) -> None:
        assert cli.main(["--url", server.url, "embedding", *map(str, arguments)]) == 0

    run("extract", voice, "-o", tmp_path / "first.safetensors")
    run("blend", tmp_path / "first.safetensors", other_voice, "--weight", 0.3, "--register", "Between")
    expected = blend(load(tmp_path / "first.safetensors"), client.speaker_embedding(other_voice), 0.3)
    np.testing.assert_array_equal(client.speaker_embedding("Between"), expected)
    assert is_same_audio(say(client, voice="Between"), say(client, speaker_embedding=expected))
    assert client.get("Between").embedding_source == "direct"
    client.delete("Between")


def test_prepare_in_another_mode_and_export_without_audio(client: Client, voice: str) -> None:
    before = client.stats()["extractions"]
    assert client.prepare(voice, mode="x_vector", timeout=30).name == voice
    states = {(entry.mode, entry.state) for entry in client.get(voice).artifacts}
    assert {("icl", "ready"), ("x_vector", "ready")} <= states
    assert client.stats()["extractions"] - before <= 1
    assert len(client.export(voice, include_audio=False)) < len(client.export(voice)) - 100_000
