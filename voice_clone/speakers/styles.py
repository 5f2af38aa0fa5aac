"""Changes of the clips of a speaker: each makes a new generation of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from voice_clone.errors import Internal, InvalidArgument, SpeakerExists
from voice_clone.speakers.draft import Draft, of_file, with_style
from voice_clone.speakers.name import SpeakerName
from voice_clone.speakers.operations import Allowance, Upload
from voice_clone.speakers.record import NEUTRAL, SpeakerRecord
from voice_clone.speakers.registry import Registry
from voice_clone.speakers.revisions import revise_newest
from voice_clone.speakers.store import Store
from voice_clone.speakers.tensor_file import Damaged


class Styles:
    """Adds, replaces and removes clips of registered speakers."""

    def __init__(self, registry: Registry, store: Store) -> None:
        self._registry = registry
        self._store = store

    def add(self, upload: Upload, style: str, draft: Draft) -> SpeakerRecord:
        """Give a speaker the clip of a draft as a style. The same upload once more changes nothing.

        Raises:
            SpeakerNotFound: the owner has no speaker of that name.
            SpeakerExists: it has another clip of that style, and the upload replaces none.
            InvalidArgument: it would have too many styles.
            QuotaExceeded: the owner would have more bytes than it may.
            Internal: what is stored of it is damaged.
            Overloaded: other servers change it all the time.
        """

        def change(record: SpeakerRecord) -> Draft | None:
            there = record.clips.get(style)
            if there is not None and not upload.replace:
                given = replace(draft.record, owner=there.owner, shared=there.shared, styles=there.styles)
                if there.says_the_same(given) and self._store.read_audio(record, style) == draft.clips[""]:
                    return None
                named = f"the voice {record.name!r} has the style {style or NEUTRAL}"
                raise SpeakerExists(f"{named}; the option `replace` replaces its clip")
            return with_style(of_file(*self._store.read_all(record)), style, draft)

        return self._change(upload.name, upload.allowance, change)

    def remove(self, name: SpeakerName, owner: str | None, style: str) -> SpeakerRecord:
        """Remove the clip of a style.

        Raises:
            SpeakerNotFound, Internal, Overloaded: as `add`.
            InvalidArgument: the speaker has no such clip, or it is the first.
        """

        def change(record: SpeakerRecord) -> Draft:
            if not style:
                raise InvalidArgument(
                    f"`style` {NEUTRAL} is the first clip of a voice; replace it, or delete the voice"
                )
            return with_style(of_file(*self._store.read_all(record)), record.style_meant(style), None)

        return self._change(name, Allowance(owner), change)

    def _change(
        self, name: SpeakerName, allowance: Allowance, change: Callable[[SpeakerRecord], Draft | None]
    ) -> SpeakerRecord:
        try:
            return revise_newest(self._registry, name, allowance, "voice", change)
        except Damaged:
            message = f"the stored voice {name.text!r} is damaged; upload it again, with the option `replace`"
            raise Internal(message) from None
