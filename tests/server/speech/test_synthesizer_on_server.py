"""The server names what makes its sound, before a speech and with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from voice_clone_client import Client

from tests.support.families.factories import CheckpointFactory
from tests.support.servers.running import running
from tests.support.waiting import until

pytestmark = pytest.mark.share("servers")


def synthesizer(client: Client) -> str | None:
    [family] = client.families(synthesizers=True).values()
    return family.synthesizer


def test_a_speech_says_what_the_list_of_families_says(client: Client, voice: str) -> None:
    until(lambda: synthesizer(client) is not None)
    with client.speak("One.", voice=voice, seed=1, max_frames=4, synthesizer=True) as speech:
        speech.read()
        assert speech.info and speech.info["synthesizer"] == synthesizer(client)
    with client.speak("One.", voice=voice, seed=1, max_frames=4) as speech:
        speech.read()
        assert speech.info and "synthesizer" not in speech.info, "only who asks gets it"


@pytest.mark.thorough
def test_the_next_server_has_the_same_and_another_precision_another_one(
    client: Client, checkpoint_folder: CheckpointFactory, tmp_path: Path
) -> None:
    until(lambda: synthesizer(client) is not None)
    for name, precision, same in (("next", "fp32", True), ("other", "bf16", False)):
        (tmp_path / name).mkdir()
        with (
            running(checkpoint_folder("tiny", 0), tmp_path / name, VOICE_CLONE_PRECISION=precision) as server,
            Client(server.url) as other,
        ):
            until(lambda: synthesizer(other) is not None)
            assert (synthesizer(other) == synthesizer(client)) is same
