"""Whole files get a signed manifest, where the gateway has a certificate; see `voice_clone_client.manifests`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from voice_clone_client import AsyncClient, InvalidArgument, VoiceNotFound, __version__
from voice_clone_client.manifests import TYPES, FileSigner

from .settings import Settings

log = logging.getLogger(__name__)


class Signing:
    """Signs what the gateway answers in one piece.

    Raises:
        VoiceCloneError: certificate and key do not fit, one of both is missing, or c2pa-python is not installed.
        OSError: they cannot be read.
    """

    def __init__(self, settings: Settings) -> None:
        certificates, key = settings.signing_certificates, settings.signing_key
        if bool(certificates) != bool(key):
            raise InvalidArgument("signing_certificates and signing_key belong together; set both or neither")
        if settings.signing_consent and not key:
            raise InvalidArgument("signing_consent says what is in a manifest; set signing_key, too, or leave it out")
        self._consent = settings.signing_consent
        self._signer = FileSigner(Path(certificates), Path(key)) if certificates else None
        if self._signer is not None:
            log.info("signs %s files that are no streams, as voice-clone %s", ", ".join(TYPES), __version__)

    async def signed(
        self,
        data: bytes,
        media_type: str,
        family: Callable[[], Awaitable[str]],
        info: Mapping[str, Any] | None,
        client: AsyncClient,
    ) -> bytes:
        """The file with a manifest, if the gateway signs and such files can carry one; else as it is.

        Args:
            data: a whole file.
            media_type: of it.
            family: asks for the model family that made it.
            info: the server's on its speech.
            client: of the key that asked for it.

        Raises:
            VoiceCloneError: the server had to be asked, and did not answer.
        """
        if self._signer is None or media_type not in TYPES.values():
            return data
        known = info or {}
        consent = await _consent(known, client) if self._consent else None
        return await asyncio.to_thread(
            self._signer.sign, data, media_type, await family(), known.get("voice_digest"), consent
        )


async def _consent(info: Mapping[str, Any], client: AsyncClient) -> str | None:
    """The id of the consent to the generation that spoke; None: there is none, or this key may not know it."""
    if "voice_digest" not in info:
        return None
    try:
        voice = await client.get(info["voice"])
    except VoiceNotFound:
        return None
    return voice.consent if voice.digest == info["voice_digest"] else None  # else it was replaced meanwhile
