"""New voices by the APIs of vendors: any name, several clips, and a consent that their calls have no field for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from typing import Any

from fastapi import Request
from voice_clone_client import Voice, VoiceExists

from ..http.audit import MAX_NAME, recorded
from ..http.connection import while_connected
from ..http.errors import HTTPFailure
from ..services import services_of
from ..voices.deleting import delete_voice
from ..voices.ids import voice_name

_TRIES = 20


def plain_name(text: str) -> str:
    """A name that a voice may have: other characters become hyphens."""
    name = re.sub(r"[^\w .-]", "-", text).lstrip(" .")[:MAX_NAME].rstrip(" ")
    return name or "voice"


def consent_of(request: Request, given: str | None) -> str:
    """The consent to a voice: what the call says, or else what the operator states for all of them.

    Raises:
        HTTPFailure: there is none.
    """
    consent = given or services_of(request).settings.vendors_consent
    if not consent:
        message = (
            "consent: a voice needs its speaker's consent, for which this API has no field; send it as the form field "
            "consent, or let the operator of this gateway state it with --vendors-consent"
        )
        raise HTTPFailure(400, message, "consent_missing", param="consent")
    return str(consent)


async def register(request: Request, name: str, clips: Sequence[bytes], consent: str | None, **more: Any) -> Voice:
    """A new voice. If its name is taken it gets a number behind it, but not for the same clip once more.

    Args:
        name: any text.
        clips: files; several are recordings of one speaker.
        consent: of the call.
        more: further arguments of `AsyncClient.upload`.

    Raises:
        HTTPFailure: there is no consent, or no clip.
        VoiceCloneError: the server refuses the voice.
    """
    said = consent_of(request, consent)
    if not clips:
        raise HTTPFailure(400, "files: a voice needs a clip; send one of 1 to 30 s", "invalid_argument", param="files")
    read = services_of(request).clips.readable
    files = [await while_connected(request.receive, read(clip)) for clip in clips]
    wanted = plain_name(name)
    for number in count(1):
        chosen = wanted if number == 1 else f"{wanted[: MAX_NAME - len(str(number)) - 1]} {number}"
        try:
            with recorded(request, "upload", chosen) as entry:
                async with services_of(request).after_speech.turn():
                    voice: Voice = await request.state.client.upload(chosen, files, consent=said, **more)
                entry["generation"] = voice.generation
            services_of(request).loudness.expect(services_of(request), request.state.client, voice.name)
            return voice
        except VoiceExists:
            if number == _TRIES:
                raise
    raise AssertionError


async def remove(request: Request, text: str) -> None:
    """Delete a voice by its id or name.

    Raises:
        VoiceCloneError: there is none, or the server refuses.
    """
    await delete_voice(request, await voice_name(request, text))
