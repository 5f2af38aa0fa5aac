"""Webhooks that wait for their delivery, in the database of the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from .database import Database

CLAIM = 60.0
"""Seconds for which an event is one gateway's, longer than an attempt takes."""
PLACES, PLACES_OF_OWNER = 16, 4
"""How many are sent at once, in all and of an owner: slow receivers of one do not hold up the others."""


@dataclass(frozen=True)
class Delivery:
    """A webhook that is to be delivered."""

    id: str
    job: str
    owner: str
    url: str
    secret: str
    body: str
    attempts: int
    created_at: float


_COLUMNS = ", ".join(each.name for each in fields(Delivery))


class Deliveries:
    """They all; for the thread of the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, delivery: Delivery) -> None:
        """Keep one, which is due at once; in a transaction."""
        values = [getattr(delivery, each.name) for each in fields(Delivery)]
        text = f"INSERT INTO delivery ({_COLUMNS}, next_at) VALUES ({', '.join('?' * len(values))}, ?)"
        self._database.run(text, (*values, delivery.created_at))

    def due(self, busy: Mapping[str, int]) -> list[Delivery]:
        """Those whose next attempt is due, of all owners in turn. For some time no other gateway gets them.

        Args:
            busy: how many of each owner are being sent.
        """
        now, free = self._database.now(), PLACES - sum(busy.values())
        with self._database.transaction("webhooks"):
            found = self._database.run(
                f"SELECT {_COLUMNS}, place FROM (SELECT *, row_number() OVER (PARTITION BY owner ORDER BY next_at) "
                "AS place FROM delivery WHERE next_at <= ?) AS due WHERE place <= ? ORDER BY place, next_at",
                (now, PLACES_OF_OWNER),
            ).fetchall()
            due = [(Delivery(*row), place) for *row, place in found]
            taken = [each for each, place in due if busy.get(each.owner, 0) + place <= PLACES_OF_OWNER][: max(0, free)]
            for each in taken:
                self._database.run("UPDATE delivery SET next_at = ? WHERE id = ?", (now + CLAIM, each.id))
        return taken

    def delivered(self, id: str) -> None:
        """One needs no further attempt."""
        self._database.run("DELETE FROM delivery WHERE id = ?", (id,))
        self._database.scrub()

    def postpone(self, id: str, seconds: float) -> None:
        """An attempt failed; the next one is after so many seconds."""
        text = "UPDATE delivery SET attempts = attempts + 1, next_at = ? WHERE id = ?"
        self._database.run(text, (self._database.now() + seconds, id))
