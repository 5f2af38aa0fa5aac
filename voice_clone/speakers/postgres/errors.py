"""What a caller is told when the database fails."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import psycopg
from psycopg import errors

from voice_clone.errors import Internal, Overloaded

CLOSED = "the voice store is closed; the server is stopping"

log = logging.getLogger(__name__)


class Unreachable(Overloaded):
    """The database does not answer, or not in time; or it is not the one that takes changes."""


@contextlib.contextmanager
def database_errors() -> Iterator[None]:
    """Turn errors of the database into errors for the caller, without its name or its data."""
    try:
        yield
    except errors.DiskFull:
        raise Overloaded("the voice store is full; free space in the database, then try again") from None
    except (psycopg.OperationalError, psycopg.InterfaceError, errors.ReadOnlySqlTransaction) as error:
        log.warning("the voice store does not answer: %s", str(error).strip().partition("\n")[0])
        raise Unreachable("the voice store cannot be reached; nothing was changed, try again later") from None
    except psycopg.Error as error:
        log.error("the voice store refused a statement", exc_info=error)
        raise Internal("the voice store failed to handle the request; nothing was changed") from None
