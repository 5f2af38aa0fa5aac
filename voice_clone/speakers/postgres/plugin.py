"""A PostgreSQL database as a `StorePlugin`."""

from __future__ import annotations

from voice_clone.errors import Unsupported
from voice_clone.server_settings import SpeakerCacheSettings
from voice_clone.settings import KnownVoiceSettings, VoiceSettings
from voice_clone.speakers.store import KnownVoices, Store


def open_store(address: str, settings: SpeakerCacheSettings) -> Store:
    conninfo = _checked(address, settings)
    from voice_clone.speakers.postgres.store import PostgresStore

    return PostgresStore(conninfo, settings.voice_stale_seconds, settings.voice_store_timeout)


def open_known_voices(address: str, settings: KnownVoiceSettings) -> KnownVoices:
    conninfo = _checked(address, settings)
    from voice_clone.speakers.postgres.store import KnownInDatabase

    return KnownInDatabase(conninfo)


def _checked(address: str, settings: VoiceSettings) -> str:
    try:
        from voice_clone.speakers.postgres.sessions import checked_address
    except ImportError:
        raise Unsupported("voices in a database need psycopg: pip install 'psycopg[binary]'") from None
    return checked_address(address, settings.voice_store_tls == "verify")
