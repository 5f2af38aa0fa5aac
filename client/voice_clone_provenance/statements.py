"""The unsigned statement that speech is synthetic: in the tags of files and streams, and in a header over HTTP.

    digital_source_type=trainedAlgorithmicMedia, family=some_family, mark=marked, generator="voice-clone 0.2.0"

A dictionary of Structured Fields (RFC 9651, section 3.2), in ASCII. `trainedAlgorithmicMedia` is IPTC's word for what a
trained model made (https://cv.iptc.org/newscodes/digitalsourcetype/). Everyone can write or remove such a line.

Files that FFmpeg muxes have it as `comment` in an ID3 tag (MP3), a Vorbis comment (FLAC, Ogg), or a field of the
container (M4A, WebM). ADTS (AAC) and files without a header have no place for one. `wav` writes that of WAV files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from voice_clone_client import __version__

if TYPE_CHECKING:
    from av.container import OutputContainer

SOURCE_TYPE = "trainedAlgorithmicMedia"
GENERATOR = f"voice-clone {__version__}"
_COMMENT_OPTIONS = {"mp3": {"id3v2_version": "4"}}  # of the containers that write a comment only if asked to


@dataclass(frozen=True)
class Statement:
    """A statement that a model made the sound."""

    family: str
    """The model family."""
    mark: str | None = None
    """`marked`: the sound has the mark of synthetic speech; `failed`: it was to have it; None: it was to have none."""
    generator: str = GENERATOR
    """What made it, with its version."""

    def __str__(self) -> str:
        mark = "" if self.mark is None else f"mark={self.mark}, "
        # In a file any byte may follow: the quotation mark ends it.
        return f'digital_source_type={SOURCE_TYPE}, family={self.family}, {mark}generator="{self.generator}"'


def comment_of(family: str, info: Mapping[str, Any] | None, signs: bool) -> str | None:
    """Return what the tags of a speech say. None if its server marks nothing and its file is not signed.

    Args:
        family: that speaks.
        info: the server's on the speech so far; its `mark` is there from the first chunk on.
        signs: whether who writes it signs files.
    """
    mark = (info or {}).get("mark")
    return None if mark is None and not signs else str(Statement(family, mark))


def open_tagged(
    file: Any, container: str, comment: str | None, options: Mapping[str, str] | None = None
) -> OutputContainer:
    """Open a container that writes into `file`. It needs PyAV.

    Args:
        file: open for writing, in binary.
        container: FFmpeg's name.
        comment: in ASCII; None for none.
        options: of the container; those that a comment needs count more.
    """
    import av

    needed = {} if comment is None else _COMMENT_OPTIONS.get(container, {})
    opened = av.open(file, "w", format=container, container_options={**(options or {}), **needed})
    if comment is not None:
        opened.metadata["comment"] = comment
    return opened


def find(data: bytes) -> Statement | None:
    """Find the first statement in a file, or in a tag alone; None if there is none.

    It is found wherever it stands, in any format, but for tags in UTF-16 and for compressed ones.
    """
    found = _FORM.search(data)
    if found is None:
        return None
    family, mark, generator = found.groups()
    return Statement(family.decode(), None if mark is None else mark.decode(), generator.decode())


_TOKEN = rb"[A-Za-z][A-Za-z0-9_.-]{0,63}"
_FORM = re.compile(
    rb"digital_source_type=%s, family=(%s), (?:mark=(%s), )?generator=\"([ !#-\[\]-~]{0,128})\""
    % (SOURCE_TYPE.encode(), _TOKEN, _TOKEN)
)
