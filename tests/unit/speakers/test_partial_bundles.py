"""Bundles that come or go in parts: in order, within bounds, and each caller for itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO

import pytest

from voice_clone.errors import InvalidArgument, Overloaded
from voice_clone.speakers import partial_bundles
from voice_clone.speakers.operations import Allowance, Export, Import
from voice_clone.speakers.partial_bundles import MOST, PART, SECONDS, PartialBundles
from voice_clone.turn_pool import caller_now
from voice_clone.turns import Caller

MB = 1 << 20
GIVEN = Import(owner=None, bundle=b"", reextract=False, replace=False, allowance=Allowance(None, None), name="one")


class Given:
    """What callers send."""

    def __init__(self) -> None:
        self.now = 0.0
        self.bundles = PartialBundles(4 * MB, lambda: self.now)

    def add(self, part: int, data: bytes, more: bool = True, name: str = "one", caller: str = "a") -> bytes | None:
        token = caller_now.set(Caller(caller))
        try:
            return self.bundles.add(replace(GIVEN, name=name, part=part, bundle=data, more=more))
        finally:
            caller_now.reset(token)

    def read(self, offset: int, data: bytes, name: str = "one", caller: str = "a") -> bytes:
        def pack(file: BinaryIO) -> dict[str, Any]:
            file.write(data)
            return {"size": len(data)}

        export = Export(owner=None, name=None, include_audio=True, id=name, offset=offset)
        token = caller_now.set(Caller(caller))
        try:
            return self.bundles.read(export, pack)[1]
        finally:
            caller_now.reset(token)


@pytest.fixture
def given() -> Iterator[Given]:
    made = Given()
    yield made
    made.bundles.close()


def test_the_parts_make_the_bundle(given: Given) -> None:
    assert given.add(0, b"whole", more=False) == b"whole"
    assert given.add(0, b"a") is given.add(0, b"A", name="two") is given.add(1, b"b") is None
    assert given.add(2, b"", more=False) == b"ab"
    assert given.add(1, b"B", more=False, name="two") == b"AB"
    with pytest.raises(Overloaded):
        given.add(3, b"c")


@pytest.mark.parametrize("part", [0, 2])
def test_only_the_next_part_continues_a_bundle(given: Given, part: int) -> None:
    given.add(0, b"a")
    if part:
        with pytest.raises(Overloaded):
            given.add(part, b"c")
    else:
        given.add(0, b"A")
        assert given.add(1, b"B", more=False) == b"AB"


def test_a_bundle_has_its_limit_and_is_not_kept_for_ever(given: Given) -> None:
    for part in range(3):
        given.add(part, bytes(MB))
    with pytest.raises(InvalidArgument):
        given.add(3, bytes(MB + 1))
    given.add(0, b"a")
    given.now = SECONDS
    given.bundles.forget_old()
    with pytest.raises(Overloaded):
        given.add(1, b"b")


def test_the_caller_that_holds_most_gives(given: Given) -> None:
    for name in ("one", "two", "three"):
        given.add(0, bytes(2 * MB), name=name)
    assert given.add(0, bytes(3 * MB), name="other", caller="b") is None
    assert given.add(1, b"", more=False, name="other", caller="b") == bytes(3 * MB)
    assert given.add(1, b"", more=False, name="one") == bytes(2 * MB)
    with pytest.raises(Overloaded):
        given.add(1, b"", more=False, name="three")
    with pytest.raises(Overloaded):
        for number in range(MOST):
            given.add(0, b"", name=f"empty {number}")


def test_a_bundle_that_goes_is_forgotten_with_its_end(given: Given) -> None:
    data = bytes(range(256)) * (3 * PART // 512)
    for offsets in ((0, PART), (0, len(data)), (0,)):
        parts = [given.read(offset, data) for offset in offsets]
        if offsets == (0,):
            given.now += SECONDS
            given.bundles.forget_old()
        else:
            assert parts == [data[:PART], data[offsets[1] :]]
        with pytest.raises(Overloaded):
            given.read(PART, data)


def test_bundles_that_go_have_their_room(given: Given) -> None:
    large = bytes(PART + 1)
    given.read(0, large, "one")
    with pytest.raises(Overloaded):
        given.read(0, large, "two", caller="b")
    assert given.read(0, b"small", "three") == b"small"
    assert given.read(PART, large, "one") == b"\0"


def test_a_disk_that_is_full(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_bundles, "TemporaryFile", partial(open, "/dev/full", "r+b", buffering=0))
    for way in (lambda: given.add(0, b"a"), lambda: given.read(0, b"a")):
        with pytest.raises(Overloaded):
            way()
    monkeypatch.undo()
    with pytest.raises(Overloaded):
        given.add(1, b"b")
