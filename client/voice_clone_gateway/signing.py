"""Whole files get a signed manifest, where the gateway has a certificate; see `voice_clone_client.manifests`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from voice_clone_client import InvalidArgument, __version__
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
        self._signer = FileSigner(Path(certificates), Path(key)) if certificates else None
        if self._signer is not None:
            log.info("signs %s files that are no streams, as voice-clone %s", ", ".join(TYPES), __version__)

    async def signed(self, data: bytes, media_type: str, family: Callable[[], Awaitable[str]]) -> bytes:
        """The file with a manifest, if the gateway signs and such files can carry one; else as it is.

        Args:
            data: a whole file.
            media_type: of it.
            family: asks for the model family that made it.
        """
        if self._signer is None or media_type not in TYPES.values():
            return data
        return await asyncio.to_thread(self._signer.sign, data, media_type, await family())
