"""The official `qwen_tts` package, importable, for comparison.

It imports torchaudio for its 25 Hz tokenizer, which nothing here uses: an empty module stands in for it. The
package warns on import and when its models are built; those warnings do not concern our tests.

    from tests.support.official import quiet, qwen_tts
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@contextmanager
def quiet() -> Iterator[None]:
    """Run official code without its warnings becoming errors of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def qwen_tts() -> Any:
    """The package. Imported when first asked for: it takes seconds, which only one process of a run shall spend."""
    with quiet():
        # First, so that transformers looks for torchaudio while it is still truly absent.
        import transformers

        transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        for name in ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
            module = types.ModuleType(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None)
            sys.modules.setdefault(name, module)
        import qwen_tts as package  # type: ignore[import-untyped]
    return package
