"""How long a server works for nobody: after callers who leave, after deadlines, and after the death of a model.

    left       from a caller's leaving, in the middle of a speech, until its slot in the talker is free, by the way it
               leaves: it closes the gRPC stream or the connection, its process is killed, it closes the gateway's HTTP
               or WebSocket connection
    deadline   how much later than it was asked to a speech ends: for the caller, and in the talker. `client` is gRPC's
               deadline, `server` the request parameter deadline_ms
    lost       from SIGKILL of a model's process, in the middle of a speech, until another model logs it, the caller has
               its error, and the server has ended, so that a supervisor starts it again

Times are milliseconds. The slot is watched on the server's metrics page; `look` is how long a look takes, so times are
known to about one look. A speech is spoken at the pace of this machine, and a leaving caller is noticed between frames:
`frame` is the mean time of one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx2
import numpy as np
import websockets.sync.client
from voice_clone_client import Client, DeadlineExceeded, VoiceCloneError

from perf import report
from perf.reference import TRANSCRIPT, fresh_clip
from tests.support.gateway_process import Gateway
from tests.support.server_metrics import metric
from tests.support.server_processes import process_of
from tests.support.talker_calls import Call
from tools import guard
from tools.families.qwen3_tts.checkpoint_maker import make_endless
from tools.triton_server import TritonServer

VOICE = "leaver"
TEXT = "A long story, told slowly. " * 12
MAX_FRAMES = 1500
HEARD = 6  # chunks before a caller leaves: talker and code2wav are at work
LOST = ("qwen3_tts_talker", "qwen3_tts_code2wav")
NOTICE = b"the process of a model has died"

SPEAKER = """import sys
from voice_clone_client import Client

with Client(sys.argv[1]) as client:
    for number, _ in enumerate(client.speak(sys.argv[2], voice=sys.argv[3], max_frames=int(sys.argv[4]))):
        if number == int(sys.argv[5]):
            print("spoken", flush=True)
"""


def live(server: TritonServer) -> float:
    return metric(server, "talker_live_streams")


def freed(server: TritonServer, began: float) -> float:
    """Milliseconds until no stream is in the talker."""
    while live(server):
        pass
    return 1e3 * (time.perf_counter() - began)


def by_stream(server: TritonServer, gateway: Gateway) -> float:
    with Client(server.url) as client:
        speech = client.speak(TEXT, voice=VOICE, max_frames=MAX_FRAMES)
        for _, _ in zip(range(HEARD), speech, strict=False):
            pass
        began = time.perf_counter()
        speech.close()
        return freed(server, began)


def by_connection(server: TritonServer, gateway: Gateway) -> float:
    client = Client(server.url)
    speech = client.speak(TEXT, voice=VOICE, max_frames=MAX_FRAMES)
    for _, _ in zip(range(HEARD), speech, strict=False):
        pass
    began = time.perf_counter()
    client.close()
    spent = freed(server, began)
    with contextlib.suppress(VoiceCloneError, grpc.RpcError):
        speech.close()
    return spent


def by_death(server: TritonServer, gateway: Gateway) -> float:
    command = [sys.executable, "-c", SPEAKER, server.url, TEXT, VOICE, str(MAX_FRAMES), str(HEARD)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=guard.marked()) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit("the caller died by itself")
        began = time.perf_counter()
        process.kill()
        return freed(server, began)


def by_http(server: TritonServer, gateway: Gateway) -> float:
    asked = {"input": TEXT, "voice": VOICE, "response_format": "pcm", "max_new_tokens": MAX_FRAMES}
    with httpx2.Client(base_url=gateway.url, timeout=600.0, trust_env=False) as http:
        with http.stream("POST", "/v1/audio/speech", json=asked) as answer:
            for _, _ in zip(range(HEARD), answer.iter_raw(), strict=False):
                pass
            began = time.perf_counter()
        return freed(server, began)


def by_websocket(server: TritonServer, gateway: Gateway) -> float:
    url = f"ws{gateway.url.removeprefix('http')}/v1/audio/speech/stream"
    with websockets.sync.client.connect(url) as connection:
        connection.send(json.dumps({"type": "session.config", "voice": VOICE, "max_new_tokens": MAX_FRAMES}))
        connection.send(json.dumps({"type": "input.text", "text": TEXT}))
        connection.send(json.dumps({"type": "input.done"}))
        heard = 0
        while heard < HEARD:
            heard += isinstance(connection.recv(600.0), bytes)
        began = time.perf_counter()
        connection.socket.shutdown(socket.SHUT_RDWR)  # as of a listener who is cut off
        return freed(server, began)


WAYS: dict[str, Callable[[TritonServer, Gateway], float]] = {
    "the gRPC stream is closed": by_stream,
    "the gRPC connection is closed": by_connection,
    "the caller is killed": by_death,
    "the HTTP connection is closed": by_http,
    "the WebSocket is cut off": by_websocket,
}


def clients_deadline(server: TritonServer, seconds: float) -> tuple[float, float]:
    """Milliseconds after the deadline: for the caller, and in the talker."""
    began = time.perf_counter()
    with Client(server.url) as client:
        try:
            for _ in client.speak(TEXT, voice=VOICE, max_frames=MAX_FRAMES, deadline=seconds):
                pass
            raise SystemExit("the speech was over before its deadline; give a later one to no effect")
        except DeadlineExceeded:
            told = 1e3 * (time.perf_counter() - began - seconds)
    return told, freed(server, began + seconds)


def servers_deadline(server: TritonServer, seconds: float) -> tuple[float, float]:
    """As `clients_deadline`."""
    began = time.perf_counter()
    inputs = {"text": TEXT, "voice": VOICE, "max_frames": np.array([MAX_FRAMES], np.int32)}
    call = Call(server, inputs, "qwen3_tts", deadline_ms=int(1e3 * seconds))
    said: Any = None
    while not isinstance(said, str):
        answer = call.next()
        said = answer if isinstance(answer, str) else json.loads(answer.as_numpy("info")[0] or "{}").get("error")
    told = 1e3 * (time.perf_counter() - began - seconds)
    if "deadline" not in said:
        raise SystemExit(said)
    spent = freed(server, began + seconds)
    call.close()
    return told, spent


def lost(start: Callable[[], TritonServer], log: Path, model: str) -> dict[str, float]:
    """Milliseconds from the death of a model's process."""
    with start() as server, Client(server.url) as client:
        assert server.process is not None
        speech = client.speak(TEXT, voice=VOICE, max_frames=MAX_FRAMES)
        next(iter(speech))
        known = log.read_bytes().count(NOTICE)
        os.kill(process_of(model, server), signal.SIGKILL)
        began = time.perf_counter()
        found: dict[str, float] = {}

        def listen() -> None:
            with contextlib.suppress(VoiceCloneError):
                for _ in speech:
                    pass
            found["caller"] = 1e3 * (time.perf_counter() - began)

        listener = threading.Thread(target=listen)
        listener.start()
        while server.process.poll() is None:
            if "noticed" not in found and log.read_bytes().count(NOTICE) > known:
                found["noticed"] = 1e3 * (time.perf_counter() - began)
            time.sleep(0.005)
        found["ended"] = 1e3 * (time.perf_counter() - began)
        listener.join()
        return found


