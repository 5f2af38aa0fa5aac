"""Speech that is kept, sentence by sentence, each under an address made of all that shapes its sound.

A sentence is FLAC with 16 bits, beside its row in the tables, which is written with it or after it. One with another
content than the row says is as if it were not there. Memory is bounded by bytes and by the time since the last use;
what a job needs that has not ended is never dropped.

For the thread of the database.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray
from voice_clone_client.wav import pcm16

from .database import Database
from .tables import NEEDS, Job, Lost

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
        database: of the jobs.
        most_bytes: of all sentences.
        most_seconds: since the last use of one.
    """

    def __init__(self, database: Database, most_bytes: float, most_seconds: float) -> None:
        self._database = database
        self._most_bytes, self._most_seconds = most_bytes, most_seconds

    @property
    def size(self) -> int:
        """Bytes of all sentences."""
        return int(self._database.run("SELECT coalesce(sum(size), 0) FROM sentence").fetchone()[0])

    def known(self, addresses: Iterable[str]) -> dict[str, KeptSentence]:
        """Those of the addresses under which something is kept, which are used now."""
        asked, found, db = list(addresses), dict[str, KeptSentence](), self._database
        with db.transaction():
            now = db.now()
            for begin in range(0, len(asked), _AT_ONCE):
                part = asked[begin : begin + _AT_ONCE]
                among = f"address IN ({', '.join('?' * len(part))})"
                rows = db.run(f"SELECT address, info, seconds FROM sentence WHERE {among}", part).fetchall()
                found |= {address: KeptSentence(json.loads(info), seconds) for address, info, seconds in rows}
                db.run(f"UPDATE sentence SET used_at = ? WHERE {among}", (now, *part))
        return found

    def put(
        self, job: Job, address: str, info: Mapping[str, Any], samples: NDArray[np.float32], rate: int
    ) -> KeptSentence:
        """Keep a sentence that was made for a job; it may be done again.

        Args:
            info: of the server.
            samples: [n] in [-1, 1].
            rate: Hz.

        Raises:
            Lost: this gateway does not make the job any more.
        """
        data, db = _flac(samples, rate), self._database
        kept = KeptSentence({name: info[name] for name in _KNOWN if name in info}, len(samples) / rate)
        digest, text = hashlib.sha256(data).hexdigest(), json.dumps(kept.info)
        voice = str(info.get("voice_digest") or "")
        with db.transaction():
            row = address, job.owner, voice, text, kept.seconds, len(data), digest, db.now()
            new = db.run("INSERT INTO sentence VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (address) DO NOTHING", row)
            made = "UPDATE job SET made = made + ? WHERE id = ? AND attempt = ? AND status IN ('queued', 'in_progress')"
            if not db.run(made, (new.rowcount, job.id, job.attempt)).rowcount:
                raise Lost
            if new.rowcount:
                db.write_sentence(address, data)
        return kept

    def read(self, address: str) -> tuple[NDArray[np.float32], int]:
        """The samples [n] of a sentence, those that 16 bits hold, and their rate in Hz.

        Raises:
            Missing: there is none; a damaged one is dropped.
        """
        found = self._database.run("SELECT digest FROM sentence WHERE address = ?", (address,)).fetchone()
        if found is None:
            raise Missing
        data = self._database.read_sentence(address)
        if hashlib.sha256(data).hexdigest() != found[0]:
            self._drop([address])
            raise Missing
        samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
        return samples.astype(np.float32) / np.float32(FULL_SCALE), rate

    def forget_voice(self, voice: str) -> None:
        """Drop all speech in a voice, by its digest."""
        rows = self._database.run("SELECT address FROM sentence WHERE voice = ?", (voice,)).fetchall()
        self._drop([address for (address,) in rows])

    def evict(self) -> bool:
        """Drop some of what was not used for long, and of the least recently used beyond the limit of bytes.

        Returns: whether there is more.
        """
        db, dropped = self._database, list[str]()
        with db.transaction(NEEDS):
            size, limit = self.size, db.now() - self._most_seconds
            oldest = db.run(
                "SELECT address, size, used_at FROM sentence WHERE NOT EXISTS "
                "(SELECT 1 FROM need WHERE need.address = sentence.address) ORDER BY used_at LIMIT ?",
                (_AT_ONCE,),
            ).fetchall()
            for address, own, used_at in oldest:
                if size <= self._most_bytes and used_at >= limit:
                    break
                dropped.append(address)
                size -= own
            db.run_all("DELETE FROM sentence WHERE address = ?", [(each,) for each in dropped])
        db.remove_sentences(dropped)
        return len(dropped) == _AT_ONCE

    def _drop(self, addresses: Sequence[str]) -> None:
        with self._database.transaction():
            self._database.run_all("DELETE FROM sentence WHERE address = ?", [(each,) for each in addresses])
        self._database.remove_sentences(addresses)


def _flac(samples: NDArray[np.float32], rate: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.frombuffer(pcm16(samples), "<i2"), rate, format="FLAC", subtype="PCM_16")
    return file.getvalue()
