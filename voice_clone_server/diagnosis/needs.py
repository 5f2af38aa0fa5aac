"""What a server and its tools need of a machine besides Python's packages, and whether it is there."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from voice_clone.native.cache_folder import writable_folder
from voice_clone.settings import VoiceSettings
from voice_clone_server.triton_binary import ServerFailed, server_command

SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED = 256 << 20  # bytes; each model takes 1 MB at once and more with its tensors


@dataclass(frozen=True)
class Need:
    """`needed`: a server does not start without it. `detail`: what was found, or what to do."""

    name: str
    there: bool
    needed: bool
    detail: str


def needs(settings: VoiceSettings) -> list[Need]:
    """All of them, the needed ones first."""
    return [server(), _shared_memory(), _voices(settings), _cache(), _clips()]


def server() -> Need:
    with tempfile.TemporaryDirectory() as scratch:
        try:
            command, _ = server_command(Path(scratch))
        except (ServerFailed, OSError) as error:
            return Need("tritonserver", False, True, str(error))
        binary = Path(command[0])
        from_wheel = binary.is_relative_to(scratch)
        detail = f"from the wheel nvidia-pytriton ({binary.name})" if from_wheel else str(binary)
        return Need("tritonserver", True, True, detail)


def _shared_memory() -> Need:
    try:
        free = shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        return Need("shared memory", False, True, f"{SHARED_MEMORY} is missing; models exchange tensors through it")
    there = free >= LEAST_SHARED and os.access(SHARED_MEMORY, os.W_OK)
    more = "" if there else "; a container needs --shm-size=2g"
    return Need("shared memory", there, True, f"{free / 1e9:.1f} GB free in {SHARED_MEMORY}{more}")


def _voices(settings: VoiceSettings) -> Need:
    if settings.voice_store:
        return Need("voice folder", True, True, "voices are in a database")
    folder = settings.voice_dir
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    there = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    if not there:
        return Need("voice folder", False, True, f"{folder} cannot be written; set VOICE_CLONE_VOICE_DIR")
    return Need("voice folder", True, True, f"{folder}, {shutil.disk_usage(existing).free / 1e9:.0f} GB free")


def _cache() -> Need:
    folder = writable_folder("packed")
    if folder is None:
        return Need(
            "cache", False, False, "no folder can be written: each start compiles and packs; set NUMBA_CACHE_DIR"
        )
    return Need("cache", True, False, f"{folder}, {shutil.disk_usage(folder).free / 1e9:.0f} GB free")


def _clips() -> Need:
    """What turns other formats than WAV, FLAC, OGG and MP3 into WAV."""
    there = importlib.util.find_spec("av") is not None
    detail = (
        "PyAV reads M4A, WebM and others" if there else "PyAV is missing: clips in M4A, WebM and others are refused"
    )
    return Need("formats of clips", there, False, detail)
