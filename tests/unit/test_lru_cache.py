"""What is computed of voices is bounded, and forgotten with them."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice_clone.lru_cache import STALE, LRUCache, Origin, scope_of


def origin(voice: str) -> Origin:
    return Origin(voice, time.monotonic())


def test_a_voice_is_forgotten_with_all_that_it_used() -> None:
    cache: LRUCache[int] = LRUCache(100)
    cache.put(b"a", 1, 10, origin("1"))
    cache.put(b"b", 2, 10, origin("2"))
    cache.put(b"c", 3, 10, origin(""))
    assert cache.get(b"b", origin("1")) == 2 and cache.get(b"c", origin("")) == 3
    assert cache.forget([]) == (3, 30, {"1", "2"})
    assert cache.forget(["1", "3"]) == (1, 10, frozenset())
    assert cache.get(b"b", origin("2")) is None and cache.get(b"c", origin("2")) == 3
    assert cache.forget(["2"]) == (0, 0, frozenset()) and cache.nbytes == 0


def test_what_was_found_before_is_not_kept() -> None:
    cache: LRUCache[int] = LRUCache(100)
    early = origin("1")
    cache.forget([])  # only asked
    cache.put(b"a", 1, 10, early)
    assert b"a" in cache
    cache.forget(["1"])
    cache.put(b"a", 1, 10, early)
    cache.put(b"b", 2, 10, early._replace(voice="2"))
    assert b"a" not in cache and b"b" not in cache
    cache.put(b"a", 1, 10, origin("1"))  # found afterwards: another voice, whatever it is called
    assert b"a" in cache


def test_an_origin_that_is_not_kept_is_neither_put_nor_found() -> None:
    cache: LRUCache[int] = LRUCache(100)
    aside = origin("1")._replace(keep=False)
    cache.put(b"a", 1, 10, aside)
    assert cache.forget([]) == (0, 0, frozenset())
    cache.put(b"a", 1, 10, origin("1"))
    assert cache.get(b"a", aside) is None and cache.get(b"a", origin("1")) == 1
    assert Origin.from_json(json.loads(json.dumps(aside))) == aside
    assert Origin.from_json(["1", aside.found]).keep, "what an older stage sends"


def test_a_value_that_is_put_again_keeps_its_voices() -> None:
    cache: LRUCache[int] = LRUCache(100)
    cache.put(b"a", 1, 10, origin("1"))
    cache.put(b"a", 2, 10, origin("2"))
    assert cache.forget(["1"]).entries == 0


def test_forgetting_beside_speeches_leaves_nothing_of_a_voice() -> None:
    cache: LRUCache[int] = LRUCache(10_000)
    stop = threading.Event()

    def speak(voice: str) -> None:
        while not stop.is_set():
            found = origin(voice)
            for key in range(8):
                cache.get(b"%d" % key, found)
                cache.put(b"%d" % key, key, 10, found)

    threads = [threading.Thread(target=speak, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for number in range(300):
        cache.forget([str(number % 4)])
    stop.set()
    for thread in threads:
        thread.join()
    assert cache.forget([str(number) for number in range(4)]) == (0, 0, frozenset())


@pytest.mark.parametrize("value", [None, 3, "ab", [], ["1"], ["1", "x"], ["1", [2]], {"a": 1}, ["1", None]])
def test_an_origin_that_is_none(value: Any) -> None:
    assert Origin.from_json(value).voice in ("", "a")


@pytest.mark.parametrize(("found", "kept"), [(math.inf, False), (math.nan, False), (1e300, True), (-5, False)])
def test_no_origin_is_of_the_future(found: float, kept: bool) -> None:
    """Else what it computes would outlive its voice."""
    cache: LRUCache[int] = LRUCache(100)
    cache.forget(["1"])
    made = Origin.from_json(["1", found])
    cache.put(b"a", 1, 10, made)
    assert (b"a" in cache) == kept
    cache.forget(["2"])
    cache.clear()
    cache.put(b"a", 1, 10, made)
    assert b"a" not in cache
    assert Origin.from_json(json.loads(json.dumps(origin("5")))).voice == "5"


def test_a_voice_forgotten_while_there_is_no_cache() -> None:
    class Cache(LRUCache[int]):
        """Of a process of its own."""

    before = origin("7")
    Cache.forget_at_rest()
    cache = Cache(100)
    cache.put(b"a", 1, 10, before)
    cache.put(b"b", 1, 10, origin("8"))
    assert cache.forget(()).voices == {"8"}


def of(caller: str, owner: str | None = None) -> Origin:
    return origin("")._replace(caller=caller, scope=scope_of(owner))


def test_owners_do_not_find_what_others_have_computed() -> None:
    cache: LRUCache[str] = LRUCache(100)
    scopes = [of("", None), of("", "ada"), of("", "of ada"), of("", "bob"), of("", "None")]
    for number, each in enumerate(scopes):
        assert cache.get(b"a", each) is None
        cache.put(b"a", str(number), 10, each._replace(voice="inline-a"))
    assert [cache.get(b"a", each) for each in scopes] == ["0", "1", "2", "3", "4"]
    assert Origin.from_json(json.loads(json.dumps(scopes[1]))) == scopes[1]
    assert cache.forget(["inline-a"]).entries == 0, "every owner's copy goes"


def test_new_entries_of_one_caller_leave_those_of_others() -> None:
    cache: LRUCache[int] = LRUCache(100)
    for key in (b"a", b"b"):
        cache.put(key, 0, 10, of("ada"))
    for key in range(50):
        cache.put(b"%d" % key, 0, 10, of("bob"))
    assert b"a" in cache and b"b" in cache and cache.nbytes == 100
    cache.put(b"large", 0, 70, of("ada"))  # more than half: what she has gives way first
    assert b"a" not in cache and b"b" not in cache and b"49" in cache and b"47" in cache and b"46" not in cache


def test_what_another_caller_uses_is_that_callers_too() -> None:
    cache: LRUCache[int] = LRUCache(100)
    cache.put(b"shared", 0, 10, of("bob"))
    assert cache.get(b"shared", of("ada")) is not None
    for key in range(50):
        cache.put(b"%d" % key, 0, 10, of("bob"))
    assert b"shared" in cache


def test_what_is_not_used_any_more_goes_first() -> None:
    now = 0.0
    cache: LRUCache[int] = LRUCache(100, clock=lambda: now)
    for key in range(9):
        cache.put(b"%d" % key, 0, 10, of(f"left {key}"))
    now = STALE + 1.0
    for key in range(20):
        cache.put(b"busy %d" % (key % 3), 0, 30, of("ada"))
    assert all(b"busy %d" % key in cache for key in range(3))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 40)), max_size=80))
def test_a_caller_alone_has_a_plain_cache(steps: list[tuple[bool, int, int]]) -> None:
    cache: LRUCache[int] = LRUCache(100)
    plain: OrderedDict[bytes, int] = OrderedDict()  # sizes, the least recently used first
    for puts, number, size in steps:
        key = b"%d" % number
        if puts:
            cache.put(key, 0, size, of("ada"))
            plain.pop(key, None)
            while sum(plain.values()) + size > 100:
                plain.popitem(last=False)
            plain[key] = size
        elif (cache.get(key, of("ada")) is not None) and key in plain:
            plain.move_to_end(key)
        assert cache.nbytes == sum(plain.values()) and all(key in cache for key in plain)
