"""Even loudness on the real server: a voice is measured once for all gateways, and before its first speech."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from voice_clone_client import Client

from perf.bench.gateway_process import Gateway
from tests.support.waiting import WAIT, until
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]


@pytest.fixture(scope="module")
def gateways(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    folder, options = tmp_path_factory.mktemp("loudness"), ("--allow-partial", "true")
    with (
        Gateway(server.url, folder / "one", *options) as one,
        Gateway(server.url, folder / "other", *options, "--measure-voices", "true") as other,
    ):
        yield [one.url, other.url]
    assert "Traceback" not in (folder / "one").read_text() + (folder / "other").read_text()


@pytest.fixture
def new(client: Client, reference_clip: bytes) -> Iterator[str]:
    """A voice that nobody has measured."""
    client.upload("Loud", reference_clip, wait=True)
    yield "Loud"
    client.delete("Loud")


def spoken(url: str, voice: str, **more: Any) -> tuple[bytes, dict[str, Any]]:
    body = {"input": "Good morning.", "voice": voice, "seed": 7, "max_frames": 20, "response_format": "pcm", **more}
    answer = httpx2.post(f"{url}/v1/audio/speech", json=body, timeout=WAIT)
    assert answer.status_code == 200, answer.text
    return answer.content, json.loads(answer.headers["x-speech-info"])


def test_a_voice_is_measured_once_for_all_gateways(gateways: list[str], new: str, client: Client) -> None:
    one, other = gateways
    plain, before = spoken(one, new)
    assert "loudness" not in before, "nobody has asked for it"
    first, _ = spoken(one, new, loudness=-18)
    again, known = spoken(other, new, loudness=-18)
    assert first == again != plain
    assert -60 < known["loudness"] < 0
    assert spoken(other, new)[0] == plain, "without a wish nothing changes"
    with client.speak("Good morning.", voice=new, seed=7, max_frames=20) as speech:
        speech.read()
        assert (speech.info or {})["loudness"] == known["loudness"], "a client that measures for itself knows it, too"


def test_a_new_voice_is_measured_before_its_first_listener(
    gateways: list[str], client: Client, reference_clip: bytes
) -> None:
    form = {"name": "Early", "consent": "yes"}
    answer = httpx2.post(
        f"{gateways[1]}/v1/audio/voices", data=form, files={"audio_sample": ("a.wav", reference_clip)}, timeout=WAIT
    )
    assert answer.status_code == 200, answer.text
    until(lambda: "loudness" in spoken(gateways[0], "Early")[1])
    ahead, _ = spoken(gateways[1], "Early", loudness=-18)
    assert ahead == spoken(gateways[0], "Early", loudness=-18)[0]
    client.upload("Early", reference_clip, replace=True, wait=True, trim_silence=True)
    assert "loudness" not in spoken(gateways[0], "Early")[1], "another clip is another voice"
    client.delete("Early")
