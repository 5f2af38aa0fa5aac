"""One digest for all that makes a server's sound: callers who keep speech learn by it when the same request would sound
otherwise.

The talker and the decoder of a family each have a digest: of the files of the checkpoint, the device, the precision,
the settings that may change a sample, and the code. `speech.synthesizer_digest` joins both. Two servers that have the
same one make the same speech of the same request, as far as the setting `deterministic` goes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from pathlib import Path

import xxhash

from voice_clone import compute
from voice_clone.checkpoint_folder import files_below
from voice_clone.native.cache_folder import PACKAGE, compiler, digest_of, processor_digest
from voice_clone.settings import DecoderSettings, TalkerSettings

log = logging.getLogger(__name__)

_READ = 1 << 20  # bytes
_SILENT = frozenset(
    (
        *("checkpoint_dir", "voice_dir", "voice_store", "voice_store_tls", "voice_store_reader", "packed_bytes"),
        *("max_queue", "text_idle_seconds", "prefix_bytes", "warm_up_seconds", "restore_seconds"),
        *("lost_model_seconds", "standstill_seconds", "max_waiting_chunks", "max_state_bytes", "page_bytes"),
        *("stream_idle_seconds", "primed_bytes", "primed_seconds", "rest_minutes"),
    )
)
"""Settings that change no sample: paths, limits of memory and time. Any other one counts, also a new one."""


class PartDigest:
    """The digest of a talker or a decoder.

    To read a checkpoint takes a second for each gigabyte or two, so nobody waits for it: a thread reads it when it is
    first asked for.
    """

    def __init__(self, settings: TalkerSettings | DecoderSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._value: str | None = None

    def get(self) -> str | None:
        """The digest; None while it is not known yet, or if the checkpoint cannot be read any more."""
        with self._lock:
            if self._value is None and self._thread is None:
                self._thread = threading.Thread(target=self._compute, name="synthesizer digest", daemon=True)
                self._thread.start()
            return self._value

    def _compute(self) -> None:
        try:
            found: str | None = part_digest(self._settings)
        except Exception:
            log.exception("the digest of the checkpoint cannot be computed")
            found = None
        with self._lock:
            self._value, self._thread = found, None


def part_digest(settings: TalkerSettings | DecoderSettings) -> str:
    """The digest of a talker or a decoder; it reads the checkpoint.

    Raises:
        OSError: a file cannot be read.
    """
    decodes = isinstance(settings, DecoderSettings)
    on_cpu = compute.device(settings) == "cpu"
    sound = {name: value for name, value in vars(settings).items() if name not in _SILENT}
    sound["precision"] = compute.decoder_precision(settings) if decodes else compute.precision(settings)  # type: ignore[arg-type]
    sound["device"] = compute.device(settings) if on_cpu else _gpu()
    described = {
        "stage": type(settings).__name__,
        "settings": sound,
        "files": files_digest(settings.checkpoint_dir),
        "sources": digest_of(PACKAGE),
        "packages": compiler(),
        "processor": processor_digest() if on_cpu else None,
    }
    text = json.dumps(described, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _gpu() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(), torch.__version__, str(torch.version.cuda)]


def files_digest(folder: Path) -> str:
    """A digest of the names and contents of all files that `files_below` finds.

    Raises:
        OSError: a file cannot be read.
    """
    digest, buffer = hashlib.sha256(), bytearray(_READ)
    for path in files_below(folder):
        content = xxhash.xxh3_128()
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                content.update(memoryview(buffer)[:count])
        digest.update(f"{path.relative_to(folder)}\0{content.hexdigest()}\n".encode())
    return digest.hexdigest()
