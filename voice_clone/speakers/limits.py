"""What an owner may register: which names, how many speakers, and how many bytes of clips.

The records are those of a registry, by key; those that are being written are given besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from voice_clone.errors import NameReserved, Overloaded, QuotaExceeded, SpeakerExists
from voice_clone.speakers.draft import Draft
from voice_clone.speakers.name import SpeakerName
from voice_clone.speakers.operations import Allowance
from voice_clone.speakers.record import Kind, SpeakerRecord

Records = Mapping[str, SpeakerRecord]

_SHOWN = 5  # names that one error lists
_NOUNS: dict[Kind, str] = {"voice": "voices", "consent": "consents", "alias": "aliases", "dictionary": "dictionaries"}


def check_names(
    records: Records, names: Sequence[SpeakerName], replace: bool, allowance: Allowance, kind: Kind
) -> None:
    """Check that an owner may register speakers of these names; without `replace`, every name must be free.

    A name is shown as it is stored where the owner may know that, otherwise as it is given.

    Raises:
        SpeakerExists: a name is taken.
        NameReserved: the owner may not use a name.
    """
    owner = allowance.owner
    there = [(name, records.get(name.key)) for name in names]
    for name, record in there:
        if owner is not None and name in allowance.reserved and (record is None or record.owner != owner):
            raise NameReserved(f"the `name` {name.text!r} is reserved on this server; choose another one")
    taken = [(name, record) for name, record in there if record is not None]
    others = [
        record.name if record.serves(owner, shared=True) else name.text
        for name, record in taken
        if not record.serves(owner, shared=False)
    ]
    if others:
        raise SpeakerExists(f"{_are_taken(others)}; choose another one")
    aliases = [record.name for _, record in taken if record.kind == "alias" != kind]
    if aliases:
        raise SpeakerExists(f"{_are_taken(aliases)} by an alias; choose another one, or remove the alias first")
    voices = [record.name for _, record in taken if record.kind != kind]
    if voices:
        raise SpeakerExists(f"{_are_taken(voices)} by a voice; choose another one")
    if taken and not replace:
        which = "its voice" if len(taken) == 1 else "their voices"
        raise SpeakerExists(
            f"{_are_taken([record.name for _, record in taken])}; the option `replace` replaces {which}"
        )


def check_number(
    records: Records, creating: Records, names: Sequence[SpeakerName], most: int, allowance: Allowance, kind: Kind
) -> None:
    """Check that there may be speakers of these names beside those that there are.

    Args:
        most: that the server keeps.

    Raises:
        QuotaExceeded: the owner has as many as it may have.
        Overloaded: the server has.
    """
    owner = allowance.owner
    keys = {key for _, key in names}
    begun = {k: each.owner for k, each in dict(creating).items() if k not in keys and each.kind == kind}
    noun = _NOUNS[kind]
    owners = {key: each.owner for key, each in dict(records).items() if each.kind == kind}
    if owner is not None and allowance.most is not None:
        held = {key for key, creator in (owners | begun).items() if creator == owner}
        if len(held | keys) > max(allowance.most, len(held)):
            raise QuotaExceeded(
                f"{len(held)} {noun} are registered, and at most {allowance.most} are allowed; delete one"
            )
    new, there_are = len(keys - owners.keys()), len(owners.keys() | begun.keys())
    if new and there_are + new > most:
        raise Overloaded(f"{there_are} {noun} are registered; this server keeps at most {most}, delete some first")


def check_bytes(records: Records, creating: Records, drafts: Sequence[Draft], allowance: Allowance) -> None:
    """Check that the owner may have the clips of these drafts, all of one kind, beside or in place of its own.

    Raises:
        QuotaExceeded: there would be more bytes than it may have, and than it has.
    """
    owner, most, kind = allowance.owner, allowance.most_bytes, drafts[0].record.kind
    if owner is None or most is None:
        return
    new = {draft.record.key: draft.record for draft in drafts}
    others = {key: each for key, each in dict(creating).items() if key not in new}
    there = {k: r for k, r in (dict(records) | others).items() if r.owner == owner and r.kind == kind}
    held, wanted = (
        sum(clip.audio_bytes for record in found.values() for clip in record.clips.values())
        for found in (there, there | new)
    )
    if wanted > max(most, held):
        raise QuotaExceeded(
            f"the {_NOUNS[kind]} have clips of {held} bytes, and would have {wanted}; at most {most} are allowed, "
            "delete one"
        )


def _are_taken(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    if len(names) > _SHOWN:
        shown += f" and {len(names) - _SHOWN} more"
    return f"the name {shown} is taken" if len(names) == 1 else f"the names {shown} are taken"
