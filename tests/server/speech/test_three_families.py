"""CosyVoice3, Fish Speech and Qwen3-TTS on one server: one cache, one upload for all, each speaks as it does alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from voice_clone_client import Client, InvalidArgument, Unsupported, VoiceNotFound

from tests.support.doubles.fakes import clip
from tests.support.families.cosyvoice3 import make_cosyvoice3
from tests.support.families.cosyvoice3_bare import BareCosyVoice3
from tests.support.families.fish_bare import BareFish
from tests.support.families.qwen3_bare import GREEDY, BareQwen3
from tests.support.same_audio import is_same_audio
from tests.support.servers.both_families import SETTINGS
from tools.triton_server import TritonServer
from voice_clone.families.cosyvoice3.config import MARK

pytestmark = [pytest.mark.thorough, pytest.mark.share("families")]

TEXT, FRAMES = "Good morning.", 60
FAMILIES = ("cosyvoice3", "fish_speech", "qwen3_tts")
KNOBS: dict[str, Any] = {"max_frames": FRAMES, "do_sample": False, "seed": 2}
QWEN3_OPTIONS = {"subtalker_do_sample": False}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its mark would make a file, or end the server, if a parser of YAML saw it."""
    made = make_cosyvoice3(tmp_path_factory.mktemp("cosyvoice3") / "checkpoint")
    (made / MARK).write_text(f"x: !!python/object/apply:os.mkdir ['{made / 'sprung'}']\n- {{", encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def server(
    checkpoint: Path, both_checkpoints: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """It takes clips of a minute."""
    folder = tmp_path_factory.mktemp("server")
    environment = {**SETTINGS, "VOICE_CLONE_MAX_CLIP_SECONDS": "60"}
    checkpoints = [*both_checkpoints, checkpoint]
    with TritonServer(checkpoints, folder / "voices", log=folder / "log", environment=environment) as server:
        yield server
        assert server.ready(), "a test made the server unready"
        assert not (checkpoint / "sprung").exists(), "the mark was read"
        server.kill()


@pytest.fixture(scope="module")
def client(server: TritonServer) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def heard(client: Client, voice: str, family: str, **given: Any) -> NDArray[np.float32]:
    options = {"options": QWEN3_OPTIONS} if family == "qwen3_tts" else {}
    samples, _ = client.speak(TEXT, voice=voice, model=family, **{**KNOBS, **options, **given}).read()
    return samples


def states(client: Client, voice: str) -> dict[str, str]:
    return {each.model_type: each.state for each in client.get(voice).artifacts}


def test_one_upload_speaks_in_all_as_each_does_alone(
    client: Client, checkpoint: Path, both_checkpoints: list[Path], reference_clip: bytes, reference_text: str
) -> None:
    before = client.stats()["extractions"]
    client.upload("Ada", reference_clip, reference_text=reference_text, wait=True)
    assert states(client, "Ada") == dict.fromkeys(FAMILIES, "ready")
    assert client.stats()["extractions"] == before + 3
    fish, qwen3 = BareFish(both_checkpoints[1]), BareQwen3(both_checkpoints[0])
    alone = {
        "cosyvoice3": BareCosyVoice3(checkpoint).speak(TEXT, reference_clip, reference_text, **KNOBS).samples,
        "fish_speech": fish.speak(TEXT, fish.codes(reference_clip), reference_text, **KNOBS).samples,
        "qwen3_tts": qwen3.speak(qwen3.prompt(TEXT, reference_clip, reference_text), FRAMES, GREEDY),
    }
    with ThreadPoolExecutor(3) as pool:  # at once: none disturbs another
        together = dict(zip(FAMILIES, pool.map(lambda family: heard(client, "Ada", family), FAMILIES), strict=True))
    for family, samples in together.items():
        assert is_same_audio(samples, alone[family]), family
    assert client.stats()["extractions"] == before + 3


def test_a_deleted_voice_is_erased_in_all(client: Client, server: TritonServer, reference_clip: bytes) -> None:
    assert server.voices is not None
    files = {path for path in server.voices.rglob("*") if path.is_file()} | {server.voices / "generation"}  # a counter
    client.upload("Bob", reference_clip, reference_text="Some words.", wait=True)
    assert all(len(heard(client, "Bob", family, max_frames=30)) for family in FAMILIES)
    client.delete("Bob")
    for family in FAMILIES:
        with pytest.raises(VoiceNotFound):
            heard(client, "Bob", family)
    assert {path for path in server.voices.rglob("*") if path.is_file()} <= files


def test_a_clip_that_is_too_long_for_one_serves_the_others(client: Client) -> None:
    long = clip(7, 40.0, 24000)
    client.upload("Long", long, reference_text="Many words.", wait=True)
    assert states(client, "Long") == {"cosyvoice3": "unsupported", "fish_speech": "unsupported", "qwen3_tts": "ready"}
    reasons = {each.model_type: each.reason for each in client.get("Long").artifacts}
    assert "40.00 s long; CosyVoice3 takes at most 30 s" in str(reasons["cosyvoice3"])
    assert re.search(r"the clip has 8\d\d frames, and this family takes at most 768 here", str(reasons["fish_speech"]))
    assert len(heard(client, "Long", "qwen3_tts", max_frames=5)) == 5 * 1920
    with pytest.raises(Unsupported, match="takes at most 768"):
        heard(client, "Long", "fish_speech")
    for given in ({"voice": "Long"}, {"reference_audio": long}):
        with pytest.raises(Unsupported, match="CosyVoice3 takes at most 30 s of a voice"):
            client.speak(TEXT, model="cosyvoice3", **KNOBS, **given).read()  # type: ignore[arg-type]
    client.delete("Long")


def test_no_family_takes_a_clip_above_the_limit(client: Client) -> None:
    with pytest.raises(InvalidArgument, match=r"60\.50 s long; it must be 1 to 60 s"):
        client.upload("Longer", clip(8, 60.5, 16000))
