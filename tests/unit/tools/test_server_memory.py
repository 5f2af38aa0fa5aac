"""What servers have in shared memory: which of it is of dead ones, and who may read it."""

from __future__ import annotations

import mmap
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from voice_clone_server import server_memory
from voice_clone_server.server_memory import ServerMemory, remove_dead, start_privately


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of /dev/shm."""
    found = tmp_path / "shm"
    found.mkdir()
    monkeypatch.setattr(server_memory, "FOLDER", found)
    return found


def server(tmp_path: Path, name: str) -> tuple[ServerMemory, list[Path]]:
    """A server's memory, locked, and all that it has."""
    scratch = tmp_path / f"{server_memory.SCRATCH}{name}"
    scratch.mkdir()
    memory = ServerMemory(scratch)
    region = server_memory.FOLDER / f"{memory.prefix}1234-5678"
    region.touch()
    memory.lock()
    return memory, [scratch, region, server_memory.FOLDER / f"{memory.prefix[:-1]}.lock"]


def die(memory: ServerMemory) -> None:
    os.close(memory.lock())


def test_a_dead_server_leaves_nothing_to_the_next_start_and_a_live_one_keeps_all(folder: Path, tmp_path: Path) -> None:
    (dead, gone), (live, kept) = server(tmp_path, "dead"), server(tmp_path, "live")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[dead.lock()])
    die(dead)
    with child:
        remove_dead()
        assert all(path.exists() for path in (*gone, *kept)), "a process of the server lives"
        child.kill()
    remove_dead()
    assert not any(path.exists() for path in gone) and all(path.exists() for path in kept)
    live.release()
    assert [path.exists() for path in kept] == [True, True, False]


def test_nothing_else_is_removed_in_the_name_of_a_dead_server(folder: Path, tmp_path: Path) -> None:
    """Whatever somebody else wrote into such files, or made of them."""
    memory, [scratch, region, _] = server(tmp_path, "dead")
    region.unlink()
    region.symlink_to(tmp_path / "mine")
    (tmp_path / "mine").touch()
    (tmp_path / "voices").mkdir()
    os.ftruncate(memory.lock(), 0)
    os.pwrite(memory.lock(), os.fsencode(tmp_path / "voices"), 0)
    (folder / "voice_clone_a.lock").symlink_to(tmp_path / "mine")
    os.mkfifo(folder / "voice_clone_b.lock")
    (folder / "another_a.lock").touch()
    die(memory)
    remove_dead()
    assert scratch.exists() and (tmp_path / "voices").exists() and (tmp_path / "mine").exists()
    left = {path.name for path in folder.iterdir()}
    assert left == {"voice_clone_a.lock", "voice_clone_b.lock", "another_a.lock", region.name}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_are_left_alone(folder: Path, tmp_path: Path) -> None:
    memory, paths = server(tmp_path, "dead")
    die(memory)
    os.chown(paths[2], 65534, 65534)
    remove_dead()
    assert all(path.exists() for path in paths)


def test_regions_without_a_lock_go_when_they_are_old_and_of_no_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of servers that knew no locks."""
    left, used = folder / "voice_clone_17_8000_1234-5678", folder / "voice_clone_18_8000_1234-5678"
    for region in (left, used):
        region.write_bytes(bytes(mmap.PAGESIZE))
    remove_dead()
    assert left.exists() and used.exists(), "they are new"
    monkeypatch.setattr(server_memory, "OLD", -1.0)
    with used.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        remove_dead()
        assert not left.exists() and used.exists()
    remove_dead()
    assert not used.exists()


# Makes a file as Boost makes a region, and does what else a server may do.
BOOST = """
import os, sys
folder = sys.argv[1]
for name, mode in (("region", 0o644), ("other", 0o640)):
    file = os.open(f"{folder}/{name}", os.O_CREAT | os.O_RDWR, 0o644)
    os.fchmod(file, mode)
os.chmod(f"{folder}", 0o711)
"""


def test_no_file_of_a_server_becomes_readable_to_all(tmp_path: Path) -> None:
    done: list[subprocess.CompletedProcess[bytes]] = []
    start_privately(
        lambda: done.append(subprocess.run([sys.executable, "-c", BOOST, str(tmp_path)], umask=0o077, check=True))
    )
    assert done
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("region", "other", "")}
    assert modes == {"region": 0o600, "other": 0o640, "": 0o711}
    with (tmp_path / "ours").open("w") as file:
        os.fchmod(file.fileno(), 0o644)
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == 0o644, "this process goes on as before"


def test_a_kernel_that_cannot_filter_calls_starts_the_server_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("voice_clone_program.confinement._CALLS", {})
    started: list[bool] = []
    start_privately(lambda: started.append(True))
    assert started and "not filtered" in capsys.readouterr().err
