"""Sentences of a book that were made: 16-bit FLAC in a folder, each under the hash of all that makes its sound.

A file is whole and on the disk when it has its name, so a run that was killed leaves nothing to repair. One that the
disk has damaged is found when it is read, and is made again.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from voice_clone_client.errors import InvalidArgument
from voice_clone_program.whole_file import whole_file
from voice_clone_provenance.statements import open_tagged

from ..audio_file import CODECS, EncodedAudio
from ..folder_lock import lock_folder

_FULL_SCALE = np.float32(32767.0)  # what `pcm16` makes of 1.0
_WHOLE, _PARTIAL, _LOCK = ".flac", ".partial.flac", "lock"
_NAME = re.compile(r"([0-9a-f]{64})(?:\.partial)?\.flac")
_UNENDED = re.compile(r"\.[0-9a-f]{64}(?:\.partial)?\.flac\.[0-9a-f]{8}\.part\.flac")  # see `WholeFile`


class Damaged(Exception):
    """A file is no longer what was written; it is removed."""


class KeptSound(NamedTuple):
    """The sound of a sentence."""

    samples: NDArray[np.float32]
    """[n] in [-1, 1]."""
    rate: int
    """Hz."""
    comment: str
    """What its tag says; see `Statement`."""


class KeptSentences:
    """The sentences of one book, for one process at a time.

    Args:
        folder: for them alone; it is made.
        partial: whether a sentence whose end the model missed counts as made.

    Raises:
        InvalidArgument: the folder has other files.
        Overloaded: another process has the folder.
    """

    def __init__(self, folder: Path, partial: bool) -> None:
        self._folder, self._partial = folder, partial
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / _LOCK).exists() and any(folder.iterdir()):
            raise InvalidArgument(f"{folder} has files that are of no book; give an empty folder as --parts")
        self._lock = lock_folder(folder / _LOCK, "--parts")

    def close(self) -> None:
        self._lock.close()

    def find(self, address: str) -> Path | None:
        """Where a sentence is; None if it is to be made."""
        suffixes = (_WHOLE, _PARTIAL) if self._partial else (_WHOLE,)
        return next((path for each in suffixes if (path := self._path(address, each)).exists()), None)

    def keep(self, address: str, sound: KeptSound, whole: bool) -> None:
        """Keep a sentence; `whole` says whether the model said all of it."""
        path, file = self._path(address, _WHOLE if whole else _PARTIAL), io.BytesIO()
        audio = EncodedAudio(open_tagged(file, "flac", sound.comment), CODECS[".flac"], sound.rate)
        audio.write(sound.samples)
        audio.end()
        path.parent.mkdir(exist_ok=True)
        with whole_file(path) as out:
            out.write(file.getvalue())

    def read(self, address: str) -> KeptSound:
        """The sound of a sentence, with the samples that 16 bits hold.

        Raises:
            Damaged: it is not there, or no longer what was written.
        """
        import av

        path = self.find(address)
        if path is None:
            raise Damaged
        try:
            with av.open(str(path), format="flac") as file:
                stream = file.streams.audio[0]
                stream.codec_context.options = {"err_detect": "crccheck+explode"}
                frames = [frame.to_ndarray()[0] for frame in file.decode(stream)]
                samples = np.concatenate([*frames, np.zeros(0, np.int16)])
                if len(samples) != stream.duration:
                    raise ValueError
                return KeptSound(samples.astype(np.float32) / _FULL_SCALE, stream.rate, file.metadata["comment"])
        except (av.FFmpegError, ValueError, LookupError):
            path.unlink(missing_ok=True)
            raise Damaged from None

    def drop_others(self, addresses: Collection[str]) -> int:
        """Remove all sentences but these, and what killed runs left; returns how many. Other files stay."""

        def is_other(name: str) -> bool:
            found = _NAME.fullmatch(name)
            return _UNENDED.fullmatch(name) is not None if found is None else found[1] not in addresses

        paths = self._folder.glob("[0-9a-f][0-9a-f]/*")
        others = [path for path in paths if is_other(path.name) and path.is_file()]
        for path in others:
            path.unlink(missing_ok=True)
        return len(others)

    def write_plan(self, plan: Any) -> None:
        """Write what the book is made of, as JSON."""
        with whole_file(self._folder / "plan.json") as file:
            file.write(json.dumps(plan, ensure_ascii=False, indent=1).encode(errors="surrogatepass"))

    def read_plan(self) -> dict[str, Any]:
        """What was written last; nothing if that cannot be read."""
        try:
            plan = json.loads((self._folder / "plan.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            plan = None
        return plan if isinstance(plan, dict) else {}

    def _path(self, address: str, suffix: str) -> Path:
        return self._folder / address[:2] / f"{address}{suffix}"
