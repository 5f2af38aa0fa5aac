"""The address of a PostgreSQL database, as an operator gives it: checked, with our defaults."""

from __future__ import annotations

from ipaddress import ip_address

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

VERIFIED = "verify-full"  # the only sslmode that checks the identity of the server
# The client leaves a primary that became a standby for the new one; it notices after 11 s that a machine is gone.
_DEFAULTS = {
    "target_session_attrs": "read-write",
    "connect_timeout": "2",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "application_name": "voice-clone",
}


def checked_address(address: str, setting: str, unverified: str | None) -> str:
    """The address as libpq takes it.

    A password must not cross a network that others can read.

    Args:
        address: postgresql://user:password@host:port/database?sslmode=verify-full
        setting: its name, for messages.
        unverified: how to allow a database on another machine that does not prove its identity; None: it is allowed.

    Raises:
        ValueError: it is no such address, or lets another machine pass as the database. Hides the address.
    """
    if not address.startswith(("postgresql://", "postgres://")):
        raise ValueError(f"{setting} must be an address such as postgresql://user:password@host/name")
    try:
        given = conninfo_to_dict(address)
    except ProgrammingError:
        raise ValueError(f"{setting} cannot be read as the address of a database") from None
    hosts = str(given.get("host") or "").split(",")
    if unverified is not None and given.get("sslmode") != VERIFIED and not all(map(_is_here, hosts)):
        raise ValueError(
            f"{setting} must have sslmode={VERIFIED} for a database on another machine; where the network is private, "
            f"set {unverified} instead"
        )
    return make_conninfo(address, **{name: value for name, value in _DEFAULTS.items() if name not in given})


def _is_here(host: str) -> bool:
    """Whether it is a Unix socket or the loopback interface."""
    if host in ("", "localhost") or host.startswith(("/", "@")):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
