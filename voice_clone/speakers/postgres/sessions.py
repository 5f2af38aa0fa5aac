"""Connections to the database: their address, their deadlines, what callers get when it fails, and locks.

Each connection is made when it is needed, and each use of it has a deadline. A server that is paused keeps its
connections open and answers nothing, so a statement needs a deadline of the client's own. A thread cuts the connections
whose use has lasted too long: the statement then fails at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
from psycopg import errors
from voice_clone_program import database_address

from voice_clone.errors import Internal, InvalidArgument, Overloaded, VoiceCloneError

log = logging.getLogger(__name__)


def checked_address(dsn: str, tls: bool = True) -> str:
    """The address as libpq takes it; `tls`: another machine must prove its identity.

    Raises:
        InvalidArgument: as ValueError of `database_address.checked_address`.
    """
    try:
        return database_address.checked_address(
            dsn, "VOICE_CLONE_VOICE_STORE", "VOICE_CLONE_VOICE_STORE_TLS=off" if tls else None
        )
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


CLOSED = "the voice store is closed; the server is stopping"

AGAIN = 60.0  # seconds after which the same line is logged again: a database that is away is asked all the time

_logged: dict[str, float] = {}  # lines, and when they were


class Unreachable(Overloaded):
    """The database does not answer, or not in time; or it is not the one that takes changes."""


class Full(Overloaded):
    """The disk of the database is full."""


@contextlib.contextmanager
def database_errors() -> Iterator[None]:
    """Turn errors of the database into errors for the caller, without its name or its data."""
    try:
        yield
    except errors.DiskFull:
        _log(logging.ERROR, "the voice store is full", None)
        raise Full("the voice store is full; free space in the database, then try again") from None
    except (
        psycopg.OperationalError,
        psycopg.InterfaceError,
        errors.ReadOnlySqlTransaction,
        errors.IdleInTransactionSessionTimeout,
    ) as error:
        _log(logging.WARNING, f"the voice store does not answer: {str(error).strip().partition(chr(10))[0]}", None)
        raise Unreachable("the voice store cannot be reached; nothing was changed, try again later") from None
    except psycopg.Error as error:
        _log(logging.ERROR, f"the voice store refused a statement: {type(error).__name__}", error)
        raise Internal("the voice store failed to handle the request; nothing was changed") from None


def _log(level: int, line: str, error: Exception | None) -> None:
    """Log a line, unless it was logged a moment ago."""
    now = time.monotonic()
    if now - _logged.get(line, -AGAIN) >= AGAIN:
        if len(_logged) > 100:
            _logged.clear()
        _logged[line] = now
        log.log(level, "%s", line, exc_info=error)


_TICK = 0.05  # seconds between two looks at the deadlines
# The database ends what a paused or lost replica left open, since that would keep others from writing: 11 s after its
# machine is gone, 5 s after it stopped in the middle of a change. The last two are for a database without statistics of
# many new voices: it expects a look to find a third of them, reads the whole table, and compiles for that (70 ms).
_GREETING = (
    "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; "
    "SET idle_in_transaction_session_timeout = '5s'; SET lock_timeout = '10s'; SET statement_timeout = '60s'; "
    "SET jit = off; SET enable_seqscan = off"
)
Connection = psycopg.Connection[tuple[object, ...]]


class Watchdog:
    """Cuts connections at their deadlines, until `close` and until the last use is over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: dict[object, tuple[float, socket.socket]] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-deadlines", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def watching(self, line: socket.socket, seconds: float) -> Iterator[None]:
        """Cut the connection if the body takes longer."""
        use = object()
        with self._lock:
            self._uses[use] = (time.monotonic() + seconds, line)
        try:
            yield
        finally:
            with self._lock:
                del self._uses[use]

    def close(self) -> None:
        """Stop when no connection is in use; returns at once."""
        self._closing.set()

    def _run(self) -> None:
        used = True
        while used or not self._closing.is_set():
            time.sleep(_TICK)
            now = time.monotonic()
            with self._lock:
                used = bool(self._uses)
                for until, line in self._uses.values():
                    if now > until:
                        with contextlib.suppress(OSError):  # it is cut already
                            line.shutdown(socket.SHUT_RDWR)


