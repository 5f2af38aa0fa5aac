"""Packed weights on disk: as they were made, or not at all."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voice_clone.native import packed_file, packed_writing
from voice_clone.native.arrays import Array
from voice_clone.native.packed_file import ENDING, STAMP, WRITING, MappedPages, PackedFile

KEY = {"network": "a", "files": [["model", 1]]}
MOST = 1 << 20


@pytest.fixture(autouse=True)
def worth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_file, "WORTH", 1)


def weights(seed: int = 0) -> list[Array]:
    """Arrays of all types that are packed; one is empty, one no multiple of a page."""
    random = np.random.default_rng(seed)
    return [
        random.integers(0, 255, (3, 5, 700), np.uint8),
        random.standard_normal((7, 1000)).astype(np.float32),
        np.zeros((4, 0), np.float32),
        random.integers(0, 1 << 16, (9,), np.uint16),
        random.integers(-9, 9, (2, 3)),
    ]


def keep(folder: Path | None, arrays: Sequence[Array], key: dict[str, Any] = KEY, most: int = MOST) -> None:
    packed = PackedFile(folder, key, most)
    packed.part("all")(lambda: arrays)
    packed.keep()


def found(folder: Path, key: dict[str, Any] = KEY) -> list[Array] | None:
    packed = PackedFile(folder, key, MOST)
    if not packed.found:
        return None

    def make() -> list[Array]:
        raise AssertionError("it is there")

    return packed.part("all")(make)


def only(folder: Path) -> Path:
    [path] = folder.glob(f"*{ENDING}")
    return path


def assert_equal(these: Sequence[Array] | None, those: Sequence[Array]) -> None:
    assert these is not None
    for this, that in zip(these, those, strict=True):
        assert this.dtype == that.dtype
        np.testing.assert_array_equal(this, that)


def test_they_come_back_bit_for_bit_and_aligned(tmp_path: Path) -> None:
    assert found(tmp_path) is None
    keep(tmp_path, weights())
    back = found(tmp_path)
    assert_equal(back, weights())
    assert back is not None
    assert all(array.flags.writeable and array.ctypes.data % 64 == 0 for array in back if array.size)
    assert only(tmp_path).stat().st_mode & 0o777 == 0o600


def test_what_is_written_to_them_reaches_neither_the_file_nor_another_process(tmp_path: Path) -> None:
    keep(tmp_path, weights())
    mine, other = found(tmp_path), found(tmp_path)
    assert mine is not None and other is not None
    mine[1][:] = 0
    assert_equal(other, weights())
    assert_equal(found(tmp_path), weights())


def test_the_weights_of_another_key_are_not_taken(tmp_path: Path) -> None:
    other = {**KEY, "files": [["model", 2]]}
    keep(tmp_path, weights())
    mine = only(tmp_path)
    assert found(tmp_path, other) is None
    keep(tmp_path, weights(1), other)
    assert_equal(found(tmp_path), weights())
    assert_equal(found(tmp_path, other), weights(1))
    [others] = set(tmp_path.glob(f"*{ENDING}")) - {mine}
    mine.replace(others)  # under another one's name
    assert found(tmp_path, other) is None


@pytest.fixture
def damages() -> Iterator[list[Any]]:
    def flip(place: int) -> Any:
        def damage(path: Path) -> None:
            content = bytearray(path.read_bytes())
            content[place] ^= 1
            path.write_bytes(content)

        return damage

    yield [
        *map(flip, (0, 33, 50, 5000, -1)),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:20]),
        lambda path: path.write_bytes(b""),
    ]


def test_damage_is_noticed_and_the_file_written_again(
    tmp_path: Path, damages: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    for damage in damages:
        keep(tmp_path, weights())
        damage(only(tmp_path))
        with caplog.at_level(logging.WARNING):
            assert found(tmp_path) is None
        assert "damaged" in caplog.text
        caplog.clear()
        keep(tmp_path, weights())
        assert_equal(found(tmp_path), weights())


def test_a_file_is_read_once_and_again_if_anything_could_have_changed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Any] = []
    check = packed_writing.check
    monkeypatch.setattr(packed_writing, "check", lambda file: (checked.append(file), check(file)))
    keep(tmp_path, weights())
    for _ in range(3):
        assert_equal(found(tmp_path), weights())
    assert len(checked) == 1
    path, stamp = only(tmp_path), only(tmp_path).with_suffix(STAMP)
    times = path.stat()
    content = path.read_bytes()
    with path.open("r+b") as file:  # in place, and the time of change set back
        file.write(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert_equal(found(tmp_path), weights())
    assert len(checked) == 2
    stamp.chmod(0o666)  # others could have written it
    assert_equal(found(tmp_path), weights())
    assert len(checked) == 3
    stamp.unlink()
    stamp.mkdir()  # it cannot be written
    assert_equal(found(tmp_path), weights())
    assert len(checked) == 4


def test_what_others_could_have_written_is_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep(tmp_path, weights())
    only(tmp_path).chmod(0o622)
    with caplog.at_level(logging.WARNING):
        assert found(tmp_path) is None
    assert "could have been written by others" in caplog.text
    if os.geteuid() == 0:  # a stranger's
        only(tmp_path).chmod(0o600)
        os.chown(only(tmp_path), 12345, -1)
        assert found(tmp_path) is None


def test_a_folder_that_cannot_be_written_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in the way").write_text("")
    keep(tmp_path / "in the way", weights())
    keep(None, weights())
    usage = packed_writing.shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(packed_writing.shutil, "disk_usage", lambda path: usage)
    keep(tmp_path / "full", weights())
    assert not list((tmp_path / "full").iterdir())


def test_a_disk_that_fills_up_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(old: str, new: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packed_writing.os, "replace", fail)
    keep(tmp_path, weights())
    assert "No space left" in caplog.text and not list(tmp_path.iterdir())


def test_the_folder_stays_small(tmp_path: Path) -> None:
    size = sum(array.nbytes for array in weights()) + (1 << 14)
    keys = [{"number": number} for number in range(4)]
    for number, key in enumerate(keys[:3]):
        keep(tmp_path, weights(number), key)
        past = time.time() - 1000 + number
        for path in tmp_path.iterdir():
            if path.stat().st_mtime > past + 500:
                os.utime(path, (past, past))
    assert found(tmp_path, keys[0]) is not None  # used, so it is the newest
    abandoned, recent, foreign = (tmp_path / name for name in (f"{WRITING}1", f"{WRITING}2", "notes"))
    for path in (abandoned, recent, foreign):
        path.touch()
    for path in (abandoned, foreign):
        os.utime(path, (0, 0))
    keep(tmp_path, weights(3), keys[3], most=3 * size)
    assert [found(tmp_path, key) is not None for key in keys] == [True, False, True, True]
    assert not abandoned.exists() and recent.exists() and foreign.exists()
    keep(tmp_path, weights(4), {"number": 4}, most=size // 3)
    assert found(tmp_path, {"number": 4}) is None, "it alone is larger than all may be"
    assert found(tmp_path, keys[3]) is not None


def test_models_that_start_together_leave_each_other_their_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else each start would write all of them again. Those of yesterday make room."""
    most = 2 * (sum(array.nbytes for array in weights()) + (1 << 14))
    keys = [{"number": number} for number in range(4)]
    keep(tmp_path, weights(9), {"number": 9}, most)
    os.utime(only(tmp_path), (0, 0))
    for _ in range(2):  # a start, and the next one
        for number, key in enumerate(keys):
            if found(tmp_path, key) is None:
                keep(tmp_path, weights(number), key, most)
        assert [found(tmp_path, key) is not None for key in keys] == [True, True, False, False]
    assert found(tmp_path, {"number": 9}) is None
    assert "exceed packed_bytes" in caplog.text


