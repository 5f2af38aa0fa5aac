"""Runs tritonserver with the models of one or more checkpoints until Ctrl-C or SIGTERM.

The configuration of a checkpoint tells its family. The models of these families are loaded, and no others.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.families.recognition import FamilyError, add_repository_option
from tools.stopping import Stopped, stoppable
from tools.triton_server import MODELS, ServerFailed, TritonServer


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools/serve", description=__doc__)
    parser.add_argument(
        "--checkpoint",
        type=Path,
        action="append",
        required=True,
        metavar="DIR",
        help="folder of a checkpoint; may be given once for each family",
    )
    parser.add_argument("--models", type=Path, default=MODELS, metavar="DIR", help="model repository (default: ours)")
    add_repository_option(parser)
    parser.add_argument("--voices", type=Path, help="folder of the registered voices (default: the user's data folder)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (0.0.0.0: all; default: %(default)s)")
    parser.add_argument("--grpc-port", type=int, default=8001)
    parser.add_argument("--http-port", type=int, default=8000)
    parser.add_argument("--metrics-port", type=int, default=8002)
    parser.add_argument(
        "--load-seconds", type=float, default=300.0, help="time in which the models must load (default: %(default).0f)"
    )
    parser.add_argument("--gateway", type=int, metavar="PORT", help="serve the OpenAI speech API too, on this port")
    parser.add_argument("options", nargs="*", metavar="-- OPTION", help="further options for tritonserver, after --")
    arguments = parser.parse_args()
    ports = (arguments.grpc_port, arguments.http_port, arguments.metrics_port)
    for port in (*ports, *([arguments.gateway] if arguments.gateway else [])):
        if _taken(arguments.host, port):
            parser.error(
                f"port {port} is in use; choose others with --grpc-port, --http-port, --metrics-port, --gateway"
            )

    try:
        server = TritonServer(
            arguments.checkpoint,
            arguments.voices,
            ports=ports,
            host=arguments.host,
            models=[arguments.models, *arguments.repository],
            options=arguments.options,
        )
    except (FamilyError, ServerFailed) as error:
        parser.error(str(error))
    try:
        with stoppable():
            server.start(arguments.load_seconds)
            urls = f"gRPC {arguments.host}:{ports[0]}   HTTP {arguments.host}:{ports[1]}"
            print(f"\nReady: {', '.join(server.families)}. {urls}", end="")
            print(f"   metrics {arguments.host}:{ports[2]}/metrics   (Ctrl-C stops)\n", flush=True)
            assert server.process is not None
            with _gateway(arguments.host, arguments.gateway, ports[0]):
                status = server.process.wait()
            print(f"tritonserver has ended by itself, with status {status}; see the log above.", file=sys.stderr)
            return status or 1
    except Stopped:
        _ignore_signals()
        print("\nStopping: running requests may finish ...", flush=True)
        return 0
    except ServerFailed as error:
        print(f"{error}; see the log above.", file=sys.stderr)
        return 1
    finally:
        _ignore_signals()
        server.stop()


@contextlib.contextmanager
def _gateway(host: str, port: int | None, grpc_port: int) -> Iterator[None]:
    """The HTTP gateway, if a port is given for it."""
    if port is None:
        yield
        return
    options = ["--host", host, "--port", str(port), "--triton", f"127.0.0.1:{grpc_port}"]
    with subprocess.Popen([sys.executable, "-m", "voice_clone_gateway", *options], start_new_session=True) as process:
        try:
            yield
        finally:
            process.terminate()


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _taken(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
