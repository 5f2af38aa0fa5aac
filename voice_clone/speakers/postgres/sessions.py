"""Connections to the database, each made when it is needed, and each use of them with a deadline.

A server that is paused keeps its connections open and answers nothing, so a statement needs a deadline of the client's
own. A thread cuts the connections whose use has lasted too long: the statement then fails at once.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import psycopg

from voice_clone.errors import Overloaded
from voice_clone.speakers.postgres.errors import CLOSED, database_errors

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
    """One connection, made anew after a failure. For one thread at a time.

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
        self._line: socket.socket | None = None  # the connection's socket, under a number that nobody else gets
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
        """Close the connection; later uses fail."""
        self._ended = True
        self.close()

    def close(self) -> None:
        """Close the connection; the next use makes another one."""
        connection, line, self._connection, self._line = self._connection, self._line, None, None
        if connection is not None and line is not None:
            with contextlib.suppress(OSError):  # so that no farewell is waited for
                line.shutdown(socket.SHUT_RDWR)
            line.close()
            connection.close()

    def _open(self) -> tuple[Connection, socket.socket]:
        if self._ended:
            raise Overloaded(CLOSED)
        if self._line is not None and select.select([self._line], [], [], 0.0)[0]:
            self.close()  # an idle connection has nothing to say but its end
        if self._connection is None or self._line is None:
            self._connection = psycopg.connect(self._conninfo)
            self._line = socket.socket(fileno=os.dup(self._connection.fileno()))
        return self._connection, self._line


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
