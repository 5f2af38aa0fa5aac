"""Opens the store that the settings name: a directory, or the database of a fleet. Only this file knows both."""

from __future__ import annotations

from voice_clone.errors import Unsupported
from voice_clone.settings import KnownVoiceSettings, SpeakerCacheSettings, VoiceSettings
from voice_clone.speakers.disk.store import FileStore, KnownInDirectory
from voice_clone.speakers.store import KnownVoices, Store


def open_store(settings: SpeakerCacheSettings) -> Store:
    """The store of the cache.

    Raises:
        InvalidArgument: a setting is wrong.
        Unsupported: the database's client is not installed.
        Overloaded, Internal: the store cannot be opened.
    """
    conninfo = _database(settings, settings.voice_store)
    if conninfo is None:
        return FileStore(settings.voice_dir, wait=settings.voice_dir_wait)
    from voice_clone.speakers.postgres.store import PostgresStore

    return PostgresStore(conninfo, settings.voice_stale_seconds, settings.voice_store_timeout)


def open_known_voices(settings: KnownVoiceSettings) -> KnownVoices:
    """The voices of that store, for reading. Raises: as `open_store`, but nothing is asked of the store yet."""
    conninfo = _database(settings, settings.voice_store_reader or settings.voice_store)
    if conninfo is None:
        return KnownInDirectory(settings.voice_dir)
    from voice_clone.speakers.postgres.store import KnownInDatabase

    return KnownInDatabase(conninfo)


def _database(settings: VoiceSettings, address: str) -> str | None:
    """The address of the database, checked; None if there is none. It has a password, hence a secret setting."""
    if not address:
        return None
    try:
        from voice_clone.speakers.postgres.sessions import checked_address
    except ImportError:
        raise Unsupported("voices in a database need psycopg: pip install 'psycopg[binary]'") from None
    return checked_address(address, settings.voice_store_tls == "verify")
