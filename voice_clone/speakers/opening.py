"""Opens the store that the settings name: a directory, or one of those that packages bring; see `StorePlugin`."""

from __future__ import annotations

from typing import cast

from voice_clone.errors import InvalidArgument
from voice_clone.server_settings import SpeakerCacheSettings
from voice_clone.settings import KnownVoiceSettings
from voice_clone.speakers.disk.store import FileStore, KnownInDirectory
from voice_clone.speakers.store import KnownVoices, Store, StorePlugin

GROUP = "voice_clone.voice_stores"


def open_store(settings: SpeakerCacheSettings) -> Store:
    """The store of the cache.

    Raises:
        InvalidArgument: a setting is wrong.
        Unsupported: the database's client is not installed.
        Overloaded, Internal: the store cannot be opened.
    """
    address = settings.voice_store
    if not address:
        return FileStore(settings.voice_dir, wait=settings.voice_dir_wait)
    return _plugin(address).open_store(address, settings)


def open_known_voices(settings: KnownVoiceSettings) -> KnownVoices:
    """The voices of that store, for reading. Raises: as `open_store`, but nothing is asked of the store yet."""
    address = settings.voice_store_reader or settings.voice_store
    if not address:
        return KnownInDirectory(settings.voice_dir)
    return _plugin(address).open_known_voices(address, settings)


def _plugin(address: str) -> StorePlugin:
    from importlib.metadata import entry_points  # most servers have their voices in a directory

    points = {point.name: point for point in entry_points(group=GROUP)}
    scheme = address.partition("://")[0]
    if scheme not in points:
        raise InvalidArgument(
            "VOICE_CLONE_VOICE_STORE must be an address such as postgresql://user:password@host/name; it may begin "
            f"with {', '.join(f'{name}://' for name in sorted(points))}"
        )
    return cast(StorePlugin, points[scheme].load())
