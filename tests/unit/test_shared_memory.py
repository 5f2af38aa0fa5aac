"""Answers for which there is no room in shared memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from voice_clone import shared_memory
from voice_clone.errors import Overloaded
from voice_clone.shared_memory import REGION, SharedMemory


class Machine:
    """Has so many bytes of shared memory left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 64 << 20
        monkeypatch.setattr(shared_memory.os, "statvfs", self._statvfs)

    def _statvfs(self, folder: Path) -> SimpleNamespace:
        if self.free < 0:
            raise FileNotFoundError
        return SimpleNamespace(f_bavail=self.free // 4096, f_frsize=4096)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_what_does_not_fit_is_refused_with_what_would_help(machine: Machine) -> None:
    memory = SharedMemory()
    memory.check(60 << 20)
    with pytest.raises(Overloaded, match=r"84 MB.*67 MB left.*--shm-size"):
        memory.check(80 << 20)


def test_what_a_region_has_room_for_is_never_refused(machine: Machine) -> None:
    memory = SharedMemory()
    memory.check(40 << 20)
    machine.free = 0  # the region has grown
    memory.check(40 << 20)
    memory.check(100)
    with pytest.raises(Overloaded):
        memory.check(41 << 20)
    SharedMemory().check(REGION // 2)


def test_a_machine_that_does_not_tell(machine: Machine) -> None:
    machine.free = -1
    SharedMemory().check(1 << 40)
