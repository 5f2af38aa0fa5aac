"""Memory that nothing uses any more goes back to the system."""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Give back what was freed; where the C library is not glibc, it decides by itself.

    glibc keeps freed memory for what may come. Loading weights and encoding a clip free a lot that serving does not
    need again, or not soon.
    """
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    malloc_trim(0)
