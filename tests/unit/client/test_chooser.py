"""Which of several servers gets a call: homes of voices, loads, and servers that are down."""

from __future__ import annotations

from collections import Counter

import pytest
from voice_clone_client import InvalidArgument
from voice_clone_client.servers import addresses
from voice_clone_client.servers.addresses import Address, Addresses
from voice_clone_client.servers.affinity import of_voice
from voice_clone_client.servers.chooser import FIRST_PAUSE, FREE, LONGEST_PAUSE, Chooser

from tests.support.doubles.clock import Clock

A, B, C = SERVERS = [Address(f"{host}:8001") for host in "abc"]
KEYS = [of_voice(f"voice {number}") for number in range(300)]


def chooser(clock: Clock | None = None) -> Chooser:
    made = Chooser() if clock is None else Chooser(clock)
    made.update(SERVERS)
    return made


def homes(chooser: Chooser, keys: list[str] = KEYS) -> dict[str, Address]:
    found = {}
    for key in keys:
        address = chooser.choose(key)
        assert address is not None
        chooser.ended(address)
        found[key] = address
    return found


def test_each_voice_has_a_home_and_all_servers_are_homes_of_about_as_many() -> None:
    found = homes(chooser())
    assert found == homes(chooser())
    assert set(Counter(found.values())) == set(SERVERS)
    assert all(70 <= count <= 130 for count in Counter(found.values()).values())


def test_a_server_that_goes_moves_its_own_voices_alone_and_gets_them_back() -> None:
    servers = chooser()
    before = homes(servers)
    servers.update([A, B])
    without = homes(servers)
    assert all(without[key] == home for key, home in before.items() if home != C)
    assert {without[key] for key, home in before.items() if home == C} == {A, B}
    servers.update(SERVERS)
    assert homes(servers) == before


def test_a_home_that_is_busier_than_the_others_passes_calls_on() -> None:
    servers = chooser()
    home = homes(servers)[KEYS[0]]
    first = [servers.choose(KEYS[0]) for _ in range(FREE)]
    assert set(first) == {home}, "a few calls do not leave a warm home"
    more = Counter([*first, *(servers.choose(KEYS[0]) for _ in range(24 - FREE))])
    assert sorted(more.values(), reverse=True) == [10, 10, 4]
    assert more[home] == 10


def test_a_call_without_a_voice_goes_to_the_server_with_the_fewest_in_turn() -> None:
    servers = chooser()
    assert {servers.choose(None) for _ in range(3)} == set(SERVERS)
    servers.ended(B)
    assert servers.choose(None) == B
    for address in SERVERS:
        servers.ended(address)
    assert servers.choose(None) == A and servers.choose(None) == C, "the one that waited longest"


def test_a_server_that_is_down_is_left_out_until_it_says_that_it_is_ready() -> None:
    clock = Clock()
    servers = chooser(clock)
    before = homes(servers)
    servers.failed(B)
    assert B not in homes(servers).values() and servers.due() == []
    clock.now += 0.5
    assert servers.due() == [B] and servers.due() == [], "it is asked once"
    servers.failed(B)
    clock.now += 0.9
    assert servers.due() == []
    clock.now += 0.1
    assert servers.due() == [B], "a second after the second failure"
    for _ in range(9):
        servers.failed(B)
        clock.now += LONGEST_PAUSE
        assert servers.due() == [B]
    servers.answered(B)
    assert homes(servers) == before and servers.due() == []


def test_calls_that_fail_at_once_are_one_failure() -> None:
    clock = Clock()
    servers = chooser(clock)
    for _ in range(9):
        servers.failed(B)
    clock.now += FIRST_PAUSE
    assert servers.due() == [B]


def test_if_all_are_down_one_is_tried_all_the_same() -> None:
    servers = chooser()
    before = homes(servers)
    for address in SERVERS:
        servers.failed(address)
    assert homes(servers) == before
    assert servers.choose(KEYS[0], SERVERS) is None


def test_a_server_is_not_asked_for_its_state_where_there_is_no_other() -> None:
    clock = Clock()
    servers = Chooser(clock)
    servers.update([A])
    servers.failed(A)
    clock.now += 60.0
    assert servers.due() == [] and servers.choose(KEYS[0]) == A


def test_a_server_that_is_gone_is_forgotten_when_its_calls_are_over() -> None:
    servers = chooser()
    used = servers.choose(KEYS[0])
    assert used is not None
    servers.update([each for each in SERVERS if each != used])
    assert used not in servers.addresses and servers.take_gone() == []
    servers.ended(used)
    assert servers.take_gone() == [used] and servers.take_gone() == []


def test_names_that_are_one_voice_have_one_home() -> None:
    assert len({of_voice(name) for name in ("Zoë", "zoë", "ZOË", " Zoe\u0308 ")}) == 1
    assert of_voice("Zoe") != of_voice("Zoë")


@pytest.mark.parametrize("url", ["", "a:1,", "http://a:1", "dns:///", "dns:///a", "dns:///a:x", "dns://a:1"])
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="dns:///"):
        Addresses(url)


def test_a_url_names_servers_or_a_name_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Addresses("a:1").fixed == [Address("a:1")]
    assert Addresses("a:1, [::1]:2").fixed == [Address("a:1"), Address("[::1]:2")]
    named = Addresses("dns:///voices.example:8001,a:1")
    assert named.fixed is None

    def answer(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        assert (host, port) == ("voices.example", 8001)
        return [(None, None, None, "", (ip, port)) for ip in ("10.0.0.2", "10.0.0.1", "10.0.0.2", "fd00::1")]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", answer)
    name = "voices.example"
    assert named.look_up() == [
        Address("a:1"),
        Address("10.0.0.1:8001", name),
        Address("10.0.0.2:8001", name),
        Address("[fd00::1]:8001", name),
    ]
