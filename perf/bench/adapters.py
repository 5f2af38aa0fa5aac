"""First audio through each vendor's API beside the gateway's own: what the adapters cost.

    perf/adapters                       starts a server of the demo's voice
    perf/adapters --url URL --voice VOICE

Each call through an adapter comes right before or after one through the gateway's own API, so both meet the same
machine. Prints milliseconds from a request to its first audio: the median of either, and that of the differences of
the pairs. Connections are open before. All ask for 16 bits at 24 kHz.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from voice_clone_client import Client
from websockets.sync.client import connect

from perf.bench.gateway_process import Gateway
from voice_clone_server.triton_server import MODELS, ROOT, TritonServer

TEXT = "My sister wants a new car."
VOICE = "Adapted"
CARTESIA = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}


@dataclass(frozen=True)
class Request:
    """A call over HTTP."""

    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Socket:
    """A WebSocket: messages before the text, and those with it, to the first one with audio."""

    path: str
    messages: Sequence[Mapping[str, Any]]
    before: Sequence[Mapping[str, Any]] = field(default=())


def ways(voice: str) -> dict[str, tuple[Request, dict[str, Request]] | tuple[Socket, dict[str, Socket]]]:
    """The gateway's own API and the adapters beside it, over HTTP and by WebSocket."""
    raw, named = "output_format=pcm_24000", {"mode": "id", "id": voice}
    deepgram = f"model={voice}&encoding=linear16&sample_rate=24000"
    lines = [{"text": TEXT, "voice_id": voice}]
    cartesia = {"model_id": "sonic-3", "transcript": TEXT, "voice": named, "output_format": CARTESIA}
    own = Request("/v1/audio/speech", {"input": TEXT, "voice": voice, "response_format": "pcm"})
    speech: dict[str, Request] = {
        "ElevenLabs stream": Request(f"/v1/text-to-speech/{voice}/stream?{raw}", {"text": TEXT}),
        "ElevenLabs with times": Request(f"/v1/text-to-speech/{voice}/stream/with-timestamps?{raw}", {"text": TEXT}),
        "ElevenLabs dialogue": Request(f"/v1/text-to-dialogue/stream?{raw}", {"inputs": lines}),
        "Deepgram v1": Request(f"/v1/speak?{deepgram}&container=none", {"text": TEXT}),
        "Deepgram v2": Request(f"/v2/speak?{deepgram}&container=none", {"text": TEXT}),
        "Cartesia bytes": Request("/tts/bytes", cartesia),
        "Cartesia events": Request("/tts/sse", cartesia),
    }
    config = {"type": "session.config", "voice": voice, "streaming_mode": "token_level"}
    own_text = ({"type": "input.text", "text": TEXT}, {"type": "input.done"})
    sockets: dict[str, Socket] = {
        "ElevenLabs socket": Socket(
            f"/v1/text-to-speech/{voice}/stream-input?{raw}", ({"text": TEXT}, {"text": ""}), ({"text": " "},)
        ),
        "ElevenLabs dialogue socket": Socket(
            f"/v1/text-to-dialogue/stream-input?{raw}",
            ({"inputs": lines}, {"close_socket": True}),
            ({"voices": [voice]},),
        ),
        "Deepgram v1 socket": Socket(f"/v1/speak?{deepgram}", ({"type": "Speak", "text": TEXT}, {"type": "Flush"})),
        "Deepgram v2 socket": Socket(f"/v2/speak?{deepgram}", ({"type": "Speak", "text": TEXT}, {"type": "Flush"})),
        "Cartesia socket": Socket("/tts/websocket", ({**cartesia, "context_id": "a", "continue": False},)),
    }
    return {"HTTP": (own, speech), "WebSocket": (Socket("/v1/audio/speech/stream", own_text, (config,)), sockets)}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "tools" / "data" / "demo_voice")
    parser.add_argument("--url", help="of a gateway that runs already")
    parser.add_argument("--voice", default=VOICE, help="of that gateway")
    parser.add_argument("--pairs", type=int, default=40, help="of each adapter")
    given = parser.parse_args(arguments)
    if given.url is not None:
        _measure_all(given.url, given.voice, given.pairs)
        return 0
    with tempfile.TemporaryDirectory() as scratch, _started(given.checkpoint, Path(scratch)) as url:
        _measure_all(url, VOICE, given.pairs)
    return 0


@contextmanager
def _started(checkpoint: Path, folder: Path) -> Iterator[str]:
    with TritonServer(checkpoint, folder / "voices", log=folder / "log", models=[MODELS]) as server:
        with Client(server.url) as client:
            client.upload(VOICE, (ROOT / "tools" / "data" / "reference.wav").read_bytes(), consent="ours", wait=True)
        with Gateway(server.url, folder / "gateway") as gateway:
            yield gateway.url


def _measure_all(url: str, voice: str, pairs: int) -> None:
    print(f"{'first audio, ms':28}{'own':>8}{'adapter':>9}{'difference':>12}")
    with httpx2.Client(base_url=url, timeout=60.0) as http:
        for own, adapters in ways(voice).values():
            for name, way in adapters.items():
                _print_line(name, lambda: _first_audio(http, own), lambda: _first_audio(http, way), pairs)  # noqa: B023


def _print_line(name: str, own: Callable[[], float], adapter: Callable[[], float], pairs: int) -> None:
    for _ in range(3):
        own(), adapter()
    timed = [(own(), adapter()) if pair % 2 else (adapter(), own())[::-1] for pair in range(pairs)]
    figures = [statistics.median(each) for each in (*zip(*timed, strict=True), [b - a for a, b in timed])]
    print(f"{name:28}{figures[0]:8.1f}{figures[1]:9.1f}{figures[2]:+12.1f}", flush=True)


def _first_audio(http: httpx2.Client, way: Request | Socket) -> float:
    """Milliseconds to the first audio of a call."""
    if isinstance(way, Socket):
        return _first_audio_of_socket(str(http.base_url), way)
    began = time.perf_counter()
    with http.stream("POST", way.path, json=way.body) as answer:
        assert answer.status_code == 200, answer.read()
        pieces = answer.iter_raw()
        next(pieces)
        heard = time.perf_counter()
        for _ in pieces:
            pass
    return (heard - began) * 1000


def _first_audio_of_socket(url: str, way: Socket) -> float:
    with connect(url.rstrip("/").replace("http", "ws", 1) + way.path, proxy=None) as connection:
        for message in way.before:
            connection.send(json.dumps(message))
        time.sleep(0.02)  # the session stands
        began = time.perf_counter()
        for message in way.messages:
            connection.send(json.dumps(message))
        while True:
            received = connection.recv(60)
            if isinstance(received, bytes):
                break
            event = json.loads(received)
            if event.get("audio") or event.get("type") == "chunk":
                break
            assert not event.get("error") and event.get("type") not in ("error", "Error"), event
        return (time.perf_counter() - began) * 1000
