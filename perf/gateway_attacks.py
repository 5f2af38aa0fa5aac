"""What other callers feel while one attacks the gateway: the time of `/health`, and the gateway's memory.

    perf/gateway_attacks

Starts a gateway in front of a server that is not there: `/health` then answers 503 at once, so its time is the
gateway's own. Each attack runs in a process of its own, one after another. Memory is that of the gateway's process
during an attack, and when it is over. The gateway is the package on PYTHONPATH, so another commit's can be measured.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import multiprocessing
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perf import report
from tools import guard
from tools.triton_server import free_ports

SPEECH = "/v1/audio/speech"
# The gateway with name servers that never answer for names that begin with "slow".
SILENT = """
import socket, time
look_up = socket.getaddrinfo
def getaddrinfo(host, *rest, **more):
    time.sleep(10.0 if str(host).startswith("slow") else 0.0)
    return look_up(host, *rest, **more)
socket.getaddrinfo = getaddrinfo
from voice_clone_gateway.app import main
main()
"""


def post(port: int, path: str, body: bytes, kind: str = "application/json") -> None:
    """Send a body of this type, and wait for the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("POST", path, body, {"Content-Type": kind})
        connection.getresponse().read()


def fields(port: int, kind: str = "application/json") -> None:
    """14.5 MB of JSON with 1.2 million unknown fields."""
    post(port, SPEECH, b'{"input": "x"' + b"".join(b',"f%d":1' % index for index in range(1_200_000)) + b"}", kind)


def other_type(port: int) -> None:
    """The same as another type that is JSON, too."""
    fields(port, "application/octet-stream+json")


def utf_16(port: int) -> None:
    """Half a million fields in UTF-16, behind a character with a byte that is a quotation mark."""
    text = '{"\u0122": 1' + "".join(f', "f{index}": 1' for index in range(500_000)) + "}"
    post(port, SPEECH, text.encode("utf-16-le"))


def ampersands(port: int) -> None:
    """16 MB of a form without fields."""
    post(port, "/v1/audio/voices", b"&" * 16_000_000, "application/x-www-form-urlencoded")


def punycode(port: int) -> None:
    """A form that says it is in an encoding whose decoder takes long."""
    head = b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\na-'
    kind = "multipart/form-data; boundary=b; charset=punycode"
    post(port, "/v1/audio/voices", head + b"aaaaab" * 20_000 + b"\r\n--b--\r\n", kind)


def marks(port: int) -> None:
    """A voice's name of 40,000 combining marks in the wrong order."""
    name = "a" + "\u0301" * 20_000 + "\u0316" * 20_000
    post(port, SPEECH, json.dumps({"input": "x", "voice": name}).encode())


def backslashes(port: int) -> None:
    """A WebSocket message with a string of 60,000 backslashes."""
    websocket(port, frame(b'{"type": "' + b"\\" * 60_000 + b'xx"}', 1, True))


def name(port: int) -> None:
    """A field whose name has 15 MB."""
    post(port, SPEECH, b'{"input": "x", "' + b"n" * 15_000_000 + b'": 1}')


def batch(port: int) -> None:
    """A batch of 32 items of 30,000 unknown fields."""
    item = {f"f{index}": 1 for index in range(30_000)}
    post(port, f"{SPEECH}/batch", json.dumps({"items": [item] * 32}).encode())


def clip(port: int) -> None:
    """Not an attack: a clip of 10 MB in JSON, as large as is allowed."""
    data = base64.b64encode(secrets.token_bytes(10_000_000)).decode()
    post(port, SPEECH, json.dumps({"input": "x", "ref_audio": f"data:audio/wav;base64,{data}"}).encode())


def frame(payload: bytes, opcode: int, last: bool) -> bytes:
    """A WebSocket frame, masked with zeros."""
    size = len(payload)
    length = bytes([128 | size]) if size < 126 else bytes([128 | 127]) + size.to_bytes(8, "big")
    return bytes([(128 if last else 0) | opcode]) + length + bytes(4) + payload


