"""Runs tritonserver with the models of one or more checkpoints until Ctrl-C or SIGTERM.

The server loads the models of the checkpoints' families and no others. Without --checkpoint it takes the checkpoint of
a repository that tools/build_repository made, given by --models. With --gateway PORT each option of voice-clone-gateway
can be given, too, with `gateway-` before its name: --gateway-max-requests 5.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from voice_clone_program.arguments import Parser

from voice_clone_server import addresses
from voice_clone_server.families.recognition import FamilyError, add_repository_option, add_with_option
from voice_clone_server.gateway_process import GatewayFailed, GatewayProcess
from voice_clone_server.idle import Idleness
from voice_clone_server.preflight import named_checkpoints, occupied
from voice_clone_server.program import program
from voice_clone_server.restarts import WITHIN, Restarts
from voice_clone_server.server_log import ServerLog
from voice_clone_server.steps import step
from voice_clone_server.stopping import Stopped, ignore_signals, stoppable
from voice_clone_server.triton_server import EXIT_TIMEOUT, MODELS, ServerFailed, TritonServer

if TYPE_CHECKING:  # the image of the server has no gateway
    from voice_clone_gateway.settings import Settings

GATEWAY = "--gateway-"  # begins each option that is passed on
PERIOD = 0.1  # seconds between two looks at the processes
COMPUTES = r"%s_talker: weights in (\w+) on (\w+)"
FIXED = ("triton", "port", "sockets", "standby", "server-lock")  # options of the gateway that this program sets


def main(arguments: Sequence[str] | None = None) -> int:
    parser, given = parse(sys.argv[1:] if arguments is None else arguments)
    repositories, log = [given.models, *given.repository], ServerLog(given.verbose)
    ports = (given.grpc_port, given.http_port, given.metrics_port)
    try:
        checkpoints = given.checkpoint or named_checkpoints(repositories)
        if not checkpoints:
            parser.error("give --checkpoint DIR: the repository names no checkpoint")
        server = TritonServer(
            checkpoints,
            given.voices,
            ports=ports,
            host=given.host,
            log=log,
            models=repositories,
            options=given.options,
            exit_timeout=given.exit_seconds,
            client_shm=given.client_shm,
            environment={"VOICE_CLONE_REST_MINUTES": f"{given.rest_minutes:g}"} if given.rest_minutes else None,
            gives_way=True,
        )
        if reason := occupied(given.voices, repositories):
            raise ServerFailed(reason)
    except (FamilyError, ServerFailed) as error:
        print(f"{program('serve')}: {error}", file=sys.stderr)
        return 2
    gateway = None
    idle = Idleness(server, 60 * given.idle_minutes) if given.idle_minutes else None
    try:
        with stoppable():
            names = ", ".join(f"{checkpoint.name} ({family})" for family, checkpoint in server.families.items())
            print(f"Loading {names}; with large weights this takes minutes ...", flush=True)
            if given.gateway:  # first, for it starts without the server, and says in a second what is wrong with it
                gateway = _start_gateway(given, idle)
                gateway.wait_for("/metrics", first=True)
                server.meanwhile = partial(_keep, gateway, idle)
            with step("loading"):
                server.start(given.load_seconds)
            if given.first_voice:
                _register_first(given.first_voice, server.url)
            if gateway is not None:
                gateway.wait_for("/health")
            _print_start(server, log, given)
            return _wait(server, gateway, idle, given)
    except Stopped:
        print("\nStopping: running requests may finish (Ctrl-C again: at once) ...", flush=True)
        return 0
    except (GatewayFailed, ServerFailed) as error:
        print(f"{program('serve')}: {error}", file=sys.stderr)
        return 1
    finally:
        if idle is not None:
            idle.close()
        _stop(server, gateway)


def _register_first(clip: Path, url: str) -> None:
    """Register a clip on a server without voices, so that it can speak at once."""
    from voice_clone_client import Client, VoiceCloneError

    try:
        with Client(url) as client:
            if not client.list(limit=1):
                client.upload(clip.stem, clip)
                print(f"Registered the voice {clip.stem}.", flush=True)
    except (OSError, VoiceCloneError) as error:
        print(f"The voice {clip.stem} could not be registered: {error}", file=sys.stderr)


def _stop(server: TritonServer, gateway: GatewayProcess | None) -> None:
    """Stop the gateway first, because its requests need the server. A second signal ends both at once."""
    try:
        with stoppable():
            if gateway is not None:
                gateway.stop()
            server.stop()
    except Stopped:
        ignore_signals()
        print("\nStopped.", flush=True)
        if gateway is not None:
            gateway.kill()
        server.kill()
        server.stop()


def parse(arguments: Sequence[str]) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Return the parser, for its `error`, and the arguments; `gateway_options` are in the form of the gateway's own
    command.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own, gateway, words = [], [], iter(arguments[:end])
    for word in words:
        if word.startswith(GATEWAY):
            gateway += [word] if "=" in word else [word, *([value] if (value := next(words, None)) else [])]
        else:
            own.append(word)
    parser = Parser(
        prog=program("serve"),
        usage="%(prog)s --checkpoint DIR [OPTION ...] [-- TRITONSERVER_OPTION ...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder of a checkpoint; may be given once for each family",
    )
    parser.add_argument(
        "--models", type=Path, default=MODELS, metavar="DIR", help="model repository (default: ours, %(default)s)"
    )
    add_repository_option(parser)
    add_with_option(parser)
    parser.add_argument("--voices", type=Path, help="folder of the registered voices (default: the user's data folder)")
    parser.add_argument(
        "--first-voice",
        type=Path,
        metavar="CLIP",
        help="register this clip by the name of its file if no voice is there yet",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (0.0.0.0: all; default: %(default)s)")
    parser.add_argument("--grpc-port", type=int, default=8001)
    parser.add_argument("--http-port", type=int, default=8000)
    parser.add_argument("--metrics-port", type=int, default=8002)
    parser.add_argument(
        "--load-seconds", type=float, default=300.0, help="time in which the models must load (default: %(default).0f)"
    )
    parser.add_argument(
        "--exit-seconds",
        type=int,
        default=EXIT_TIMEOUT,
        help="seconds that running requests get when the server is stopped; a speech is cut off 8 s before they are "
        "over (default: %(default)s)",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=5,
        metavar="N",
        help=f"how often in {WITHIN / 60:.0f} minutes a server or gateway that ends by itself is started again "
        "(default: %(default)s; 0: never)",
    )
    parser.add_argument(
        "--idle-minutes",
        type=float,
        default=0.0,
        metavar="N",
        help="end the server after so many minutes without work, which gives its memory back; the gateway stays, and "
        "its next request for speech or voices starts the server again (default: never)",
    )
    parser.add_argument(
        "--rest-minutes",
        type=float,
        default=0.0,
        metavar="N",
        help="let each model give its memory back after so many minutes without work; the server stays ready, and the "
        "next request loads the models that it needs again (default: never)",
    )
    parser.add_argument(
        "--client-shm",
        action="store_true",
        help="let clients register shared memory; by its name also the models' own, with all that is spoken",
    )
    parser.add_argument(
        "--gateway", type=int, metavar="PORT", help="serve the OpenAI speech API and a web page, too, on this port"
    )
    parser.add_argument("--verbose", action="store_true", help="show all that Triton and the gateway log")
    given, left = parser.parse_known_args(own)
    if unknown := [word for word in left if word.startswith("-")]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}; tritonserver's options follow after --")
    if left:
        parser.error(f"{left[0]}: give a checkpoint as --checkpoint {left[0]}, and options of tritonserver after --")
    for option, number, least in (
        ("--load-seconds", given.load_seconds, 1),
        ("--exit-seconds", given.exit_seconds, 0),
        ("--restarts", given.restarts, 0),
        ("--idle-minutes", given.idle_minutes, 0),
        ("--rest-minutes", given.rest_minutes, 0),
    ):
        if not least <= number < math.inf:  # NaN, too
            parser.error(f"{option} is {number:g}; it must be {least} or more, and finite")
    given.options = list(arguments[end + 1 :])
    if given.idle_minutes and not given.gateway:
        parser.error("--idle-minutes needs --gateway PORT: only a gateway can have the server started again")
    if gateway and not given.gateway:
        parser.error(f"{gateway[0]} belongs to --gateway PORT")
    given.gateway_options = [f"{GATEWAY}host", given.host, *gateway]
    if given.gateway:
        given.gateway_settings = _gateway_settings(parser, given.gateway_options)
    listening = [("--host", given.host, port) for port in (given.grpc_port, given.http_port, given.metrics_port)]
    if given.gateway:
        listening.append((f"{GATEWAY}host", given.gateway_settings.host, given.gateway))
    for option, host, port in listening:
        try:
            addresses.check_free(host, port)
        except addresses.WrongHost as error:
            parser.error(f"{option}: {error}")
        except OSError as error:
            parser.error(f"{error}; choose others with --grpc-port, --http-port, --metrics-port, --gateway")
    return parser, given


def _gateway_settings(parser: argparse.ArgumentParser, options: Sequence[str]) -> Settings:
    """Return the gateway's settings. Exits if the gateway is not installed, or does not take its options."""
    try:
        from voice_clone_gateway.settings import parse as parse_gateway
    except ImportError:
        parser.error("--gateway: the gateway is not installed here; pip install ./client ./gateway")
    for name in FIXED:
        if any(option.partition("=")[0] == GATEWAY + name for option in options):
            parser.error(f"{GATEWAY}{name}: {program('serve')} sets it itself")
    return parse_gateway(options, prog=program("serve"), prefix=GATEWAY.removeprefix("--"))