@contextlib.contextmanager
def running(folder: Path, scratch: Path) -> Iterator[Callable[[], TritonServer]]:
    """How to start a server that knows the voice."""
    environment = {"VOICE_CLONE_MAX_STREAMS": "4", "VOICE_CLONE_MAX_LENGTH": "2048"}
    start = partial(TritonServer, folder, scratch / "voices", log=scratch / "log", environment=environment)
    with start() as server, Client(server.url) as client:
        client.upload(VOICE, fresh_clip(0), reference_text=TRANSCRIPT, wait=True)
    yield start


def measure(folder: Path, scratch: Path, given: argparse.Namespace) -> dict[str, Any]:
    """All figures, each a summary."""
    figures: dict[str, Any] = {}
    with running(folder, scratch) as start:
        with start() as server, Gateway(server.url, scratch / "gateway-log") as gateway:
            looks = []
            for _ in range(50):
                began = time.perf_counter()
                live(server)
                looks.append(1e3 * (time.perf_counter() - began))
            figures["look"] = report.summary(looks)
            figures["frame"] = report.summary([frame_ms(server)])
            figures["left"] = {
                name: report.summary([leave(server, gateway) for _ in range(given.runs)])
                for name, leave in WAYS.items()
            }
            for name, ask in (("client", clients_deadline), ("server", servers_deadline)):
                late = [ask(server, given.deadline) for _ in range(given.runs)]
                figures[f"deadline, {name}"] = {
                    "caller": report.summary([told for told, _ in late]),
                    "slot": report.summary([spent for _, spent in late]),
                }
        for model in LOST if given.losses else ():
            found = [lost(start, scratch / "log", model) for _ in range(given.losses)]
            names = ("noticed", "caller", "ended")
            figures[f"lost, {model}"] = {
                name: report.summary([each[name] for each in found if name in each]) for name in names
            }
    return figures


def frame_ms(server: TritonServer) -> float:
    """The mean time of a frame of one speech."""
    with Client(server.url) as client:
        frames, began = 0, 0.0
        with client.speak(TEXT, voice=VOICE, max_frames=100, seed=0) as speech:
            for chunk in speech:
                began = began or time.perf_counter()
                frames += len(chunk.samples) // 1920
        return 1e3 * (time.perf_counter() - began) / max(1, frames - 1)


def show(figures: dict[str, Any]) -> None:
    rows = [["a look", *_cells(figures["look"])], ["a frame", *_cells(figures["frame"])]]
    rows += [[f"left: {name}", *_cells(found)] for name, found in figures["left"].items()]
    for name, parts in figures.items():
        if name.startswith(("deadline", "lost")):
            rows += [[f"{name}: {part}", *_cells(found)] for part, found in parts.items()]
    print(report.table(("milliseconds", "n", "p50", "p95", "p99", "max"), rows))


def _cells(found: dict[str, float]) -> list[Any]:
    return [found.get(name) for name in ("n", "p50", "p95", "p99", "max")]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="perf/leaving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=50, help="callers who leave in each way, and deadlines")
    parser.add_argument("--deadline", type=float, default=0.5, help="seconds")
    parser.add_argument("--losses", type=int, default=5, help="deaths of each model; each takes a start of the server")
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    given = parser.parse_args()
    with guard.temporary_folder() as scratch:
        figures = measure(make_endless(given.checkpoint, scratch / "endless"), scratch, given)
    show(figures)
    report.write(given.output, {"runs": given.runs, "deadline": given.deadline, "figures": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
