"""The address of the database, checked: a password must not cross a network that anybody reads."""

from __future__ import annotations

from ipaddress import ip_address

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from voice_clone.errors import InvalidArgument

VERIFIED = "verify-full"  # the one sslmode that checks whose server answers
# Found where the address does not say otherwise. A primary that was degraded to a standby is left for the new one; a
# machine that is gone is noticed after 11 s, by both sides (see `sessions`).
_DEFAULTS = {
    "target_session_attrs": "read-write",
    "connect_timeout": "2",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "application_name": "voice-clone",
}


def checked(dsn: str, tls: bool = True) -> str:
    """The address as libpq takes it, with our defaults.

    Args:
        dsn: postgresql://user:password@host:port/database?sslmode=verify-full
        tls: whether another machine must prove who it is.

    Raises:
        InvalidArgument: it is no such address, or lets another machine pass as the database. Hides the address.
    """
    if not dsn.startswith(("postgresql://", "postgres://")):
        raise InvalidArgument("VOICE_CLONE_VOICE_STORE must be an address such as postgresql://user:password@host/name")
    try:
        given = conninfo_to_dict(dsn)
    except ProgrammingError:
        raise InvalidArgument("VOICE_CLONE_VOICE_STORE cannot be read as the address of a database") from None
    hosts = str(given.get("host") or "").split(",")
    if tls and given.get("sslmode") != VERIFIED and not all(map(_is_here, hosts)):
        raise InvalidArgument(
            f"VOICE_CLONE_VOICE_STORE must have sslmode={VERIFIED} for a database on another machine; where the "
            "network is private, set VOICE_CLONE_VOICE_STORE_TLS=off instead"
        )
    return make_conninfo(dsn, **{name: value for name, value in _DEFAULTS.items() if name not in given})


def _is_here(host: str) -> bool:
    """Whether it is a Unix socket or the loopback interface."""
    if host in ("", "localhost") or host.startswith(("/", "@")):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
