"""What is computed of voices is bounded, and forgotten with them."""

from __future__ import annotations

import json
import math
import threading
import time
from typing import Any

import pytest

from voice_clone.lru_cache import LRUCache, Origin


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
