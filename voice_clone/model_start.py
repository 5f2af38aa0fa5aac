"""Shortens the start of a model's process, most of which is the import of torch, and keeps its memory small."""

from __future__ import annotations

import ctypes
import gc
import sys
from types import ModuleType

from voice_clone.gpu import has_driver

UNUSED = "torch._meta_registrations"


def prepare_imports() -> None:
    """Make the imports of a model's process cheaper; called before anything imports torch.

    torch registers some hundred operations for its meta device in Python, which is a third of `import torch`. Compilers
    need them (torch.compile, torch.export), and a server uses none. Networks without weights are made on the meta
    device by operations in C++, which stay. An operation that was left out raises an error when it is called.
    `torch.Generator` needs an import before it, as in voice_clone/marking/mark_filter.py. Where there is a GPU nothing
    is left out, because that was not tried.

    No garbage is collected until the model has loaded: imports leave hardly any, and each collection looks at all
    modules.
    """
    if not has_driver():
        sys.modules.setdefault(UNUSED, ModuleType(UNUSED))
    gc.disable()


def imported() -> None:
    """Never look for garbage in what has been imported: it stays. Called before the model loads."""
    gc.freeze()


def loaded() -> None:
    """Collect garbage as usual from now on, but never look again at what has been loaded: it stays."""
    gc.collect()
    gc.freeze()
    gc.enable()


def trim() -> None:
    """Give freed memory back to the system. Only glibc needs and has this.

    glibc keeps freed memory for later allocations. Loading weights and encoding a clip free much that serving does not
    need again soon.
    """
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    malloc_trim(0)
