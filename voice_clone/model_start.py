"""What makes a model's process ready sooner. Importing torch costs such a process more than the rest of its start."""

from __future__ import annotations

import gc
import sys
from types import ModuleType

UNUSED = "torch._meta_registrations"


def prepare_imports() -> None:
    """Make the imports of a model's process cheaper; called before anything imports torch.

    torch registers some hundred operations for its meta device in Python, which is a third of `import torch`. Compilers
    need them (torch.compile, torch.export), and a server uses none. Networks without weights are made on the meta
    device by operations in C++, which stay. An operation that is missing raises NotImplementedError.

    No garbage is collected until the model has loaded: imports leave none, and each collection looks at all modules.
    """
    sys.modules.setdefault(UNUSED, ModuleType(UNUSED))
    gc.disable()


def loaded() -> None:
    """Collect garbage as usual from now on, but never look again at what has been loaded: it stays."""
    gc.collect()
    gc.freeze()
    gc.enable()
