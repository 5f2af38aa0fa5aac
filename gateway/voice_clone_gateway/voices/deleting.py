"""The end of a voice."""

from __future__ import annotations

from starlette.requests import HTTPConnection
from voice_clone_client import Voice

from ..http.audit import recorded
from ..services import services_of


async def delete_voice(request: HTTPConnection, name: str) -> Voice:
    """Delete a voice for a request that was admitted, with all speech in it that jobs keep. Returns the voice.

    Raises:
        VoiceCloneError: there is none, or the server refuses.
    """
    with recorded(request, "delete", name):
        voice: Voice = await request.state.client.get(name)
        await request.state.client.delete(name)
        if (jobs := services_of(request).jobs) is not None:
            await jobs.forget_voice(voice.digest)
    return voice
