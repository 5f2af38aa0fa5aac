"""A PostgreSQL server of the tests' own: Debian's, on a free port of the loopback interface, in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.support.waiting import until
from voice_clone.speakers.postgres import schema
from voice_clone_server import guard
from voice_clone_server.triton_server import free_ports

_OPTIONS = {  # a crash of the test's machine may lose all; a crash of the server may not
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "unix_socket_directories": "''",
    "listen_addresses": "'127.0.0.1'",
}


def binaries() -> Path | None:
    """Where the newest PostgreSQL of this machine is; None: there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return found[-1].parent if found else None


class PostgresServer:
    """A server that runs from `start` to `stop`. It refuses to run as root, so root runs it as `nobody`.

    Its folder is none of pytest's: these may be entered by their user alone.

    Args:
        options: of postgresql.conf, besides those that make tests fast.
    """

    def __init__(self, **options: str) -> None:
        found = binaries()
        assert found is not None, "PostgreSQL is not installed"
        self._bin, self.folder = found, Path(tempfile.mkdtemp(prefix="voice-clone-postgres-"))
        guard.remove_at_end(self.folder)
        [self.port] = free_ports(1)
        self._prefix: list[str] = []
        if os.getuid() == 0:
            user = pwd.getpwnam("nobody")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        self._options = {**_OPTIONS, "port": str(self.port), **options}
        self._process: subprocess.Popen[bytes] | None = None

    def create(self) -> PostgresServer:
        """Make an empty cluster."""
        command = ["initdb", "-D", str(self.folder / "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"]
        self.run(*command, "--locale=C")
        return self

    def run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs as the server's user."""
        command = [*self._prefix, str(self._bin / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/")
        assert done.returncode == 0, done.stderr

    def start(self) -> PostgresServer:
        """Start and wait until it answers."""
        options = [word for name, value in self._options.items() for word in ("-c", f"{name}={value.strip(chr(39))}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._prefix, str(self._bin / "postgres"), "-D", str(self.folder / "data"), *options],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd="/",
                env=guard.marked(os.environ),
                start_new_session=True,
            )
        until = time.monotonic() + 60.0
        while True:
            try:
                psycopg.connect(self.dsn("postgres")).close()
                return self
            except psycopg.OperationalError:
                assert self._process.poll() is None and time.monotonic() < until, (self.folder / "log").read_text()
                time.sleep(0.05)

    def dsn(self, database: str, port: int | None = None) -> str:
        """The address of a database."""
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}"

    def create_database(self, name: str) -> str:
        """An empty database with the tables of voices. Returns: its address."""
        with psycopg.connect(self.create_bare_database(name), autocommit=True) as connection:
            schema.migrate(connection)
        return self.dsn(name)

    def create_bare_database(self, name: str) -> str:
        """A database without tables. Returns: its address."""
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.dsn(name)

    def signal_all(self, number: int) -> None:
        """Send a signal to all processes of the server, such as SIGSTOP."""
        assert self._process is not None
        children = _children(self._process.pid)  # each has a group of its own, and no parent when that is killed
        os.killpg(self._process.pid, number)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    def kill(self) -> None:
        """SIGKILL, as a crash would. No process is left, which would still write into the data."""
        assert self._process is not None
        children = _children(self._process.pid)
        self.signal_all(signal.SIGKILL)
        self._process.wait()
        until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """Stop at once, and remove the data."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    listed = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    return [int(word) for word in listed.stdout.split()]


@contextlib.contextmanager
def running_postgres(**options: str) -> Iterator[PostgresServer]:
    """A server with an empty cluster."""
    server = PostgresServer(**options).create()
    try:
        yield server.start()
    finally:
        server.stop()


class Databases:
    """Empty databases, used again when they are given back: to make one costs more than to empty one."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self._free: list[str] = []
        self._made = 0

    def take(self) -> str:
        """The address of an empty database."""
        if self._free:
            return self._free.pop()
        self._made += 1
        return self.server.create_database(f"voices{self._made}")

    def give_back(self, dsn: str) -> None:
        """Empty it for another test; no connection may use it any more."""
        empty(dsn)
        self._free.append(dsn)


def empty(dsn: str) -> None:
    """Delete all voices of a database, without leaving their numbers."""
    # A test that left a change open fails by its name.
    with psycopg.connect(dsn, autocommit=True, options="-c statement_timeout=60s") as connection:
        for table in ("voice", "blob", "written"):
            connection.execute(f"DELETE FROM voice_clone.{table}")
        connection.execute("UPDATE voice_clone.counter SET change = 0, epoch = epoch + 1")


def await_writers(dsn: str) -> None:
    """Return when the changes under way are over, those of dead processes, too."""
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT FROM voice_clone.counter FOR UPDATE")
