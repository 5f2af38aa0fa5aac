"""What a talker and a code2wav keep of voices, and how they are told to forget one.

in    forget  STRING [1]  instead of all else: JSON, a list of voices as speaker_cache calls them; it may be empty
out   info    STRING [1]  JSON {"entries", "bytes", "voices": those that are left}

speaker_cache asks so before it answers a delete (`forgetting`). A model that loads cannot be asked, and has read the
voices on disk already: so it looks at the disk once more when it serves.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from voice_clone.errors import InvalidArgument
from voice_clone.lru_cache import CacheUsage

if TYPE_CHECKING:
    from voice_clone.triton.request import Request
    from voice_clone.triton.responder import Responder

LOOK_AGAIN = 1.0  # seconds after the load: by then Triton sends requests to this process

log = logging.getLogger(__name__)


class KeptVoices:
    """What one model keeps of voices.

    Args:
        forget: drops what was computed of voices, and answers what is left; thread-safe.
        living: the origins of all voices that there are (`SpeakerRecord.origin`).
    """

    def __init__(self, forget: Callable[[Collection[str]], CacheUsage], living: Callable[[], Collection[str]]) -> None:
        self._forget = forget
        self._living = living
        self._timer = threading.Timer(LOOK_AGAIN, self._look_again)
        self._timer.daemon = True
        self._timer.start()

    def answer(self, request: Request, responder: Responder) -> bool:
        """Answer a request that is to forget voices; whether it is one.

        Raises:
            InvalidArgument: it does not list voices.
        """
        text = request.text("forget")
        if text is None:
            return False
        try:
            voices = json.loads(text)
        except (ValueError, RecursionError):
            voices = None
        if not isinstance(voices, list) or not all(isinstance(voice, str) for voice in voices):
            raise InvalidArgument("forget must be a list of texts in JSON")
        kept = self._forget(voices)
        told = {"entries": kept.entries, "bytes": kept.nbytes, "voices": sorted(kept.voices)}
        responder.send({"info": json.dumps(told)}, final=True)
        return True

    def close(self) -> None:
        """Stop looking."""
        self._timer.cancel()
        self._timer.join()

    def _look_again(self) -> None:
        gone = {voice for voice in self._forget(()).voices if voice.isdigit()}
        if not gone:
            return
        try:
            gone.difference_update(self._living())
        except Exception:
            log.exception("the voices that there are could not be asked for: all that were restored are dropped")
        self._forget(gone)
