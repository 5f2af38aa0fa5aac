"""Answers for which there is no room in shared memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from voice_clone.errors import Overloaded
from voice_clone.triton import shared_memory
from voice_clone.triton.shared_memory import REGION, SharedMemory, make_private

MB = 1 << 20


class Machine:
    """Has so many bytes of shared memory left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 64 * MB
        self.asked = 0
        monkeypatch.setattr(shared_memory.os, "statvfs", self._statvfs)

    def _statvfs(self, folder: Path) -> SimpleNamespace:
        self.asked += 1
        if self.free < 0:
            raise FileNotFoundError
        return SimpleNamespace(f_bavail=self.free // 4096, f_frsize=4096)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def send(memory: SharedMemory, size: int) -> None:
    with memory.room(size):
        pass


def test_an_answer_that_does_not_fit_is_refused_with_a_remedy(machine: Machine) -> None:
    memory = SharedMemory()
    send(memory, 60 * MB)
    machine.free = 4 * MB
    with pytest.raises(Overloaded, match=r"84 MB.*4 MB left.*--shm-size"):
        send(memory, 80 * MB)


def test_an_answer_that_fits_the_region_is_never_refused(machine: Machine) -> None:
    memory = SharedMemory()
    send(memory, 40 * MB)
    machine.free = 0  # the region has grown
    send(memory, 40 * MB)
    send(memory, 100)
    with pytest.raises(Overloaded):
        send(memory, 41 * MB)
    send(SharedMemory(), REGION // 2)


def test_answers_at_once_need_room_together(machine: Machine) -> None:
    memory = SharedMemory()
    send(memory, 40 * MB)
    machine.free = 24 * MB
    with memory.room(40 * MB):
        with pytest.raises(Overloaded):
            send(memory, 40 * MB)
        send(memory, 20 * MB)
    send(memory, 40 * MB)


def test_an_answer_that_was_not_sent_proves_no_room(machine: Machine) -> None:
    memory = SharedMemory()
    with pytest.raises(RuntimeError), memory.room(40 * MB):
        raise RuntimeError("failed to increase the shared memory pool")
    machine.free = 8 * MB
    with pytest.raises(Overloaded):
        send(memory, 40 * MB)


def test_a_machine_that_does_not_say(machine: Machine) -> None:
    machine.free = -1
    send(SharedMemory(), 1 << 40)
    assert machine.asked == 1


@pytest.mark.parametrize(
    ("program", "region", "mode"),
    [
        (b"/backends/python/triton_python_backend_stub", b"region", 0o600),
        (b"/usr/bin/python3", b"region", 0o644),
        (b"triton_python_backend_stub", b"../region", 0o644),
        (b"triton_python_backend_stub", b"", 0o644),
    ],
)
def test_a_model_makes_its_own_region_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: bytes, region: bytes, mode: int
) -> None:
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(shared_memory, "FOLDER", folder)
    for file in (folder / "region", tmp_path / "region"):
        file.touch(0o644)
    (tmp_path / "cmdline").write_bytes(b"\0".join([program, b"model.py", region, b"1048576", b""]))
    make_private(tmp_path / "cmdline")
    assert (folder / "region").stat().st_mode & 0o777 == mode
    assert (tmp_path / "region").stat().st_mode & 0o777 == 0o644 and folder.stat().st_mode & 0o700 == 0o700
