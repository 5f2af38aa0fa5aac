"""Keys: what a key allows, whose voices it works with, and its limits.

A line of the file of keys: KEY SCOPE[,SCOPE] [RULE ...], with the rules

    name=NAME                 in the audit log, and as the owner; 1 to 64 of A-Z, a-z, 0-9 and _ . -
    owner                     it owns the voices that it registers, and works with these and shared ones alone
    voices=N                  how many voices it may own
    megabytes=N               how large the clips of its voices may be, with all styles
    concurrent=N              how many speeches may run at once
    characters_per_minute=N   how much text it may speak
    mark=off|on|required      whether its speech is marked as synthetic, where the server's setting is `requested`
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from ipaddress import ip_address, ip_network
from typing import Literal, get_args

from starlette.types import Scope as ConnectionScope
from voice_clone_client.types import Mark

from .limits import Characters, KeyGate

Scope = Literal["speak", "manage"]
SCOPES: frozenset[Scope] = frozenset(("speak", "manage"))
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")  # the server's rule for an owner, and for a style
_LIMITS = ("voices", "megabytes", "concurrent", "characters_per_minute")
_MARKS = {name: name for name in get_args(Mark)}


@dataclass(frozen=True, eq=False)
class Key:
    """What the bearer of a key may do. Without arguments: the caller of a gateway that has no keys."""

    name: str | None = None
    scopes: frozenset[Scope] = SCOPES
    owner: str | None = None
    """The owner for whom it acts; None: it works with all voices."""
    voices: int | None = None
    """How many voices the owner may have; None: any number."""
    bytes: int | None = None
    """Of the clips of these voices; None: any number."""
    gate: KeyGate = field(default_factory=KeyGate)
    """Of its speeches."""
    characters: Characters = field(default_factory=Characters)
    """That it may still speak."""
    turns: str = ""
    """Keys with the same text take turns with others as one caller; "" for the caller of a gateway without keys."""
    mark: Mark | None = None
    """Whether its speech is marked as synthetic; None: as the server does it by itself."""
    token: bool = False
    """Whether this is what the bearer of a token of the key may do."""


def parse_key(line: str) -> tuple[str, Key]:
    """A key of the file, and what it allows.

    Raises:
        ValueError: the line is invalid. The text quotes nothing of it.
    """
    secret, *words = line.split()
    if not all("!" <= character <= "~" for character in secret):
        raise ValueError("must be printable ASCII; the header of a request carries no other")
    first_rule = next((index for index, word in enumerate(words) if _is_rule(word)), len(words))
    names = "".join(words[:first_rule]).split(",")
    scopes = frozenset(scope for scope in SCOPES if scope in names)
    if not scopes or len(scopes) != len(names):
        raise ValueError("must be followed by its scopes: speak, manage or speak,manage")
    rules: dict[str, str] = {}
    for word in words[first_rule:]:
        rule, _, value = word.partition("=")
        if not _is_rule(word) or rule in rules:
            raise ValueError(
                f"has rules after its scopes: name=NAME, owner, mark=..., {', '.join(f'{n}=N' for n in _LIMITS)}"
            )
        rules[rule] = value
    name = rules.get("name")
    if name is not None and not WORD.fullmatch(name):
        raise ValueError("has a name that is not 1 to 64 of A-Z, a-z, 0-9 and _ . -")
    if "owner" in rules and name is None:
        raise ValueError("owns its voices, so it needs a name: name=NAME")
    limits = {rule: _limit(rule, rules[rule]) for rule in _LIMITS if rule in rules}
    of_owner = next((rule for rule in ("voices", "megabytes") if rule in limits), None)
    if of_owner is not None and "owner" not in rules:
        raise ValueError(f"has a limit of {of_owner}, which only an owner can have: add the rule owner")
    if "mark" in rules and rules["mark"] not in _MARKS:
        raise ValueError(f"has a rule mark that is none of {', '.join(_MARKS)}")
    return secret, Key(
        name,
        scopes,
        name if "owner" in rules else None,
        limits.get("voices"),
        limits["megabytes"] * 10**6 if "megabytes" in limits else None,
        KeyGate(limits.get("concurrent")),
        Characters(limits.get("characters_per_minute")),
        f"{'owner' if 'owner' in rules else 'key'} {name or _digest(secret)}",
        _MARKS[rules["mark"]] if "mark" in rules else None,
    )


def _digest(secret: str) -> str:
    return blake2b(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _is_rule(word: str) -> bool:
    rule, separator, _ = word.partition("=")
    return word == "owner" or (separator == "=" and rule in ("name", "mark", *_LIMITS))


def _limit(rule: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 0 < int(value) <= 10**9:
        raise ValueError(f"needs a whole number above 0 in {rule}=N")
    return int(value)


def caller_of(name: str, scope: ConnectionScope) -> str:
    """The name under which a caller takes turns with others: a digest, which hides the key and its owner.

    Args:
        name: of the key; without one it is the address, or the network of an IPv6 address, of which a caller has very
            many.
        scope: of the request.
    """
    if not name:
        host = scope["client"][0] if scope.get("client") else ""
        with suppress(ValueError):
            address = ip_address(host)
            host = str(ip_network((address, 64), strict=False)) if address.version == 6 else host
        name = f"address {host}"
    return blake2b(name.encode(), digest_size=8).hexdigest()
