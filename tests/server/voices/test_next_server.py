"""What the next server has of one that crashed: the voices, their reports, and their clips that were cut.

It gets what lies on the disk while the first still runs, as a SIGKILL would leave it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from voice_clone_client import Client, Voice

from tests.support.families.factories import CheckpointFactory
from tests.support.official.phone_clips import PADDED
from tests.support.same_audio import is_same_audio
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]


@dataclass(frozen=True)
class First:
    """What the first server had and said.

    Attributes:
        names: of all voices.
        keeper: a voice, and `spoken` by it.
            whole, cut: voices of a clip with silence, which one of them has lost; `embedding` is that of `cut`.
    """

    names: set[str]
    keeper: Voice
    spoken: NDArray[np.float32]
    whole: Voice
    cut: Voice
    embedding: NDArray[np.float32]


def say(client: Client, voice: str) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Samples and info of a short speech."""
    speech = client.speak("Good evening.", voice=voice, seed=5, max_frames=10)
    samples, _ = speech.read()
    return samples, dict(speech.info or {})


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the next server."""
    return tmp_path_factory.mktemp("next-server") / "voices"


@pytest.fixture(scope="module")
def first(server: TritonServer, voices: Path, reference_clip: bytes, reference_text: str) -> First:
    with Client(server.url) as client:
        keeper = client.upload("Keeper", reference_clip, reference_text=reference_text, wait=True)
        client.upload("Gone", reference_clip, wait=True)
        client.delete("Gone")
        spoken, _ = say(client, "Keeper")
        whole = client.upload("Whole", PADDED, reference_text=reference_text, wait=True)
        cut = client.upload("Cut", PADDED, reference_text=reference_text, trim_silence=True, wait=True)
        embedding = client.speaker_embedding("Cut")
        assert not np.array_equal(embedding, client.speaker_embedding("Whole"))
        names = {each.name for each in client.list()}
        shutil.copytree(server.voices, voices)
        for name in ("Keeper", "Whole", "Cut"):
            client.delete(name)
    return First(names, keeper, spoken, whole, cut, embedding)


@pytest.fixture(scope="module")
def later(first: First, voices: Path, checkpoint_folder: CheckpointFactory) -> Iterator[Client]:
    """A client of the next server."""
    with (
        TritonServer(checkpoint_folder("tiny", 0), voices, log=voices.parent / "log") as server,
        Client(server.url) as client,
    ):
        assert {each.name for each in client.list()} == first.names
        assert client.stats()["extractions"] == 0
        yield client
        server.kill()


def test_it_has_the_voices(later: Client, first: First, reference_clip: bytes) -> None:
    before = later.stats()["extractions"]
    assert later.get("Keeper") == first.keeper
    again, info = say(later, "Keeper")
    assert info["cache"] == "restored" and info["generation"] == first.keeper.generation
    # The talker has read what its prompts begin with while the server started.
    assert info["prompt_positions"] < info["reference_tokens"]
    more = say(later, "Keeper")[1]
    assert more["cache"] == "hit" and more["prompt_positions"] == info["prompt_positions"]
    assert later.stats()["extractions"] == before
    assert is_same_audio(again, first.spoken)
    assert (later.upload("Later", reference_clip).generation or 0) > (first.keeper.generation or 0)


def test_it_has_the_reports_and_the_cut_clip(later: Client, first: First) -> None:
    assert first.whole.warnings and first.cut.report is not None
    assert later.get("Whole") == first.whole and later.get("Cut") == first.cut
    np.testing.assert_array_equal(later.speaker_embedding("Cut"), first.embedding)
    remade = later.prepare("Cut", force=True)
    assert remade.report == first.cut.report
    np.testing.assert_array_equal(later.speaker_embedding("Cut"), first.embedding)
