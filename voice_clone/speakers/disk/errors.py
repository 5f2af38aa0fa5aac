"""What a caller is told when the disk fails."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator

from voice_clone.errors import Internal, Overloaded, VoiceCloneError

log = logging.getLogger(__name__)


@contextlib.contextmanager
def disk_errors(done: str) -> Iterator[None]:
    """Turn errors of the operating system into errors for the caller, without paths."""
    try:
        yield
    except VoiceCloneError:
        raise
    except OSError as error:
        log.error("the voice store could not be %s", done, exc_info=error)
        reason = os.strerror(error.errno) if error.errno else "input/output error"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Overloaded(f"the voice store is full ({reason}); free space, then try again") from None
        raise Internal(f"the voice store could not be {done} ({reason}); nothing was changed") from None
