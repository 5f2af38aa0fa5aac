"""What is known of a file's origin: the mark in its sound, the manifest, and what its tags say.

Each is looked for independently. If one cannot be examined, the result says why, and has the others.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from voice_clone_client.errors import InvalidArgument, VoiceCloneError
from voice_clone_client.types import Detection

from .manifests import Manifest
from .statements import Statement, find


@dataclass(frozen=True)
class Examination:
    """What was found in a file. The first five are those of `Detection`, all None if there was no look for a mark."""

    mark: str | None
    confidence: float | None
    speed: float | None
    start: float | None
    seconds: float | None
    mark_unread: str | None
    """Why there was no look for a mark; None: there was one."""
    manifest: Manifest | None
    manifest_unread: str | None
    """Why there was no look for a manifest; None: there was one."""
    statement: Statement | None
    """What the tags say."""


def examined(
    data: bytes, found: Detection | VoiceCloneError, manifest: Manifest | VoiceCloneError | None
) -> Examination:
    """Put together what was found in a file.

    Args:
        data: the file.
        found: of the mark, or why there was no look for it.
        manifest: None: there is none; or why there was no look for it.

    Raises:
        VoiceCloneError: `found`, if nothing was found and the rest says nothing either: there was no look for a
            manifest, or the file is no sound.
    """
    statement, unread = find(data), None
    if isinstance(manifest, VoiceCloneError):
        manifest, unread = None, str(manifest)
    heard: dict[str, Any] = dict.fromkeys(each.name for each in fields(Detection))
    reason = None
    if isinstance(found, Detection):
        heard = asdict(found)
    else:
        reason = str(found)
        if manifest is None and statement is None and (unread is not None or isinstance(found, InvalidArgument)):
            raise found
    return Examination(**heard, mark_unread=reason, manifest=manifest, manifest_unread=unread, statement=statement)