class Session:
    """One connection, made again after a failure. For one thread at a time.

    Args:
        conninfo: the address.
        watchdog: cuts it.
        greet: called with each new connection.
    """

    def __init__(
        self, conninfo: str, watchdog: Watchdog, greet: Callable[[Connection], None] = lambda connection: None
    ) -> None:
        self._conninfo = conninfo
        self._watchdog = watchdog
        self._greet = greet
        self._connection: Connection | None = None
        self._line: socket.socket | None = None  # the connection's socket, under a number of its own
        self._ended = False

    @contextlib.contextmanager
    def use(self, seconds: float) -> Iterator[Connection]:
        """The connection, out of a transaction; what the body leaves open is rolled back.

        Raises:
            Unreachable, Overloaded, Internal: as `database_errors`; Unreachable also if the body takes too long.
        """
        with database_errors():
            try:
                connection, line = self._open()
                with self._watchdog.watching(line, seconds):
                    if connection.autocommit is False:
                        connection.autocommit = True
                        connection.execute(_GREETING)
                        self._greet(connection)
                    try:
                        yield connection
                    finally:
                        if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                            connection.rollback()
            except psycopg.Error:
                self.close()
                raise

    def end(self) -> None:
        self._ended = True
        self.close()

    def close(self) -> None:
        """Close the connection; the next use makes another one."""
        connection, line, self._connection, self._line = self._connection, self._line, None, None
        if connection is not None and line is not None:
            with contextlib.suppress(OSError):  # so that closing does not wait for the server
                line.shutdown(socket.SHUT_RDWR)
            line.close()
            connection.close()

    def _open(self) -> tuple[Connection, socket.socket]:
        if self._ended:
            raise Overloaded(CLOSED)
        if self._line is not None and _is_readable(self._line):
            self.close()  # data on an idle connection can only be its end
        if self._connection is None or self._line is None:
            self._connection = psycopg.connect(self._conninfo)
            self._line = socket.socket(fileno=os.dup(self._connection.fileno()))
        return self._connection, self._line


def _is_readable(line: socket.socket) -> bool:
    """Whether something came; of a file descriptor of any number, which `select` does not take."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    return bool(poll.poll(0))


class Sessions:
    """A few sessions, shared by all threads."""

    def __init__(self, conninfo: str, watchdog: Watchdog, count: int) -> None:
        self._closed = False
        self._free: queue.LifoQueue[Session] = queue.LifoQueue()
        for _ in range(count):
            self._free.put(Session(conninfo, watchdog))

    @contextlib.contextmanager
    def one(self, seconds: float) -> Iterator[Connection]:
        """The connection of one of them, as `Session.use`.

        Raises:
            Overloaded: none is free for as long.
        """
        try:
            session = self._free.get(timeout=seconds)
        except queue.Empty:
            raise Overloaded("the voice store is busy; try again later") from None
        try:
            with session.use(seconds) as connection:
                yield connection
        finally:
            self._free.put(session)
            if self._closed:
                self.close()

    def drop(self) -> None:
        """Close the connections that are not in use: the database does not answer, and they may be dead."""
        idle = []
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self._free.get_nowait())
        for session in idle:
            session.close()
            self._free.put(session)

    def close(self) -> None:
        """Close those that are not in use; the others end with their use."""
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._free.get_nowait().end()


class Claims:
    """Locks for work that one server of a fleet does for all. Thread-safe.

    A lock is an advisory one of the database, on a connection of its own. It goes when the server's process dies, and
    11 s after its machine is lost. It only saves work: what comes of the work is checked when it is written, so a lost
    lock does no harm.

    Args:
        session: of the locks, and of nothing else.
        seconds: for which the database is waited for.
        away: whether it is known not to answer.

    Attributes:
        refused: how often another server was at work.
    """

    def __init__(self, session: Session, seconds: float, away: Callable[[], bool]) -> None:
        self._session = session
        self._seconds = seconds
        self._away = away
        self._lock = threading.Lock()
        self.refused = 0

    @contextlib.contextmanager
    def claim(self, *what: object) -> Iterator[bool]:
        """Whether no other server does this work, or the owner is unknown."""
        number = int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:8], "big", signed=True)
        granted = self._away() or self._ask("SELECT pg_try_advisory_lock(%s)", number)
        self.refused += not granted
        try:
            yield granted
        finally:
            if granted:
                self._give_back(number)

    def close(self) -> None:
        """Give all locks back."""
        with self._lock:
            self._session.end()

    def _give_back(self, number: int) -> None:
        if not self._away():
            self._ask("SELECT pg_advisory_unlock(%s)", number)
            return
        with self._lock:
            self._session.close()  # a database that comes back must not keep the lock for as long as the connection

    def _ask(self, question: str, number: int) -> bool:
        try:
            with self._lock, self._session.use(self._seconds) as connection:
                [(answer,)] = connection.execute(question, (number,), prepare=True).fetchall()
                return bool(answer)
        except VoiceCloneError as error:
            log.debug("an extraction begins without a lock: %s", error)
            return True
