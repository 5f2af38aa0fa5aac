"""Speech in cloned voices from a Triton Inference Server.

    from voice_clone_client import Client

    with Client("localhost:8001") as client:
        client.upload("ada", "ada.wav", reference_text="What she says in the clip.", wait=True)
        with client.speak("Any other sentence.", voice="ada") as speech:
            for chunk in speech:  # the first chunk arrives long before the last
                play(chunk.samples, chunk.sample_rate)

`speak_long` is the same for a text of any length.

`AsyncClient` is the same for asyncio. Every failure is a `VoiceCloneError`; `voice_clone_client.errors` shows the tree.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__

if TYPE_CHECKING:
    from ._public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """A public name: all are imported with the first one, which takes a second, so that a program of this package can
    take care of signals before."""
    if name == "__all__" or not name.startswith("_"):
        public = importlib.import_module("._public", __name__)
        if hasattr(public, name):
            return getattr(public, name)
        if name in globals():  # a module
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__getattr__("__all__")]
