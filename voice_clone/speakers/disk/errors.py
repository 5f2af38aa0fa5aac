"""What a caller is told when the disk fails."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator

from voice_clone.errors import Internal, Overloaded, VoiceCloneError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FOR_NOW = {errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # of the machine, which may get over it

log = logging.getLogger(__name__)


@contextlib.contextmanager
def disk_errors(done: str) -> Iterator[None]:
    """Turn errors of the operating system into errors for the caller, without paths."""
    try:
        yield
    except VoiceCloneError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "input/output error"
        if error.errno in _FULL:
            log.error("the voice store is full: %s", reason)
            raise Overloaded(f"the voice store is full ({reason}); free space, then try again") from None
        if error.errno in _FOR_NOW:
            log.error("the voice store could not be %s: %s", done, reason)
            raise Overloaded(
                f"the voice store could not be {done} ({reason}); nothing was changed, try again later"
            ) from None
        log.error("the voice store could not be %s", done, exc_info=error)
        raise Internal(f"the voice store could not be {done} ({reason}); nothing was changed") from None
