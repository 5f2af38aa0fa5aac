"""The clients of the Triton servers: one for the operator, and one for each key that has rules of the servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from voice_clone_client import AsyncClient, tls_credentials

from .http.keys import Key
from .settings import Settings


class TritonClients:
    """The clients, for one event loop. They share their connections, which are made with the first calls.

    The servers themselves keep owners apart, and mark speech. The client of a key says with each call for which owner
    it acts, and whether its speech is to be marked.

    Args:
        settings: how the servers are reached.
        keys: all keys of the gateway.
        reserved: names that their owners may not give to voices.

    Raises:
        VoiceCloneError, OSError: the address, the proxy, the token or the certificate of the Triton server is invalid.
    """

    def __init__(self, settings: Settings, keys: Iterable[Key], reserved: Sequence[str] = ()) -> None:
        secure = settings.triton_tls or settings.triton_ca
        credentials = tls_credentials(settings.triton_ca or None) if secure else None

        self.operator = AsyncClient(
            settings.triton,
            model=settings.model or None,
            credentials=credentials,
            token=settings.triton_token,
            proxy=settings.triton_proxy,
        )
        ruled = [key for key in keys if key.owner is not None or key.mark is not None]
        self._of_key = {
            key: self.operator.acting_for(key.owner, key.voices, key.mark, reserved, key.bytes) for key in ruled
        }

    def of(self, key: Key) -> AsyncClient:
        return self._of_key.get(key, self.operator)

    async def close(self) -> None:
        for client in (*self._of_key.values(), self.operator):
            await client.close()
