"""Keys that own their voices, on the real server: each tenant sees and uses its own voices and shared ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from voice_clone_client import Client, VoiceNotFound

from perf.bench.gateway_process import Gateway
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.share("servers")

KEYS = {"alice": "owner voices=2", "bob": "owner", "desk": ""}
VOICES = "/v1/audio/voices"


@pytest.fixture(scope="module")
def tenants(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Path]]:
    """A gateway with three keys, and its audit log."""
    folder = tmp_path_factory.mktemp("tenants")
    (folder / "keys").write_text("\n".join(f"key-{name} speak,manage name={name} {KEYS[name]}" for name in KEYS))
    options = ("--api-keys-file", str(folder / "keys"), "--audit-log", str(folder / "audit"))
    with Gateway(server.url, folder / "log", *options) as gateway:
        yield gateway, folder / "audit"


@pytest.fixture
def caller(tenants: tuple[Gateway, Path]) -> Iterator[Any]:
    """A function that makes the client of a key."""
    made: list[httpx2.Client] = []

    def make(name: str) -> httpx2.Client:
        headers = {"Authorization": f"Bearer key-{name}"}
        made.append(httpx2.Client(base_url=tenants[0].url, headers=headers, timeout=60.0, trust_env=False))
        return made[-1]

    yield make
    for client in made:
        client.close()


def upload(http: httpx2.Client, clip: bytes, name: str, **fields: str) -> httpx2.Response:
    files = {"audio_sample": ("clip.wav", clip, "audio/wav")}
    return http.post(VOICES, data={"name": name, "consent": "by mail", **fields}, files=files)


def speak(http: httpx2.Client, voice: str, text: str = "Hello.") -> httpx2.Response:
    body = {"input": text, "voice": voice, "response_format": "pcm", "max_frames": 3}
    return http.post("/v1/audio/speech", json=body)


def names(http: httpx2.Client) -> set[str]:
    return set(http.get(VOICES).json()["voices"])


def test_tenants(
    caller: Any, tenants: tuple[Gateway, Path], client: Client, server: TritonServer, reference_clip: bytes,
    reference_text: str,
) -> None:  # fmt: skip
    alice, bob, desk = caller("alice"), caller("bob"), caller("desk")
    mine = upload(alice, reference_clip, "Mine", reference_text=reference_text)
    assert mine.status_code == 200 and mine.json()["voice"]["owner"] == "alice"
    assert upload(alice, reference_clip, "Open", shared="true").status_code == 200
    third = upload(alice, reference_clip, "Third")
    assert third.status_code == 429 and third.json()["error"]["code"] == "too_many_voices"
    taken = upload(bob, reference_clip, "mine")
    assert taken.status_code == 409 and "alice" not in taken.text

    assert {"Mine", "Open"} <= names(alice) and {"Mine", "Open"} <= names(desk)
    assert "Open" in names(bob) and "Mine" not in names(bob)
    for http, voice, status in ((alice, "mine", 200), (bob, "mine", 404), (bob, "open", 200), (desk, "mine", 200)):
        for text in ("Hello.", "One sentence after another. " * 20):
            answer = speak(http, voice, text)
            assert answer.status_code == status, (voice, answer.text[:200])
            assert status != 404 or answer.json()["error"]["code"] == "voice_not_found"
    hidden = speak(bob, "mine").json()["error"]["message"]
    assert hidden == speak(bob, "nobody").json()["error"]["message"].replace("nobody", "mine")

    for path in ("/Mine", "/Mine/audio", "/Mine/export", "/Open/audio", "/Open/export"):
        assert bob.get(VOICES + path).status_code == 404, path
    shown = bob.get(f"{VOICES}/Open").json()
    assert not {"consent", "owner", "reference_text"} & set(shown)
    for path in ("/Mine", "/Open"):
        assert bob.delete(VOICES + path).status_code == 404
        assert bob.post(f"{VOICES}{path}/cache", params={"force": "true"}).status_code == 404

    with Client(server.url, owner="bob") as as_bob:
        with pytest.raises(VoiceNotFound):
            as_bob.speak("Hello.", voice="Mine", max_frames=3).read()
        with pytest.raises(VoiceNotFound):
            as_bob.speaker_embedding("Mine")
    assert client.get("Mine").owner == "alice" and client.get("Open").shared

    bundle = alice.get("/v1/audio/bundle").content
    assert bob.get("/v1/audio/bundle").content != bundle
    assert alice.delete(f"{VOICES}/Mine").status_code == 200 and alice.delete(f"{VOICES}/Open").status_code == 200
    binary = {"Content-Type": "application/octet-stream"}
    back = bob.post("/v1/audio/bundle", content=bundle, headers=binary)
    assert back.status_code == 200 and back.json()["voices"] == ["Mine", "Open"]
    assert speak(bob, "mine").status_code == 200 and speak(alice, "open").status_code == 404, "his now, and not shared"
    for voice in ("Mine", "Open"):
        assert bob.delete(f"{VOICES}/{voice}").status_code == 200

    log = tenants[1].read_text()
    entries = [json.loads(line) for line in log.splitlines()]
    assert {entry["key"] for entry in entries} == set(KEYS)
    reported = {(entry["key"], entry["action"], entry["voice"], entry["outcome"]) for entry in entries}
    assert reported >= {
        ("alice", "upload", "Mine", "ok"),
        ("alice", "upload", "Third", "too_many_voices"),
        ("bob", "upload", "mine", "voice_exists"),
        ("bob", "speech", "mine", "voice_not_found"),
        ("bob", "speech", "Open", "ok"),
        ("bob", "export", "Mine", "voice_not_found"),
        ("bob", "delete", "Open", "voice_not_found"),
        ("bob", "import", None, "ok"),
    }
    assert reference_text not in log and "key-" not in log and "Hello" not in log
