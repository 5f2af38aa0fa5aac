"""Several recordings of one speaker on the real server: by each interface the voice has their averaged embedding.

What it should be follows from the embeddings of voices that have one of the recordings each.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import numpy as np
import pytest
import soundfile
from elevenlabs.client import ElevenLabs
from numpy.typing import NDArray
from voice_clone_client import Client, InvalidArgument, VoiceExists
from voice_clone_command.cli import main

from perf.bench.gateway_process import Gateway
from tests.support.servers.running import SETTINGS, running
from tests.support.waiting import WAIT
from voice_clone.audio import decode
from voice_clone.speakers.takes import average, weight
from voice_clone_server.demo import CLIP, SHIPPED
from voice_clone_server.triton_server import MODELS, TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("takes")]
TEXT = "The old captain sold his boat."
CONSENT = "They said so in a letter."
Embedding = NDArray[np.float32]


def played(speed: float, silence: float = 0.0) -> bytes:
    """The demo's clip at another pitch and pace, with silence behind it."""
    samples, rate = soundfile.read(CLIP, dtype="float32")
    places = np.arange(0, len(samples) - 1, speed)
    changed = np.interp(places, np.arange(len(samples)), samples)
    out = io.BytesIO()
    soundfile.write(out, np.append(changed, np.zeros(int(silence * rate))), rate, format="WAV", subtype="PCM_16")
    return out.getvalue()


FILES = [played(1.1, 2.0), played(0.9), played(1.0)]
BEST = 2  # has most speech, and no silence


@pytest.fixture(scope="module")
def takes_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with running(SHIPPED, tmp_path_factory.mktemp("takes"), [MODELS], **SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def client(takes_server: TritonServer) -> Iterator[Client]:
    with Client(takes_server.url) as client:
        yield client


@pytest.fixture(scope="module")
def gateway(takes_server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("takes-gateway")
    with Gateway(takes_server.url, folder / "log", "--vendors-consent", CONSENT, "--allow-partial", "true") as gateway:
        yield gateway
    assert "Traceback" not in (folder / "log").read_text()


@pytest.fixture(scope="module")
def mean(client: Client) -> Embedding:
    """The average of the recordings, each of which a voice has alone."""
    embeddings = []
    for number, file in enumerate(FILES):
        client.upload(f"Only {number}", file, wait=True)
        embeddings.append(client.speaker_embedding(f"Only {number}"))
    return average(embeddings, [weight(decode(file)) for file in FILES])[0]


def check(client: Client, name: str, mean: Embedding) -> None:
    voice = client.get(name)
    assert [take.number for take in voice.takes] == [1, 3] and voice.file_size == len(FILES[BEST - 1])
    assert np.allclose(client.speaker_embedding(name), mean, atol=1e-5)


def test_the_client_and_the_speech(client: Client, mean: Embedding) -> None:
    voice = client.upload("Ada", FILES, consent="yes", wait=True)
    check(client, "Ada", mean)
    (artifacts,) = voice.artifacts
    assert artifacts.cosines is not None and [*artifacts.cosines] == ["1", "2", "3"]

    def heard(**voice: Any) -> Any:
        with client.speak(TEXT, seed=7, **voice) as speech:
            return speech.read()[0]

    assert np.array_equal(heard(voice="Ada"), heard(speaker_embedding=client.speaker_embedding("Ada")))
    assert client.upload("Ada", FILES, consent="yes").generation == voice.generation, "the same upload"
    with pytest.raises(VoiceExists):
        client.upload("Ada", FILES[:2], consent="yes")
    with pytest.raises(InvalidArgument, match="file 2 of 2"):
        client.upload("Bea", [FILES[0], b"no sound"])
    whole = client.export("Ada")
    client.delete("Ada")
    client.import_(whole)
    check(client, "Ada", mean)
    client.prepare("Ada", force=True)
    check(client, "Ada", mean)


def test_a_transcript_is_that_of_the_first(client: Client, mean: Embedding) -> None:
    voice = client.upload("Cleo", FILES, reference_text="Good morning to all of you.", wait=True)
    assert [take.number for take in voice.takes] == [2, 3] and {each.mode for each in voice.artifacts} == {"icl"}
    assert np.allclose(client.speaker_embedding("Cleo"), mean, atol=1e-5)
    client.delete("Cleo")


def test_the_command(
    takes_server: TritonServer, client: Client, mean: Embedding, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / f"{number}.wav" for number in range(3)]
    for path, file in zip(paths, FILES, strict=True):
        path.write_bytes(file)
    assert main(["upload", "Dora", *map(str, paths), "--consent", "yes", "--url", takes_server.url]) == 0
    check(client, "Dora", mean)
    capsys.readouterr()
    assert main(["show", "Dora", "--url", takes_server.url]) == 0
    shown = dict(line.split("\t", 1) for line in capsys.readouterr().out.splitlines())
    assert shown["file 2"].startswith("the clip, cosine") and "of speech, cosine" in shown["file 3"]
    with pytest.raises(SystemExit, match="2"):
        main(["upload", "Ed", str(paths[0]), "-", "-", "--url", takes_server.url])
    assert "only one of the files" in capsys.readouterr().err
    client.delete("Dora")


def test_over_http(gateway: Gateway, client: Client, mean: Embedding) -> None:
    with httpx2.Client(base_url=gateway.url, timeout=WAIT, trust_env=False, verify=False) as http:
        sent = [("audio_sample", (f"{number}.wav", file)) for number, file in enumerate(FILES)]
        answer = http.post("/v1/audio/voices", data={"name": "Fay", "consent": "yes"}, files=sent)
        assert answer.status_code == 200, answer.text
        check(client, "Fay", mean)
        shown = http.get("/v1/audio/voices/Fay").json()
        assert [take["number"] for take in shown["takes"]] == [1, 3] and len(shown["artifacts"][0]["cosines"]) == 3
        assert http.get("/v1/audio/voices/Fay/audio").content == FILES[BEST - 1]
    client.delete("Fay")


def test_files_of_elevenlabs(gateway: Gateway, client: Client, mean: Embedding) -> None:
    with httpx.Client(timeout=WAIT) as http:
        elevenlabs = ElevenLabs(base_url=gateway.url, api_key="unused", httpx_client=http)
        made = elevenlabs.voices.ivc.create(name="Gia", files=[io.BytesIO(file) for file in FILES])
        check(client, "Gia", mean)
        elevenlabs.voices.update(made.voice_id, name="Gia", files=[FILES[2], FILES[1]])
        changed = client.get("Gia")
        assert [take.number for take in changed.takes] == [1] and changed.file_size == len(FILES[1])
        elevenlabs.voices.delete(made.voice_id)
