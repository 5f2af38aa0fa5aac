"""Directions on the real server, in the demo's voice: made by the command, brought in the checkpoint's folder, spoken.

What a voice with a direction should be is that of its embedding with the vector added, sent ready-made.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from voice_clone_client import Client, InvalidArgument
from voice_clone_command.cli import main

from perf.bench.gateway_process import Gateway
from tests.support.servers.jobs import content, made, sentences
from tests.support.servers.running import SETTINGS, running
from tests.support.waiting import until
from voice_clone_server.demo import CLIP, SHIPPED
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("styles")]
TEXT = "The old captain sold his boat."
Sound = NDArray[np.float32]


def faster(clip: bytes, by: float) -> bytes:
    samples, rate = soundfile.read(io.BytesIO(clip), dtype="float32")
    out = io.BytesIO()
    soundfile.write(out, samples, round(rate * by), format="WAV", subtype="PCM_16")
    return out.getvalue()


@pytest.fixture(scope="module")
def digests() -> list[str]:
    """What made the sound of each server."""
    return []


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, digests: list[str]) -> Path:
    """The demo's, with a direction that the command made on a server of it, and one of another checkpoint. Beside it
    are the voices of this server: those of the clips, and Ada.
    """
    folder = tmp_path_factory.mktemp("directions")
    checkpoint, clips = folder / "checkpoint", [Path(CLIP), *(folder / f"{number}.wav" for number in range(3))]
    (checkpoint / "directions").mkdir(parents=True)
    for path in Path(SHIPPED).iterdir():
        (checkpoint / path.name).symlink_to(path)
    for clip, by in zip(clips[1:], (1.05, 1.2, 1.3), strict=True):
        clip.write_bytes(faster(clips[0].read_bytes(), by))
    made = checkpoint / "directions" / "joy.safetensors"
    with running(checkpoint, folder, **SETTINGS) as server, Client(server.url) as client:
        neutral, other = [str(clip) for clip in clips[:2]], [str(clip) for clip in clips[2:]]
        asked = ["direction", "make", "joy", "--neutral", *neutral, "--with", *other, "-o", str(made)]
        assert main([*asked, "--url", server.url]) == 0
        assert client.list() == [], "the clips of a direction are not kept"
        for clip in clips:
            client.upload(clip.stem, clip.read_bytes(), wait=True)
        of_voices = [client.speaker_embedding(clip.stem) for clip in clips]
        expected = np.mean(of_voices[2:], axis=0) - np.mean(of_voices[:2], axis=0)
        np.testing.assert_allclose(load_file(made)["joy"], expected, rtol=0, atol=1e-5)
        client.upload("Ada", clips[0], reference_text="What she says there.", wait=True)
        client.upload("Ada", clips[3], style="happy", reference_text="What she says here.", wait=True)
        digests.append(sound_of(client))
    save_file({"calm": load_file(made)["joy"]}, checkpoint / "directions" / "calm.safetensors", {"fingerprint": "0"})
    return checkpoint


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[TritonServer]:
    """It has the voices of the server before, whose prefixes it restores."""
    with running(checkpoint, checkpoint.parent, **SETTINGS, VOICE_CLONE_DETERMINISTIC="true") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: TritonServer) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def sound_of(client: Client) -> str:
    """The digest of what makes the server's sound."""
    until(lambda: client.families(synthesizers=True)["qwen3_tts"].synthesizer is not None)
    return str(client.families(synthesizers=True)["qwen3_tts"].synthesizer)


def heard(client: Client, **given: Any) -> tuple[Sound, dict[str, Any]]:
    with client.speak(TEXT, **{"seed": 7, "voice": "Ada", **given}) as speech:
        return speech.read()[0], dict(speech.info or {})


def ready(client: Client, checkpoint: Path, of: str, strength: float) -> Sound:
    """The speech of a ready embedding: that of a voice with the direction added."""
    vector = np.float32(strength) * load_file(checkpoint / "directions" / "joy.safetensors")["joy"]
    client.upload("Ready", speaker_embedding=client.speaker_embedding(of) + vector, replace=True, wait=True)
    return heard(client, voice="Ready")[0]


