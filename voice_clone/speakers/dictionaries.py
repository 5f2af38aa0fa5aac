"""Dictionaries of pronunciations, as they are kept beside the voices. Nothing here reads what they say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from voice_clone.errors import Internal, SpeakerExists
from voice_clone.speakers.draft import Draft, of_dictionary
from voice_clone.speakers.flight import Superseded
from voice_clone.speakers.operations import Get, KeepDictionary
from voice_clone.speakers.record import SpeakerRecord
from voice_clone.speakers.registry import Registry
from voice_clone.speakers.revisions import TRIES
from voice_clone.speakers.store import Store
from voice_clone.speakers.tensor_file import Damaged


class Dictionaries:
    """The dictionaries of a registry and its store."""

    def __init__(self, registry: Registry, store: Store) -> None:
        self._registry = registry
        self._store = store

    def keep(self, given: KeepDictionary) -> SpeakerRecord:
        """Keep a new dictionary, or change the generation that the caller names. Returns: its record.

        Raises:
            SpeakerExists: the dictionary has another generation, so the caller does not know what it would replace.
            SpeakerNotFound: the owner has no dictionary of that id.
            QuotaExceeded, Overloaded: as `Registry.add`.
            Internal: the content cannot be read any more.
        """
        if given.generation is None:
            return self._registry.add(of_dictionary(given), allowance=given.allowance)
        name = given.name.text
        changed = SpeakerExists(f"the dictionary {name!r} was changed meanwhile; read it, and change it again")

        def change(record: SpeakerRecord) -> Draft:
            if record.generation != given.generation:
                raise changed
            content = self._store.read_audio(record) if given.content is None else given.content
            return Draft(replace(record, about=given.about, file_size=len(content or b"")), {"": content or b""}, {})

        try:
            return self._registry.revise(given.name, given.allowance, "dictionary", change)
        except Superseded:
            raise changed from None
        except Damaged:
            raise _damaged(name) from None

    def read(self, get: Get) -> tuple[SpeakerRecord, bytes | None]:
        """The record of a dictionary and its content.

        Raises:
            SpeakerNotFound: the owner has no dictionary of that id.
            Internal: the content cannot be read any more.
        """
        tried = Counter[int]()  # by generation: others may change it again and again
        while True:
            record = self._registry.find(get.name, get.owner, kind="dictionary")
            try:
                with self._registry.holding(record) as now:
                    return now, self._store.read_audio(now)
            except Damaged:
                raise _damaged(get.name.text) from None
            except Superseded:
                self._registry.refresh()
            tried[record.generation] += 1
            if tried[record.generation] == TRIES:
                raise _damaged(get.name.text)


def _damaged(name: str) -> Internal:
    return Internal(f"the dictionary {name!r} is damaged; delete it, and keep it again")
