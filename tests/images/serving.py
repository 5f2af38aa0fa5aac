"""Containers of the image for a CPU that serve the demo's checkpoint, and what a caller does with them."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from voice_clone_client import Client
from websockets.sync.client import connect

from tests.images.engine import Container, Engine, Ports
from voice_clone_server.triton_server import ROOT

CLIPS = ROOT / "tools" / "data" / "demo_clips"
TEXT = "The small key is under the table."
CONFINED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges")


@contextmanager
def serving(
    engine: Engine, cache: str, voices: str, *options: str, target: str = "cpu", more: Sequence[str] = ()
) -> Iterator[tuple[Container, Ports]]:
    """A container with the demo's checkpoint and voice, at ports of its own. `options` are those of the engine, `more`
    those of the server."""
    ports = Ports()
    command = serve("/checkpoint", *ports.options, "--first-voice=/opt/voice-clone/demo.wav", *more)
    mounts = (f"--volume={cache}:/cache", f"--volume={voices}:/voices")
    with engine.container(target, *mounts, *options, command=command) as container:
        yield container.ready(), ports


def serve(checkpoint: str, *options: str) -> list[str]:
    """The image's command with other options."""
    own = ["voice-clone-server", "serve", "--models=/models", "--host=0.0.0.0", "--load-seconds=3600"]
    return [*own, f"--checkpoint={checkpoint}", *options]


def over_http(ports: Ports, voice: str) -> bytes:
    """A speech, as raw PCM."""
    body = {"input": TEXT, "voice": voice, "response_format": "pcm"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{ports.gateway}/v1/audio/speech",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return bytes(answer.read())


def over_a_socket(ports: Ports, voice: str) -> bytes:
    """A speech whose text comes in pieces, as raw PCM."""
    audio = b""
    with connect(f"ws://127.0.0.1:{ports.gateway}/v1/audio/speech/stream", proxy=None) as socket:
        socket.send(json.dumps({"type": "session.config", "voice": voice, "response_format": "pcm"}))
        for piece in (TEXT[:9], TEXT[9:]):
            socket.send(json.dumps({"type": "input.text", "text": piece}))
        socket.send(json.dumps({"type": "input.done"}))
        for message in socket:
            if isinstance(message, bytes):
                audio += message
            elif json.loads(message)["type"] in ("session.done", "error"):
                break
    return audio


def over_triton_s_http(ports: Ports, voice: str) -> int:
    """The samples of a speech from Triton's own endpoint."""
    body = json.dumps({"text": TEXT, "voice": voice, "seed": 1}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{ports.http}/v2/models/qwen3_tts/generate_stream", body)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return sum(len(json.loads(line[5:])["audio"]) for line in answer if line.startswith(b"data:"))


def over_grpc(client: Client, voice: str) -> int:
    """The samples of a speech."""
    with client.speak(TEXT, voice=voice, seed=1) as speech:
        return sum(len(chunk.samples) for chunk in speech)


def speaks(ports: Ports, *voices: str) -> None:
    """Check that these voices, and no others, are there and speak over every interface."""
    with ports.client() as client:
        assert [each.name for each in client.list()] == list(voices)
        for voice in voices:
            assert len(over_http(ports, voice)) > 24000, "half a second"
            assert len(over_a_socket(ports, voice)) > 24000
            assert over_grpc(client, voice) == over_triton_s_http(ports, voice) > 12000


def upload(ports: Ports, name: str) -> None:
    with ports.client() as client:
        client.upload(name, CLIPS / "rms.wav", wait=True)
