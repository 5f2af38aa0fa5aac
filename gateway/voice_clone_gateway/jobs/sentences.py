"""Speech that is kept, sentence by sentence, each under an address made of all that shapes its sound.

A sentence is a file of FLAC with 16 bits, beside its row in the tables. The file is on the disk before the row is; a
file without a row, or with another content than the row says, is as if it were not there. Memory is bounded by bytes
and by the time since the last use; what a job needs that has not ended is never dropped.

For one thread, that of the tables.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray
from voice_clone_client.wav import pcm16

FULL_SCALE = 32767.0
"""What `pcm16` makes of 1.0."""
_AT_ONCE = 500  # addresses of a query
_KNOWN = ("mark", "mode", "finish_reason", "frames", "text_tokens", "voice", "generation", "voice_digest")


class Missing(Exception):
    """There is no such sentence, or it is damaged."""


@dataclass(frozen=True)
class KeptSentence:
    """What is known of a sentence without its sound."""

    info: Mapping[str, Any]
    """Of the server on its speech."""
    seconds: float


class SentenceStore:
    """The sentences of all owners.

    Args:
        connection: of the tables.
        folder: for the files alone.
        most_bytes: of all files.
        most_seconds: since the last use of one.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        folder: Path,
        most_bytes: float,
        most_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._connection = connection
        self._folder = folder
        self._most_bytes, self._most_seconds = most_bytes, most_seconds
        self._clock = clock
        folder.mkdir(mode=0o700, exist_ok=True)
        self._remove_strays()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        [size] = self._connection.execute("SELECT coalesce(sum(size), 0) FROM sentence").fetchone()
        return int(size)

    def known(self, addresses: Iterable[str]) -> dict[str, KeptSentence]:
        """Those of the addresses under which something is kept, which are used now."""
        asked, found = list(addresses), dict[str, KeptSentence]()
        with self._connection as db:
            db.execute("BEGIN IMMEDIATE")
            for begin in range(0, len(asked), _AT_ONCE):
                part = asked[begin : begin + _AT_ONCE]
                among = f"address IN ({', '.join('?' * len(part))})"
                rows = db.execute(f"SELECT address, info, seconds FROM sentence WHERE {among}", part)
                found |= {address: KeptSentence(json.loads(info), seconds) for address, info, seconds in rows}
                db.execute(f"UPDATE sentence SET used_at = ? WHERE {among}", (self._clock(), *part))
        return found

    def put(
        self, job: str, owner: str, address: str, info: Mapping[str, Any], samples: NDArray[np.float32], rate: int
    ) -> KeptSentence:
        """Keep a sentence that was made for a job.

        Args:
            info: of the server.
            samples: [n] in [-1, 1].
            rate: Hz.
        """
        data, path = _flac(samples, rate), self._path(address)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_durably(path, data)
        kept = KeptSentence({name: info[name] for name in _KNOWN if name in info}, len(samples) / rate)
        digest, text = hashlib.sha256(data).hexdigest(), json.dumps(kept.info)
        voice = str(info.get("voice_digest") or "")
        with self._connection as db:
            db.execute("BEGIN IMMEDIATE")
            row = address, owner, voice, text, kept.seconds, len(data), digest, self._clock()
            db.execute("INSERT OR REPLACE INTO sentence VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            db.execute("UPDATE job SET made = made + 1 WHERE id = ?", (job,))
        return kept

    def read(self, address: str) -> tuple[NDArray[np.float32], int]:
        """The samples [n] of a sentence, those that 16 bits hold, and their rate in Hz.

        Raises:
            Missing: there is none; a damaged one is dropped.
        """
        found = self._connection.execute("SELECT digest FROM sentence WHERE address = ?", (address,)).fetchone()
        if found is None:
            raise Missing
        try:
            data = self._path(address).read_bytes()
        except OSError:
            data = b""
        if hashlib.sha256(data).hexdigest() != found[0]:
            self._drop([address])
            raise Missing
        samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
        return samples.astype(np.float32) / np.float32(FULL_SCALE), rate

    def forget_voice(self, voice: str) -> None:
        """Drop all speech in a voice, by its digest."""
        self._drop(
            address
            for (address,) in self._connection.execute(
                "SELECT address FROM sentence WHERE voice = ?", (voice,)
            ).fetchall()
        )

    def evict(self) -> None:
        """Drop what was not used for long, and the least recently used beyond the limit of bytes."""
        oldest = self._connection.execute(
            "SELECT address, size, used_at FROM sentence WHERE address NOT IN (SELECT address FROM need) "
            "ORDER BY used_at"
        ).fetchall()
        size, limit, dropped = self.size, self._clock() - self._most_seconds, list[str]()
        for address, own, used_at in oldest:
            if size <= self._most_bytes and used_at >= limit:
                break
            dropped.append(address)
            size -= own
        self._drop(dropped)

    def _drop(self, addresses: Iterable[str]) -> None:
        dropped = list(addresses)
        with self._connection as db:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("DELETE FROM sentence WHERE address = ?", ((each,) for each in dropped))
        for address in dropped:
            self._path(address).unlink(missing_ok=True)

    def _remove_strays(self) -> None:
        """Remove files without a row: those of a gateway that was killed."""
        known = {address for (address,) in self._connection.execute("SELECT address FROM sentence")}
        for path in self._folder.glob("??/*"):
            if path.name not in known:
                path.unlink(missing_ok=True)

    def _path(self, address: str) -> Path:
        return self._folder / address[:2] / address


def write_durably(path: Path, data: bytes) -> None:
    """Write a file that is whole, and on the disk, when it has its name."""
    aside = path.with_name(f"{path.name}.part")
    with open(os.open(aside, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    keep_durably(aside, path)


def keep_durably(aside: Path, path: Path) -> None:
    """Give a file that is on the disk its name, so that the name is, too."""
    os.replace(aside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    with suppress(OSError):  # some file systems cannot
        os.fsync(folder)
    os.close(folder)


def _flac(samples: NDArray[np.float32], rate: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.frombuffer(pcm16(samples), "<i2"), rate, format="FLAC", subtype="PCM_16")
    return file.getvalue()