def websocket(port: int, data: bytes) -> None:
    """Open a WebSocket, send these bytes, and wait until the gateway has read them."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection, contextlib.suppress(OSError):
        head = f"GET {SPEECH}/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        connection.sendall(f"{head}Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        connection.recv(4096)
        connection.sendall(data)
        connection.recv(4096)


def message(port: int) -> None:
    """A session.config with 1.2 million unknown fields."""
    text = b'{"type": "session.config"' + b"".join(b',"f%d":1' % index for index in range(1_200_000)) + b"}"
    websocket(port, frame(text, 1, True))


def fragments(port: int) -> None:
    """A message in a million frames of one byte."""
    websocket(port, frame(b"x", 1, False) + frame(b"x", 0, False) * 999_998 + frame(b"x", 0, True))


def bodies(port: int) -> None:
    """60 connections that send 16.7 MB each, but for the last byte, and wait for 5 s."""
    size = 16_700_000
    head = (
        f"POST {SPEECH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            with contextlib.suppress(OSError):
                connection.sendall(head.encode() + b'{"input": "' + b"x" * (size - 12))
        time.sleep(5)


def names(port: int) -> None:
    """20 clips by URL whose name server is silent."""
    callers = [
        multiprocessing.Process(
            target=post,
            args=(port, SPEECH, json.dumps({"input": "x", "ref_audio": f"https://slow{index}.example/a"}).encode()),
        )
        for index in range(20)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()


ATTACKS: tuple[Callable[[int], None], ...] = (
    *(fields, other_type, utf_16, name, batch, message, backslashes, fragments, ampersands, punycode, marks),
    *(bodies, names, clip),
)


def memory(process: subprocess.Popen[bytes]) -> float:
    """Resident megabytes."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) / 1000


def measure(attack: Callable[[int], None], port: int, gateway: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The figures of one attack."""
    attacker = multiprocessing.Process(target=attack, args=(port,))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    took, largest, began = [], memory(gateway), time.monotonic()
    attacker.start()
    while attacker.is_alive():
        asked = time.monotonic()
        connection.request("GET", "/health")
        connection.getresponse().read()
        took.append(time.monotonic() - asked)
        largest = max(largest, memory(gateway))
        time.sleep(0.002)
    seconds = time.monotonic() - began
    connection.close()
    time.sleep(1)
    return {
        "health": report.summary(took),
        "seconds": round(seconds, 2),
        "memory_mb": round(largest),
        "memory_after_mb": round(memory(gateway)),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[each.__name__ for each in ATTACKS], help="these attacks")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    [port] = free_ports(1)
    figures: dict[str, Any] = {}
    with guard.temporary_folder() as folder, (folder / "log").open("wb") as log:
        command = [sys.executable, "-c", SILENT, "--triton", "127.0.0.1:9", "--model", "any", "--port", str(port)]
        gateway = subprocess.Popen(command, stdout=log, stderr=log, env=guard.marked())
        try:
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            for _ in range(100):  # what is imported and compiled on first use
                post(port, SPEECH, b'{"input": "x", "voice": "y", "stream": 1}')
            for attack in ATTACKS:
                if attack.__name__ in options.only:
                    figures[attack.__name__] = measure(attack, port, gateway)
        finally:
            gateway.kill()
            gateway.wait()
    rows = []
    for key, entry in figures.items():
        health = [1000 * entry["health"].get(figure, 0) for figure in ("p50", "p99", "max")]
        rows.append((key, *health, entry["seconds"], entry["memory_mb"], entry["memory_after_mb"]))
    sys.stdout.write(report.table(("attack", "p50 ms", "p99 ms", "max ms", "seconds", "MB", "MB after"), rows) + "\n")
    report.write(options.json, {"attacks": figures, "machine": report.machine()})


if __name__ == "__main__":
    main()
