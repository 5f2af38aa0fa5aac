"""What speech says of its origin: a signed manifest in whole files, and a statement in tags and a header.

See `voice_clone_provenance.manifests` and `voice_clone_provenance.statements`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voice_clone_client import AsyncClient, InvalidArgument, VoiceNotFound
from voice_clone_provenance.manifests import TYPES, FileSigner, consent_of
from voice_clone_provenance.statements import GENERATOR, comment_of

from ..http.account import Item
from ..settings import Settings

log = logging.getLogger(__name__)


class Signing:
    """Signs what the gateway answers in one piece.

    Raises:
        VoiceCloneError: certificate and key do not fit, one of them is missing, or c2pa-python is not installed.
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
            log.info("signs %s files that are no streams, as %s", ", ".join(TYPES), GENERATOR)

    def signs(self, media_type: str) -> bool:
        """Whether files of a type get a manifest."""
        return self._signer is not None and media_type in TYPES.values()

    def statement(self, family: str, info: Mapping[str, Any] | None) -> str | None:
        """What a speech says in its tags and its header; None: the gateway signs nothing, and its server marks nothing.

        Args:
            family: that speaks.
            info: the server's on the speech so far.
        """
        return comment_of(family, info, signs=self._signer is not None)

    async def signed(
        self,
        data: bytes,
        media_type: str,
        family: str,
        info: Mapping[str, Any] | None,
        client: AsyncClient,
        held: Item,
    ) -> bytes:
        """The file with a manifest, if the gateway signs and such files can carry one; else as it is.

        Raises:
            VoiceCloneError: the server had to be asked, and did not answer.
            Full: there is no room for a second file.
        """
        if self._signer is None or not self.signs(media_type):
            return data
        known = info or {}
        consent = await _consent(known, client) if self._consent else None
        with held.part() as hold:
            hold(len(data))
            digest = known.get("voice_digest")
            return await asyncio.to_thread(self._signer.sign, data, media_type, family, digest, consent)


async def _consent(info: Mapping[str, Any], client: AsyncClient) -> str | None:
    """The id of the consent to the generation that spoke; None: there is none, or this key may not know it."""
    if "voice_digest" not in info:
        return None
    try:
        return consent_of(await client.get(info["voice"]), info["voice_digest"])
    except VoiceNotFound:
        return None