def _start_gateway(given: argparse.Namespace, idle: Idleness | None) -> GatewayProcess:
    """Start the HTTP gateway, which does not need the server for that."""
    options = [
        "--" + option.removeprefix(GATEWAY) if option.startswith(GATEWAY) else option
        for option in given.gateway_options
    ]
    quiet = [] if given.verbose else ["--log-level", "warning"]
    fixed = ["--port", str(given.gateway), "--triton", addresses.at(addresses.local(given.host), given.grpc_port)]
    fixed += [] if idle is None else ["--server-lock", str(idle.path)]
    settings = given.gateway_settings
    tls = bool(settings.tls_certificate)
    return GatewayProcess([*quiet, *options, *fixed], settings.host, given.gateway, given.restarts, tls)


def _keep(gateway: GatewayProcess, idle: Idleness | None) -> None:
    """Start the gateway again if it has ended. Beside a server that was ended no other one takes memory to stand by."""
    gateway.keep(standby=idle is None or idle.settled)


def _print_start(server: TritonServer, log: ServerLog, given: argparse.Namespace) -> None:
    """Print all addresses, and how the models compute, from the talkers' log."""
    rows = [("gRPC", addresses.at(given.host, given.grpc_port))]
    rows.append(("HTTP", f"http://{addresses.at(given.host, given.http_port)}"))
    rows.append(("metrics", f"http://{addresses.at(given.host, given.metrics_port)}/metrics"))
    if given.gateway:
        scheme = "https" if given.gateway_settings.tls_certificate else "http"
        url = f"{scheme}://{addresses.at(given.gateway_settings.host, given.gateway)}"
        rows += [("gateway", f"{url}/v1"), *([("page", f"{url}/")] if given.gateway_settings.page else [])]
    for family in server.families:
        rows += [(family, f"{precision} on {device}") for precision, device in log.found(COMPUTES % family)[-1:]]
    width = max(10, *(len(name) for name, _ in rows))
    print("\nReady (Ctrl-C stops)", *(f"  {name:{width}} {value}" for name, value in rows), "", sep="\n", flush=True)


def _wait(
    server: TritonServer, gateway: GatewayProcess | None, idle: Idleness | None, given: argparse.Namespace
) -> int:
    """Start server and gateway again if they end by themselves, each as often as allowed; end a server that is idle,
    and start it again when it is wanted. Returns an exit status at last.

    Raises:
        GatewayFailed: the gateway does not start again.
        ServerFailed: the server does not start again.
    """
    assert server.process is not None
    restarts = Restarts("tritonserver", given.restarts)

    def start_again() -> None:
        began = time.monotonic()
        server.restart(given.load_seconds, restarts.again)
        print(f"tritonserver is ready again, after {time.monotonic() - began:.1f} s.", file=sys.stderr, flush=True)

    while True:
        if gateway is not None:
            _keep(gateway, idle)
        if idle is not None and idle.ended:
            if idle.wanted:
                start_again()
                idle.started()
        elif (status := server.process.poll()) is not None:
            if not restarts.again(status):
                return status or 1
            start_again()
        elif idle is not None and idle.end():
            print("tritonserver was idle and has ended; the next request starts it again.", file=sys.stderr, flush=True)
        time.sleep(PERIOD)


if __name__ == "__main__":
    sys.exit(main())
