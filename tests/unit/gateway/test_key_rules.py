"""The rules of a key: who it is, what it owns, and its limits."""

from __future__ import annotations

import pytest
from voice_clone_gateway.http.auth import Keys
from voice_clone_gateway.http.errors import HTTPFailure
from voice_clone_gateway.http.keys import parse_key
from voice_clone_gateway.http.limits import Characters, KeyGate

MARKS = ["off", "on", "required"]


def test_a_key_without_rules_is_what_it_was() -> None:
    secret, key = parse_key("s3cret speak, manage")
    assert secret == "s3cret" and key.scopes == {"speak", "manage"}
    assert (key.name, key.owner, key.voices, key.mark) == (None, None, None, None)
    key.characters.take(10**9)
    with key.gate.pass_through(1000) as places:
        assert places == 1000


def test_all_rules() -> None:
    _, key = parse_key(
        "s3cret speak,manage name=alice voices=10 megabytes=5 concurrent=4 characters_per_minute=9 owner"
    )
    assert (key.name, key.owner, key.voices, key.bytes) == ("alice", "alice", 10, 5_000_000)
    with key.gate.pass_through(1000) as places:
        assert places == 4
    with pytest.raises(HTTPFailure):
        key.characters.take(10)
    assert [parse_key(f"s3cret speak mark={mark}")[1].mark for mark in MARKS] == MARKS
    _, named = parse_key("s3cret speak name=desk")
    assert (named.name, named.owner) == ("desk", None)


@pytest.mark.parametrize(
    "rules",
    ["owner", "voices=3", "name=alice voices=3", "name=alice megabytes=3", "name=a/b", "name=", "concurrent=0",
     "concurrent=many", "owner=alice", "name=alice color=red", "name=a name=b", "characters_per_minute=-5",
     "concurrent=\u0663", "voices", "mark", "mark=", "mark=yes", "mark=requested", "mark=on mark=off"],
)  # fmt: skip
def test_wrong_rules(rules: str) -> None:
    with pytest.raises(ValueError) as failure:
        parse_key(f"s3cret speak {rules}")
    assert "s3cret" not in str(failure.value) and "alice" not in str(failure.value)


def test_the_places_of_a_key() -> None:
    gate = KeyGate(3)
    with gate.pass_through() as one, gate.pass_through(5) as others:
        assert (one, others, gate.live) == (1, 2, 3)
        with pytest.raises(HTTPFailure) as refused, gate.pass_through():
            pass
    assert refused.value.status_code == 429 and refused.value.headers == {"Retry-After": "1"}
    assert "3 speeches" in refused.value.body()["error"]["message"]
    assert gate.live == 0


def test_characters_come_back_evenly() -> None:
    now = 0.0
    characters = Characters(600, lambda: now)
    characters.take(600)
    with pytest.raises(HTTPFailure) as refused:
        characters.take(25)
    assert refused.value.status_code == 429 and refused.value.headers == {"Retry-After": "3"}
    assert "600 characters a minute" in refused.value.body()["error"]["message"]
    now = 2.4
    with pytest.raises(HTTPFailure):
        characters.take(25)
    now = 2.5
    characters.take(25)
    now = 1000.0
    characters.take(600)  # no more than those of a minute are kept
    with pytest.raises(HTTPFailure):
        characters.take(1)
    with pytest.raises(HTTPFailure) as never:
        characters.take(601)
    assert never.value.status_code == 400, "waiting would not help"


def test_keys_of_one_name_share_their_limits() -> None:
    rules = "speak name=alice concurrent=2 characters_per_minute=10"
    one, other, bob = Keys([f"one {rules}", f"other {rules}", "bob speak name=bob concurrent=2"]).all()
    with one.gate.pass_through(2):
        with pytest.raises(HTTPFailure), other.gate.pass_through():
            pass
        with bob.gate.pass_through():
            pass
    one.characters.take(8)
    with pytest.raises(HTTPFailure):
        other.characters.take(8)
