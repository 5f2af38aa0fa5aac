"""Voices that come with a server: a folder of bundles, as `export` answers them, registered when the server starts.

The folder is only read, so that it may be part of an image or a volume mounted read-only. A name that is taken stays
with the voice that has it.
"""

from __future__ import annotations

import logging
from pathlib import Path

from voice_clone.errors import InvalidArgument, VoiceCloneError
from voice_clone.speakers.exchange.transfer import Transfer

log = logging.getLogger(__name__)


def preload(folder: Path, transfer: Transfer, most: int) -> None:
    """Register the voices of the bundles in a folder under names that are free; they are the operator's, and shared.

    A file that is no bundle of at most `most` bytes is told in the log and left out. Hidden files are not read.

    Raises:
        InvalidArgument: there is no such folder.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError:
        raise InvalidArgument("the setting preloaded_voices names no folder that can be read") from None
    registered = 0
    for path in paths:
        try:
            if path.stat().st_size > most:
                raise InvalidArgument(f"it is larger than {most} bytes")
            registered += len(transfer.preload(path.read_bytes()))
        except (VoiceCloneError, OSError) as error:
            log.error("the voices in %r are not loaded: %s", path.name, error)
    log.info("registered %d voices that come with this server", registered)
