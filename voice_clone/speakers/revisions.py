"""Changes of records of which other servers may change the same meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from voice_clone.errors import Overloaded
from voice_clone.speakers.draft import Draft
from voice_clone.speakers.flight import Superseded
from voice_clone.speakers.name import SpeakerName
from voice_clone.speakers.operations import Allowance
from voice_clone.speakers.record import Kind, SpeakerRecord
from voice_clone.speakers.registry import Registry
from voice_clone.speakers.tensor_file import Damaged

TRIES = 3  # tries of one generation; if all fail, the store contradicts itself. A change just before may end one try
RACES = 20  # tries in all


def revise_newest(
    registry: Registry,
    name: SpeakerName,
    allowance: Allowance,
    kind: Kind,
    change: Callable[[SpeakerRecord], Draft | None],
) -> SpeakerRecord:
    """Do `Registry.revise`; where another server is quicker, revise what it has left.

    Raises:
        SpeakerNotFound, InvalidArgument, QuotaExceeded, Exception: as `Registry.revise`.
        Damaged: the store contradicts itself.
        Overloaded: other servers were quicker each time.
    """
    tried = Counter[int]()  # by generation

    def counted(record: SpeakerRecord) -> Draft | None:
        tried[record.generation] += 1
        return change(record)

    while tried.total() < RACES:
        try:
            return registry.revise(name, allowance, kind, counted)
        except Superseded:
            registry.refresh()
        if max(tried.values()) == TRIES:
            raise Damaged("what the store has does not belong to its record")
    raise Overloaded(f"{name.text!r} is being changed by other servers; nothing was changed here, try again")
