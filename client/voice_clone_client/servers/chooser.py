"""Which of several servers gets a call.

A voice has a home: the server with the highest hash of the voice and its address (rendezvous hashing, Thaler and
Ravishankar, 1998), so a server that comes or goes moves its own voices alone. A home that is much busier than the
others passes calls on to the voice's next server (hashing with bounded loads, Mirrokni, Thorup, Zadimoghaddam, 2018).
"""

from __future__ import annotations

import hashlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from .addresses import Address

FACTOR = 1.25  # of the mean number of running calls: what a server takes before its voices move on
FREE = 4  # running calls that a home takes in any case: they cost less than a cold voice elsewhere
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0  # seconds between questions to a server that is down


@dataclass(eq=False)
class _Server:
    address: Address
    live: int = 0  # calls that run
    turn: int = 0  # when it was chosen last
    pause: float = 0.0  # before it is asked again; 0: it works, as far as is known
    next_ask: float = 0.0
    asked: bool = False  # whether it is ready, and its answer has not come
    gone: bool = False  # it is no server of the client any more, but still has calls


class Chooser:
    """The servers, their running calls, and which of them are down. Thread-safe; waits for nothing.

    A server is down after a call to it failed, until it says that it is ready, or a call succeeds.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._servers: dict[Address, _Server] = {}
        self._turns = itertools.count(1)

    def update(self, addresses: Sequence[Address]) -> None:
        """Take these as the servers from now on. What is known of those that stay is kept."""
        with self._lock:
            for address in addresses:
                self._servers.setdefault(address, _Server(address))
            for server in self._servers.values():
                server.gone = server.address not in addresses

    @property
    def addresses(self) -> list[Address]:
        with self._lock:
            return [server.address for server in self._servers.values() if not server.gone]

    def take_gone(self) -> list[Address]:
        """Forget the servers that are gone and have no calls, and return them."""
        with self._lock:
            over = [server.address for server in self._servers.values() if server.gone and not server.live]
            for address in over:
                del self._servers[address]
            return over

    def choose(self, key: str | None, tried: Collection[Address] = ()) -> Address | None:
        """Choose the server for a call, which counts as running until `ended`; None if all were tried.

        A server that is down is chosen only if all are.

        Args:
            key: of the voice; None: the server with the fewest calls.
            tried: the servers where the call has failed.
        """
        with self._lock:
            left = [each for each in self._servers.values() if not each.gone and each.address not in tried]
            left = [server for server in left if not server.pause] or left
            if not left:
                return None
            if key is None:
                chosen = min(left, key=lambda server: (server.live, server.turn))
            else:
                ranked = sorted(left, key=lambda server: _rank(key, server.address), reverse=True)
                most = max(FREE, math.ceil(FACTOR * (sum(server.live for server in left) + 1) / len(left)))
                chosen = next((server for server in ranked if server.live < most), ranked[0])
            chosen.live += 1
            chosen.turn = next(self._turns)
            return chosen.address

    def ended(self, address: Address) -> None:
        with self._lock:
            if (server := self._servers.get(address)) is not None:
                server.live = max(0, server.live - 1)

    def answered(self, address: Address) -> None:
        """Note that this server works."""
        with self._lock:
            if (server := self._servers.get(address)) is not None:
                server.pause, server.asked = 0.0, False

    def failed(self, address: Address) -> None:
        """Note that this server cannot be reached, or takes no calls.

        Calls that one failure has ended, all at once, lengthen the pause once.
        """
        now = self._clock()
        with self._lock:
            server = self._servers.get(address)
            if server is None or (server.pause and not server.asked and now < server.next_ask):
                return
            server.pause, server.asked = min(max(FIRST_PAUSE, 2 * server.pause), LONGEST_PAUSE), False
            server.next_ask = now + server.pause

    def due(self) -> list[Address]:
        """Return the servers that are down and should be asked now whether they are ready; never a single one."""
        now = self._clock()
        with self._lock:
            if len(self._servers) < 2:
                return []
            due = [each for each in self._servers.values() if each.pause and not each.gone and now >= each.next_ask]
            for server in due:
                server.asked, server.next_ask = True, now + LONGEST_PAUSE  # its answer comes before
            return [server.address for server in due]


def _rank(key: str, address: Address) -> bytes:
    return hashlib.blake2b(f"{key} {address.target}".encode(), digest_size=8).digest()