def test_a_direction_is_added_to_the_embedding(client: Client, checkpoint: Path) -> None:
    """The first speech has a direction, where the talker knows the prefix of the voice without it."""
    of_clip = {"": CLIP.stem, "happy+": "2"}
    for before, voice in of_clip.items():
        for strength in (0.6, -1.5, 3.0, 0.0):
            expected, style = ready(client, checkpoint, voice, strength), f"{before}joy:{strength}"
            for cache in (True, True, False):
                got, info = heard(client, style=style, x_vector_only=True, cache=cache)
                assert np.array_equal(got, expected), (style, cache)
                assert info["directions"] == {"joy": strength} and info.get("style", "") == before.rstrip("+")
        plain, info = heard(client, style=before.rstrip("+") or None, x_vector_only=True)
        assert np.array_equal(plain, expected) and "directions" not in info
    about = {"generation": info["generation"], "model": "qwen3_tts", "mode": "icl", "style": "happy"}
    client.keep_loudness("Ada", -20.0, **about)
    assert heard(client, style="happy")[1]["loudness"] == -20.0
    assert "loudness" not in heard(client, style="happy+joy:1")[1], "it is another sound"
    expected = ready(client, checkpoint, "2", 0.6)
    bundle = client.export("Ada", include_audio=False)
    got, _ = heard(client, voice=None, voice_prompt=bundle, style="sad,HAPPY + Joy: 0.6", x_vector_only=True)
    assert np.array_equal(got, expected)


def test_strengths_do_not_mix(client: Client) -> None:
    """Alone, again and side by side, in context and by the embedding."""
    ways = [
        {"style": style, "x_vector_only": alone or None}
        for alone in (False, True)
        for style in (None, "joy:0", "joy:0.6", "joy:1.2", "happy", "happy+joy:0.6")
    ]
    alone = [heard(client, **way)[0] for way in ways]
    assert heard(client)[1]["mode"] == "icl"
    assert len({sound.tobytes() for sound in alone}) == len(ways) - 2, "joy:0 is none, each other one is another speech"
    with ThreadPoolExecutor(6) as pool:
        beside = list(pool.map(lambda way: heard(client, **way)[0], ways * 2))
    for way, sound, expected in zip(ways * 2, beside, alone * 2, strict=True):
        assert np.array_equal(sound, expected), way


def test_what_is_no_direction_here(client: Client) -> None:
    for style in ("joy:", "joy:x", "joy:nan", "joy:3.1", "joy:-1e9", "joy:1+joy:1", "joy:1+happy", "joy:1,neutral"):
        with pytest.raises(InvalidArgument, match=r"from -3 to 3, such as joy:0\.6"):
            heard(client, style=style)
    for style, why in (("rage:1", "'rage' is not there; there are joy"), ("calm:1", "another checkpoint.*joy")):
        with pytest.raises(InvalidArgument, match=why):
            heard(client, style=style)
    with pytest.raises(InvalidArgument, match="its styles are neutral, happy"):
        heard(client, style="sad+joy:1")


def test_http_the_command_and_jobs(server: TritonServer, client: Client, tmp_path: Path, digests: list[str]) -> None:
    assert sound_of(client) not in digests, "a direction is a part of what makes the sound"
    body = {"voice": "Ada", "input": TEXT, "response_format": "wav", "seed": 7, "allow_partial": True}
    with (
        Gateway(server.url, tmp_path / "log", "--jobs-dir", str(tmp_path / "jobs")) as gateway,
        httpx2.Client(base_url=gateway.url, timeout=60.0, trust_env=False) as http,
    ):

        def said(**how: Any) -> str:
            return samples(http.post("/v1/audio/speech", json={**body, **how}).raise_for_status().content)

        def job(**how: Any) -> tuple[str, int]:
            found = made(http, {**body, **how})
            return samples(content(http, found)), sentences(found)[1]

        out = tmp_path / "out.wav"
        asked = ["speak", TEXT, "--voice", "Ada", "--style", "happy+joy:0.6", "--seed", "7", "--allow-partial"]
        assert main([*asked, "-o", str(out), "--url", server.url]) == 0
        assert said(style="happy+joy:0.6") == samples(out.read_bytes()) != said(style="happy")
        of_request = f"<speak><voice style='joy:0.6'>{TEXT}</voice></speak>"
        assert said(input=of_request) == said(style="joy:0.6")
        styles = (None, "joy:0.6", "joy:1.2", "happy", "happy+joy:0.6", "sad,happy+joy:1.2")
        first = [job(style=style) for style in styles]
        assert [count for _, count in first] == [1] * len(styles) and len({sound for sound, _ in first}) == len(styles)
        assert [job(style=style) for style in styles] == [(sound, 0) for sound, _ in first]


def samples(wav: bytes) -> str:
    """Their digest."""
    return hashlib.sha256(soundfile.read(io.BytesIO(wav), dtype="int16")[0].tobytes()).hexdigest()
