"""Files that FFmpeg muxes, with a comment in their header.

It stands in an ID3 tag (MP3), a Vorbis comment (FLAC, Ogg), or a field of the container (M4A, WebM), each as `comment`.
ADTS (AAC) and files without a header have no place for one. `wav` writes those of WAV files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from av.container import OutputContainer

_OPTIONS = {"mp3": {"id3v2_version": "4"}}  # of the containers that write a comment only if asked to


def open_tagged(
    file: BinaryIO, container: str, comment: str | None, options: Mapping[str, str] | None = None
) -> OutputContainer:
    """A container to write into `file`. It needs PyAV.

    Args:
        file: open for writing, in binary.
        container: FFmpeg's name.
        comment: in ASCII; None for none.
        options: of the container; those that a comment needs count more.
    """
    import av

    needed = {} if comment is None else _OPTIONS.get(container, {})
    opened = av.open(file, "w", format=container, container_options={**(options or {}), **needed})
    if comment is not None:
        opened.metadata["comment"] = comment
    return opened
