"""The clients of the Triton server: one for the operator, and one for each key that owns its voices."""

from __future__ import annotations

from collections.abc import Iterable

from voice_clone_client import AsyncClient, tls_credentials

from .http.keys import Key
from .settings import Settings


class TritonClients:
    """The clients, for one event loop. Each connects with its first call.

    The server itself keeps owners apart. The client of a key says with each call for which owner it acts.

    Args:
        settings: how the server is reached.
        keys: all keys of the gateway.

    Raises:
        VoiceCloneError, OSError: the address, the token or the certificate of the Triton server is invalid.
    """

    def __init__(self, settings: Settings, keys: Iterable[Key] = ()) -> None:
        secure = settings.triton_tls or settings.triton_ca
        credentials = tls_credentials(settings.triton_ca or None) if secure else None

        def client(key: Key) -> AsyncClient:
            return AsyncClient(
                settings.triton,
                model=settings.model or None,
                credentials=credentials,
                token=settings.triton_token,
                owner=key.owner,
                max_owned=key.voices,
            )

        self.operator = client(Key())
        self._of_key = {key: client(key) for key in keys if key.owner is not None}

    def of(self, key: Key) -> AsyncClient:
        """The client that does what this key may do."""
        return self._of_key.get(key, self.operator)

    async def close(self) -> None:
        """Close all of them."""
        for client in (self.operator, *self._of_key.values()):
            await client.close()
