"""The end of a voice."""

from __future__ import annotations

import logging
from contextlib import suppress

from starlette.requests import HTTPConnection
from voice_clone_client import Voice, VoiceCloneError

from ..http.audit import recorded
from ..services import services_of

log = logging.getLogger(__name__)


async def delete_voice(request: HTTPConnection, name: str, style: str | None = None) -> Voice | None:
    """Delete a voice, or a style of it, for a request that was admitted, with all speech in it that jobs keep.

    Returns:
        the voice; None if it could not be read.

    Raises:
        VoiceCloneError: there is none, or the server refuses.
    """
    with recorded(request, "delete", name) as entry:
        entry |= {} if style is None else {"style": style}
        voice: Voice | None = None
        with suppress(VoiceCloneError):  # a damaged record can be deleted, too
            voice = await request.state.client.get(name)
        await request.state.client.delete(name, style=style)
    if voice is not None and (jobs := services_of(request).jobs) is not None:
        try:
            gone = [voice, *voice.styles.values()] if style is None else filter(None, [voice.clip(style)])
            for each in gone:
                await jobs.forget_voice(each.digest)
        except Exception:  # the voice is deleted; jobs look for the speech of such voices every minute
            log.exception("the speech in a voice that was deleted could not be erased yet")
    return voice
