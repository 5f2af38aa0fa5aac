"""The artifacts in memory: bounds, order, separate pools, counters."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.doubles.fakes import together
from voice_clone.speakers.lru import POOLS, ArtifactCache, CacheKey, Pool
from voice_clone.turn_pool import caller_now
from voice_clone.turns import Caller


def key(speaker: str, model_type: str = "qwen3_tts", generation: int = 1, mode: str = "icl", by: str = "f") -> CacheKey:
    return CacheKey(model_type, speaker, generation, by, mode)


def test_bytes_are_bounded_and_the_least_recently_used_goes_first() -> None:  # C2
    cache = ArtifactCache(max_bytes=30, max_entries=100, inline_share=0.0)
    for name in "abc":
        assert cache.put("registered", key(name), bytes(10))
    assert cache.get("registered", key("a")) is not None  # promotes
    cache.put("registered", key("d"), bytes(10))
    assert [name for name in "abcd" if cache.peek("registered", key(name)) is not None] == ["a", "c", "d"]
    assert cache.stats()["registered"]["evictions"] == 1


def test_entries_are_bounded() -> None:  # C2
    cache = ArtifactCache(max_bytes=1000, max_entries=3, inline_share=0.0)
    for name in "abcde":
        cache.put("registered", key(name), b"x")
    assert cache.stats()["registered"]["entries"] == 3
    assert cache.peek("registered", key("b")) is None and cache.peek("registered", key("c")) is not None


def test_an_entry_too_large_is_skipped_and_evicts_nothing() -> None:  # C2
    cache = ArtifactCache(max_bytes=30, max_entries=10, inline_share=0.5)
    cache.put("registered", key("a"), bytes(10))
    cache.put("inline", key("i"), bytes(10))
    assert not cache.put("registered", key("big"), bytes(31))
    assert not cache.put("inline", key("big"), bytes(16))
    stats = cache.stats()
    assert [stats[pool]["entries"] for pool in POOLS] == [1, 1]
    assert [stats[pool]["oversize_skips"] for pool in POOLS] == [1, 1]


@pytest.mark.parametrize(("max_bytes", "max_entries"), [(0, 10), (100, 0)])
def test_capacity_zero_keeps_nothing(max_bytes: int, max_entries: int) -> None:  # A18
    cache = ArtifactCache(max_bytes, max_entries, inline_share=0.5)
    for pool in POOLS:
        assert not cache.put(pool, key("a"), b"x")
        assert cache.get(pool, key("a")) is None


def test_inline_clips_never_push_out_a_registered_speaker() -> None:  # A7
    cache = ArtifactCache(max_bytes=100, max_entries=100, inline_share=0.25)
    for index in range(8):
        cache.put("registered", key(str(index)), bytes(10))
    for index in range(200):
        cache.put("inline", key(f"clip {index}"), bytes(10))
    stats = cache.stats()
    assert stats["registered"]["entries"] == 8 and stats["registered"]["evictions"] == 0
    assert stats["inline"]["bytes"] == 20  # what is left; less than its share
    cache.put("registered", key("8"), bytes(10))  # takes the room from the inline clips
    assert cache.stats()["registered"]["entries"] == 9 and cache.stats()["inline"]["bytes"] == 10


@pytest.mark.parametrize("pool", POOLS)
def test_a_caller_leaves_the_entries_of_others(pool: Pool) -> None:
    cache = ArtifactCache(max_bytes=400, max_entries=400, inline_share=0.25)
    for caller, clips in (("ada", 2), ("bob", 200)):
        token = caller_now.set(Caller(caller))
        for index in range(clips):
            cache.put(pool, key(f"{caller} {index}"), bytes(10))
        caller_now.reset(token)
    assert cache.peek(pool, key("ada 0")) is not None and cache.peek(pool, key("ada 1")) is not None


def test_discard_drops_one_speaker_across_model_types_generations_and_modes() -> None:  # C4, A9
    cache = ArtifactCache(1000, 1000, 0.25)
    for speaker in ("alice", "alice_v2", "alice v2", "a"):
        for model_type in ("qwen3_tts", "voxcpm2"):
            for generation, mode in ((1, "icl"), (2, "x_vector")):
                cache.put("registered", key(speaker, model_type, generation, mode), b"x")
    cache.put("inline", key("alice"), b"x")
    cache.put("inline", key("alice")._replace(scope="of bob"), b"x")
    assert cache.discard("registered", "alice") == 4
    assert cache.discard("registered", "alice") == 0
    assert cache.stats()["registered"]["entries"] == 12 and cache.stats()["inline"]["entries"] == 2
    assert cache.discard("inline", "alice") == 2


def test_keys_that_differ_in_any_part_do_not_collide() -> None:  # A9, B18, C3
    cache = ArtifactCache(1000, 1000, 0.25)
    keys = [
        key("a"), key("a", model_type="voxcpm2"), key("a", generation=2), key("a", mode="x_vector"), key("a", by="g"),
        key("a:b"), key("a|b"), CacheKey("a", "b:c", 1, "f", "icl"), CacheKey("a:b", "c", 1, "f", "icl"),
    ]  # fmt: skip
    for index, each in enumerate(keys):
        cache.put("registered", each, bytes([index]))
    assert [cache.get("registered", each) for each in keys] == [bytes([index]) for index in range(len(keys))]


def test_a_hit_is_the_very_object_that_was_put() -> None:
    cache = ArtifactCache(1000, 1000, 0.25)
    value = bytes(100)
    cache.put("registered", key("a"), value)
    assert cache.get("registered", key("a")) is value


_Steps = st.lists(st.tuples(st.sampled_from(["get", "put", "discard"]), st.sampled_from(POOLS), st.integers(0, 9),
                            st.integers(0, 12)), max_size=120)  # fmt: skip


@given(_Steps)
def test_accounting_is_exact(steps: list[tuple[str, Pool, int, int]]) -> None:  # C13: size by the bytes themselves
    cache = ArtifactCache(max_bytes=40, max_entries=6, inline_share=0.5)
    model: dict[Pool, OrderedDict[int, int]] = {pool: OrderedDict() for pool in POOLS}
    for action, pool, speaker, size in steps:
        if action == "get":
            assert (cache.get(pool, key(str(speaker))) is not None) == (speaker in model[pool])
            if speaker in model[pool]:
                model[pool].move_to_end(speaker)
        elif action == "discard":
            assert cache.discard(pool, str(speaker)) == (model[pool].pop(speaker, None) is not None)
        else:
            fits = cache.put(pool, key(str(speaker)), bytes(size))
            model[pool].pop(speaker, None)
            if fits:
                model[pool][speaker] = size
                _shrink(model)
        stats = cache.stats()
        for each in POOLS:
            assert stats[each]["bytes"] == sum(model[each].values())
            assert stats[each]["entries"] == len(model[each])


def _shrink(model: dict[Pool, OrderedDict[int, int]]) -> None:
    """Evict as the description says: inline clips over their share, then inline clips, then registered speakers."""
    registered, inline = model["registered"], model["inline"]

    def over(sizes: OrderedDict[int, int], more: OrderedDict[int, int], most: int, entries: int) -> bool:
        return sum(sizes.values()) + sum(more.values()) > most or len(sizes) + len(more) > entries

    empty: OrderedDict[int, int] = OrderedDict()
    while over(inline, empty, 20, 3) or (inline and over(inline, registered, 40, 6)):
        inline.popitem(last=False)
    while over(registered, inline, 40, 6):
        registered.popitem(last=False)


def test_lookups_are_hits_or_misses_and_counters_never_go_back() -> None:  # C5
    cache = ArtifactCache(max_bytes=200, max_entries=20, inline_share=0.25)
    rounds = 300

    def hammer(seed: int) -> int:
        rng = random.Random(seed)
        before = cache.stats()
        for _ in range(rounds):
            pool = rng.choice(POOLS)
            speaker = key(str(rng.randrange(30)))
            if cache.get(pool, speaker) is None:
                cache.put(pool, speaker, bytes(rng.randrange(20)))
            if rng.random() < 0.05:
                cache.discard(pool, speaker.speaker)
            now = cache.stats()
            for each in POOLS:
                assert all(now[each][n] >= before[each][n] for n in ("hits", "misses", "evictions", "oversize_skips"))
                assert 0 <= now[each]["bytes"] <= 200 and 0 <= now[each]["entries"] <= 20
            before = now
        return rounds

    assert together(32, hammer) == [rounds] * 32
    stats = cache.stats()
    assert sum(stats[pool]["hits"] + stats[pool]["misses"] for pool in POOLS) == 32 * rounds