SEVERAL = """
import sys
from pathlib import Path
import numpy as np
from voice_clone.native import packed_file
packed_file.WORTH = 1
for _ in range(40):
    packed = packed_file.PackedFile(Path(sys.argv[1]), {"k": 1}, 1 << 30)
    [array] = packed.part("all")(lambda: [np.arange(200_000)])
    assert (array == np.arange(200_000)).all()
    packed.found = False
    packed.part("all")(lambda: [np.arange(200_000)])
    packed.keep()
"""


def test_servers_that_start_together_do_not_collide(tmp_path: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", SEVERAL, str(tmp_path)], stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [process.communicate()[1] for process in running] == [b"", b""]
    assert [process.returncode for process in running] == [0, 0]
    assert only(tmp_path).suffix == ENDING


def resident(path: Path) -> int:
    """Bytes of a file that this process has mapped in."""
    areas = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    sizes = [re.search(r"(?m)^Rss: +(\d+) kB", area) for area in areas if f"{path}\n" in area]
    return sum(1024 * int(size[1]) for size in sizes if size)


def test_pages_of_a_table_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_file, "FEW", 1 << 20)
    table = np.random.default_rng(0).integers(0, 1 << 16, (1024, 1024), np.uint16)
    keep(tmp_path, [table, table[:3]], most=1 << 24)
    [mapped, beside] = found(tmp_path) or []
    pages, path = MappedPages(mapped, beside), only(tmp_path)
    for _ in range(2):
        np.testing.assert_array_equal(mapped, table)
        np.testing.assert_array_equal(beside, table[:3])
        before = resident(path)
        pages.give_back(0, 1)
        assert before - resident(path) >= table.nbytes
    small, made = MappedPages(beside), MappedPages(table)
    for each in (small, made):  # a little is worth no call, and what is in no file would be lost
        before = resident(path)
        each.give_back()
        assert resident(path) == before
    np.testing.assert_array_equal(mapped, table)
