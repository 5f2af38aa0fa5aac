"""Starts the real tritonserver on model repositories, and stops it.

With checkpoints the server loads the models of their families and no others. It gets a repository of links to them
instead of `--model-control-mode=explicit --load-model=...`: in that mode every caller may load models, and such a
request may bring a model.py along, which Triton then runs (fault: uploaded-code).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar

from voice_clone_server import addresses, guard
from voice_clone_server.families.names import owner
from voice_clone_server.families.recognition import families, families_of, lent_models, models_of
from voice_clone_server.families.recognition import models as every_model
from voice_clone_server.preflight import check_backends, check_checkpoints, check_settings
from voice_clone_server.server_log import ServerLog
from voice_clone_server.server_memory import FOLDER, SCRATCH, ServerMemory, remove_dead, start_privately
from voice_clone_server.triton_binary import ServerFailed as ServerFailed
from voice_clone_server.triton_binary import server_command

ROOT = Path(__file__).resolve().parent.parent
MODELS = Path(__file__).with_name("model_repository").resolve()  # a link in a checkout, a folder where it is installed
EXIT_TIMEOUT = 30  # seconds that tritonserver gives to running requests
MAX_STARTS = 3  # of a server that aborts while it loads
NICE = 5  # the level of a server that gives way: it may be busy with batch work while a caller asks
HELD_UP = "boost::interprocess::lock_exception"  # what it writes before it aborts for the reason that `start` names
PORTS = range(15000, 32000)  # for servers of tests
# What the models need of a server; docs/plain_tritonserver.md says it to those who start one by themselves.
VARIABLES = {"OMP_WAIT_POLICY": "PASSIVE"}  # the models share the cores: a thread that spins takes them from the others
OPTIONS = (
    "--disable-auto-complete-config",
    # Fault: kept-requests. One that is kept for reuse keeps the memory of the longest clip that it ever had.
    "--grpc-infer-allocation-pool-size=0",
    # The write token arrives in a header; over HTTP its name may have any case.
    "--grpc-header-forward-pattern=x-voice-token",
    "--http-header-forward-pattern=(?i)x-voice-token",
    "--backend-config=python,stub-timeout-seconds=300",
)

ALLOW_CLIENT_SHM = "--allow-client-shm"
RESTRICTIONS = ("--http-restricted-api", "--grpc-restricted-protocol")


def free_ports(count: int) -> list[int]:
    """Free TCP ports, for servers that do not listen before they are ready.

    No other process gets one of them by chance until then: they lie below the ports that the kernel hands out, and
    processes that call this function at the same time take turns through a file.
    """
    found: list[int] = []
    with open(Path(tempfile.gettempdir()) / f"voice-clone-ports-{os.getuid()}", "a+", encoding="ascii") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        turn.seek(0)
        port = int(turn.read() or PORTS.start)
        while len(found) < count:
            port = port + 1 if port + 1 in PORTS else PORTS.start
            with contextlib.suppress(OSError), socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
                found.append(port)
        turn.truncate(0)
        turn.write(str(port))
    return found


def _linked(models: Mapping[str, Path], folder: Path) -> Path:
    """A repository of links to models, by their names."""
    folder.mkdir()
    for name, model in models.items():
        (folder / name).symlink_to(model)
    return folder


def _variables(checkpoints: Mapping[str, Path], repositories: Sequence[Path]) -> dict[str, str]:
    """The variables that name the checkpoint of each family for its models, and for those that others lend to it."""
    known = families(repositories)
    lenders = {owner(model, known) or "": by for model, by in lent_models(checkpoints, repositories).items()}
    named = {lender: checkpoints[by] for lender, by in lenders.items()} | dict(checkpoints)
    found = {f"VOICE_CLONE_{name.upper()}_CHECKPOINT_DIR": str(path.resolve()) for name, path in named.items()}
    if len(checkpoints) == 1:
        found["VOICE_CLONE_CHECKPOINT_DIR"] = next(iter(found.values()))
    return found


def _backends(command: Sequence[str]) -> Path:
    """The folder in which a server with this command looks for its backends."""
    named = [word.partition("=")[2] for word in command if word.startswith("--backend-directory=")]
    return Path(named[-1] if named else "/opt/tritonserver/backends")


def shared_memory_options(
    allowed: bool, command: Sequence[str], environment: Mapping[str, str], options: Sequence[str]
) -> list[str]:
    """The options that open or close shared memory to clients, but for those that `options` has already.

    Servers of 26.04 and later have it closed, and an option to open it. Earlier ones can ask for a key: here for a
    random one that is not kept.
    """
    shown = subprocess.run([command[0], "--help"], env=dict(environment), capture_output=True, text=True, check=False)
    known, given = shown.stdout + shown.stderr, "\0".join(options)
    if ALLOW_CLIENT_SHM in known:
        return [f"{ALLOW_CLIENT_SHM}=true"] if allowed and ALLOW_CLIENT_SHM not in given else []
    rule = f"shared-memory:admin-key={secrets.token_hex(16)}"
    mine = [name for name in RESTRICTIONS if name in known and not re.search(rf"{name}[=\0][^\0]*shared-memory", given)]
    return [] if allowed else [f"{name}={rule}" for name in mine]


def give_way(server: int) -> None:
    """Let other sessions, above all the gateway's, get a core before that of a server.

    Linux shares the cores between sessions (autogroup). Where it does not or may not be told, nothing changes.
    """
    for _ in range(10):
        try:
            Path(f"/proc/{server}/autogroup").write_text(str(NICE))
        except BlockingIOError:  # users who are not root may change one level in 0.1 s
            time.sleep(0.1)
            continue
        except OSError:
            pass
        return


def plain_command(repository: str) -> str:
    """What starts a plain tritonserver on a repository that names its checkpoint, for a shell."""
    variables = [f"{name}={value}" for name, value in VARIABLES.items()]
    return shlex.join([*variables, "tritonserver", f"--model-repository={repository}", *OPTIONS])


class TritonServer:
    """A running tritonserver; a context manager. It ends with this process, whatever ends that: see guard.py.

    Args:
        checkpoints: a folder, or one for each family to be loaded. None: all models are loaded, and the environment or
            their configurations say where the checkpoints are.
        voices: folder of the registered voices; the models' default if None.
        ports: gRPC, HTTP and metrics port; free ones by default.
        host: an address or a name of this machine, to listen on.
        log: for the server's output: a file, or a `ServerLog`; the terminal if None.
        models: the model repository, or several.
        options: further options of tritonserver.
        exit_timeout: seconds that it gives to running requests when it stops.
        client_shm: whether clients may register shared memory of theirs; by its name, also the models' own.
        environment: further environment variables.
        gives_way: whether its session gets a core after others, as beside a gateway, once it is ready.

    Attributes:
        families: the checkpoint of each loaded family, by its name; empty without checkpoints.
        voices: the given folder of the registered voices.
        command, environment: with which tritonserver is started.
        log: the given log.
        scratch: a folder for as long as this object lives.
        memory: the server's files in /dev/shm.
        meanwhile: called again and again while the server starts.
        restarts: how often servers of this process aborted while they loaded and were started again.

    Raises:
        WrongHost: the host has no address.
        FamilyError: a checkpoint is of no family of the repositories or not whole, or two are of the same one.
        ServerFailed: there is no tritonserver.
    """

    restarts: ClassVar[int] = 0

    def __init__(
        self,
        checkpoints: Path | Sequence[Path] | None = None,
        voices: Path | None = None,
        *,
        ports: Sequence[int] | None = None,
        host: str = "127.0.0.1",
        log: Path | ServerLog | None = None,
        models: Path | Sequence[Path] = MODELS,
        options: Sequence[str] = (),
        exit_timeout: int = EXIT_TIMEOUT,
        client_shm: bool = False,
        environment: Mapping[str, str] | None = None,
        gives_way: bool = False,
    ) -> None:
        self._gives_way = gives_way
        repositories = [models] if isinstance(models, Path) else list(models)
        given = [checkpoints] if isinstance(checkpoints, Path) else list(checkpoints or ())
        self.families = families_of(given, repositories)
        check_checkpoints(self.families, repositories)
        self.grpc_port, self.http_port, self.metrics_port = ports or free_ports(3)
        address = addresses.numbers_of(host)
        self.host = addresses.local(host)
        """Where this machine reaches it."""
        self.scratch = Path(tempfile.mkdtemp(prefix=SCRATCH))
        self.log = log
        self._exit_timeout = exit_timeout
        self.memory = ServerMemory(self.scratch)
        guard.remove_at_end(self.scratch, self.memory.pattern)
        command, needed = server_command(self.scratch)
        known, variables = families(repositories), _variables(self.families, repositories)
        loaded = models_of(self.families, repositories) if self.families else every_model(repositories)
        defaults = dict(VARIABLES)
        if len(self.families) > 1:  # the first one is the default for callers that name none
            defaults["VOICE_CLONE_MODEL_TYPES"] = ",".join(self.families)
        self.environment = {**defaults, **os.environ, **needed, **(environment or {})}
        self.environment.update(variables)
        if self.families:
            check_settings(loaded, known, self.environment)
            check_backends(loaded, _backends([*command, *options]))
        self.voices = None if voices is None else voices.resolve()
        if self.voices is not None:
            self.environment["VOICE_CLONE_VOICE_DIR"] = str(self.voices)
        self.command = [
            *command,
            f"--model-repository={_linked(loaded, self.scratch / 'models')}",
            *OPTIONS,
            f"--grpc-address={f'[{address}]' if ':' in address else address}",
            # In the words of libevent, which knows no names.
            *(f"--{kind}-address={'ipv6:' * (':' in address)}{address}" for kind in ("http", "metrics")),
            f"--grpc-port={self.grpc_port}",
            f"--http-port={self.http_port}",
            f"--metrics-port={self.metrics_port}",
            f"--exit-timeout-secs={exit_timeout}",
            # Its own names: two servers on a machine never share a region, and after a kill all are found and removed.
            f"--backend-config=python,shm-region-prefix-name={self.memory.prefix}",
            *shared_memory_options(client_shm, command, self.environment, options),
            *options,
        ]
        self.process: subprocess.Popen[bytes] | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    @property
    def url(self) -> str:
        """Address of the gRPC interface."""
        return addresses.at(self.host, self.grpc_port)

    @property
    def http(self) -> str:
        return f"http://{addresses.at(self.host, self.http_port)}"

    @property
    def metrics(self) -> str:
        return f"http://{addresses.at(self.host, self.metrics_port)}/metrics"

    def start(self, timeout: float = 300.0, again: Callable[[int], bool] = lambda status: False) -> TritonServer:
        """Start and wait until every model is ready.

        If the process of a model is held up for a second while it loads, as when the machine is paused, Triton takes it
        for dead and frees memory that it still reads; both crash (fault: held-up-load). No request is lost yet: the
        server is started again, unless its log shows another reason.

        Args:
            timeout: seconds.
            again: whether a server that exits with this status while it loads is started once more.

        Raises:
            ServerFailed: the server exits or is not ready in time.
        """
        try:
            self._start(time.monotonic() + timeout, again)
        except TimeoutError:
            self.stop()
            raise ServerFailed(f"tritonserver was not ready within {timeout:.0f} s{self._reasons()}") from None
        except BaseException:
            self.kill()
            self.stop()
            raise
        return self

    def _start(self, deadline: float, again: Callable[[int], bool]) -> None:
        remove_dead()
        process = self._launch()
        starts = 1
        while not self.ready():
            status = process.poll()
            if status == -signal.SIGABRT and starts < MAX_STARTS and self._was_held_up(starts):
                TritonServer.restarts += 1
                print("tritonserver aborted while it loaded the models; starting it again", file=sys.stderr)
                starts += 1
            elif status is not None and not again(status):
                raise ServerFailed(f"tritonserver exited with status {status}{self._reasons()}")
            if status is not None:
                self._sweep()
                process = self._launch()
            if time.monotonic() > deadline:
                raise TimeoutError
            self.meanwhile()
            time.sleep(0.03)
        if self._gives_way:
            give_way(process.pid)

    def _was_held_up(self, starts: int) -> bool:
        """Whether the log, where there is one, has the known reason for each of these starts."""
        return self.log is None or self.log.read_text(errors="replace").count(HELD_UP) >= starts

    def _launch(self) -> subprocess.Popen[bytes]:
        try:
            lock = self.memory.lock()
        except OSError as error:
            raise ServerFailed(
                f"models need {FOLDER}, which cannot be written: {(error.strerror or '').lower()}"
            ) from None
        with contextlib.nullcontext() if self.log is None else self.log.open("ab") as output:

            def start() -> None:
                self.process = subprocess.Popen(
                    self.command,
                    env=guard.marked(self.environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT if output else None,
                    start_new_session=True,  # a Ctrl-C reaches the server once, from here
                    pass_fds=[lock],
                    umask=0o077,
                )

            start_privately(start)
        assert self.process is not None
        return self.process

    def ready(self) -> bool:
        """Whether every model is ready, and the metrics, whose interface is the last to open."""
        pages = (self.http_port, "/v2/health/ready"), (self.metrics_port, "/metrics")
        try:
            return all(addresses.status_of(self.host, port, path, timeout=5.0) == 200 for port, path in pages)
        except OSError:
            return False

    def restart(self, timeout: float = 300.0, again: Callable[[int], bool] = lambda status: False) -> TritonServer:
        """Start a server that has ended again, with the same ports and options; as `start`."""
        if self.process is not None:
            self.process.wait()
            self._sweep()
        return self.start(timeout, again)

    def end(self) -> int | None:
        """Let running requests end, and end the server, which `restart` can start again; returns its exit status."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(self._exit_timeout + 15)
            except subprocess.TimeoutExpired:
                self.kill()
        status = self.process.wait()
        self._sweep()
        return status

    def stop(self) -> int | None:
        """End the server, and leave nothing behind; returns its exit status."""
        status = self.end()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.memory.release()
        return status

    def kill(self) -> None:
        """SIGKILL the server and the processes of its models at once, as a crash would."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._sweep()

    def regions(self) -> list[Path]:
        """The files of the memory that the server shares with its models."""
        return self.memory.regions()

    def _sweep(self) -> None:
        """Remove what a dead server leaves: the processes of its models and its shared memory."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for region in self.regions():
            region.unlink(missing_ok=True)

    def _reasons(self) -> str:
        """What the log says of the failure: the messages of the models where there are any."""
        if self.log is None:
            return ""
        text = self.log.read_text(errors="replace")
        reasons = list(dict.fromkeys(re.findall(r"failed to load .*?TritonModelException: (.*?)(?:\\n|\"|$)", text)))
        if not reasons:
            marks = ("failed to load", "failed to start", "error:", "Invalid argument")
            reasons = [line for line in text.splitlines() if any(mark in line for mark in marks)][-12:]
        return ":\n  " + "\n  ".join(reasons) if reasons else ""

    def __enter__(self) -> TritonServer:
        return self.start() if self.process is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):  # its requests are not waited for
            self.kill()
        self.stop()
