"""The sound of a book in a file with chapters and a cover, or in a folder with a file a chapter."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from voice_clone_client.types import Chunk
from voice_clone_program.running import naming
from voice_clone_program.whole_file import WholeFile, whole_file
from voice_clone_sound.joined_parts import JoinedParts
from voice_clone_sound.limiter import Limiter
from voice_clone_sound.loudness import LoudnessMeter, gain_of

from ..audio_file import CODECS, M4B, EncodedAudio
from .kept import KeptSentences, KeptSound
from .planning import PlannedChapter

Sound = Iterator[KeptSound]
"""Piece by piece."""

BIT_RATE = 64_000
MOST_NERO = 255
"""Chapters that Nero's list holds. A file with more has QuickTime's list alone, as some players read only the first."""
_COVERS = {b"\xff\xd8\xff": ("jpeg_pipe", ".jpg"), b"\x89PNG": ("png_pipe", ".png")}
_OPTIONS = {".m4b": {"movflags": "+faststart"}, ".mp3": {"id3v2_version": "3", "write_id3v1": "0"}}
_NO_NAME = re.compile(r"[\s\x00-\x1f/\\:*?\"<>|]+")


def sound_of(chapter: PlannedChapter, kept: KeptSentences, speed: float) -> Sound:
    """The sound of a chapter, sentence by sentence.

    Raises:
        Damaged: a sentence is not there any more.
    """
    parts = tuple(replace(part, rate=speed) for part in chapter.sequence.parts)
    joined = JoinedParts(replace(chapter.sequence, parts=parts))
    for sentences in chapter.parts:
        for sentence in sentences:
            sound = kept.read(sentence.address)
            yield sound._replace(samples=joined.take(Chunk(sound.samples, sound.rate, 0, False, None)).samples)
        yield sound._replace(samples=joined.end().samples)


class Measured(NamedTuple):
    """What must be known of a book before its file is begun."""

    lengths: list[float]
    """Seconds of each chapter."""
    gain: np.float32
    comments: set[str]
    """Of its sentences."""


def measured(
    chapters: Sequence[PlannedChapter],
    kept: KeptSentences,
    speed: float,
    target: float | None,
    tell: Callable[[str], None],
) -> Measured:
    """Measure a book.

    Args:
        target: LUFS; None: a gain of 1.

    Raises:
        Damaged: as `sound_of`.
        Unsupported: the package is missing that measures loudness.
    """
    lengths, comments, meter = list[float](), set[str](), None
    for number, chapter in enumerate(chapters, 1):
        tell(f"measuring chapter {number} of {len(chapters)}")
        count = 0
        for samples, rate, comment in sound_of(chapter, kept, speed):
            count += len(samples)
            comments.add(comment)
            if target is not None:
                meter = meter or LoudnessMeter(rate)
                meter.add(samples)
        lengths.append(count / rate)
    gain = np.float32(1.0) if meter is None or target is None else gain_of(meter.figure, target)
    return Measured(lengths, gain, comments)


def kind_of(cover: bytes) -> tuple[str, str] | None:
    """FFmpeg's name of the format of a cover, and the suffix of its file; None if it is no picture that can be read."""
    import av

    found = next((kind for begin, kind in _COVERS.items() if cover.startswith(begin)), None)
    try:
        with av.open(io.BytesIO(cover), "r", format=found[0] if found else None) as picture:
            return found if found and picture.streams.video[0].width else None
    except (av.FFmpegError, ValueError, IndexError):
        return None


@dataclass(frozen=True)
class Writer:
    """Writes a book, whose files take the place of older ones when they are whole."""

    output: Path
    """That ends in `.m4b` or `.mp3`, or of a folder."""
    tags: Mapping[str, str]
    """By FFmpeg's names."""
    cover: bytes | None
    """A picture of which `kind_of` knows the kind."""
    tell: Callable[[str], None]
    """Called with a line on how it goes."""

    def write(
        self,
        chapters: Sequence[PlannedChapter],
        figures: Measured,
        kept: KeptSentences,
        speed: float,
    ) -> list[str]:
        """Write it; returns the names of the files in a folder.

        Raises:
            Damaged: as `sound_of`.
            OSError: a file cannot be written.
        """

        def sounds(chosen: Iterable[tuple[int, PlannedChapter]]) -> Sound:
            for number, chapter in chosen:
                self.tell(f"writing chapter {number} of {len(chapters)}")
                yield from sound_of(chapter, kept, speed)

        numbered = list(enumerate(chapters, 1))
        if self.output.suffix.lower() in _OPTIONS:
            marks = [(chapter.title, seconds) for chapter, seconds in zip(chapters, figures.lengths, strict=True)]
            self._write_file(
                self.output,
                _levelled(sounds(numbered), figures.gain),
                {**self.tags, "title": self.tags["album"]},
                marks,
            )
            return []
        return self._write_folder(numbered, figures.lengths, lambda each: _levelled(sounds([each]), figures.gain))

    def _write_folder(
        self,
        chapters: Sequence[tuple[int, PlannedChapter]],
        lengths: Sequence[float],
        sound: Callable[[tuple[int, PlannedChapter]], Sound],
    ) -> list[str]:
        """As Audiobookshelf and players want it: a file a chapter, the cover, and a playlist."""
        self.output.mkdir(parents=True, exist_ok=True)
        names, lines = list[str](), ["#EXTM3U"]
        for number, chapter in chapters:
            place = f"{number:0{max(2, len(str(len(chapters))))}d}"
            names.append(f"{place} {_NO_NAME.sub(' ', chapter.title)[:60]}".strip(" .") + ".mp3")
            own = {**self.tags, "title": chapter.title, "track": f"{number}/{len(chapters)}"}
            self._write_file(self.output / names[-1], sound((number, chapter)), own, [])
            lines += [f"#EXTINF:{round(lengths[number - 1])},{chapter.title}", names[-1]]
        files = {"playlist.m3u8": "\n".join([*lines, ""]).encode(errors="replace")}
        if self.cover is not None and (kind := kind_of(self.cover)):
            files[f"cover{kind[1]}"] = self.cover
        for name, data in files.items():
            with whole_file(self.output / name) as file:
                file.write(data)
        return [*names, *files]

    def _write_file(
        self, path: Path, sound: Sound, tags: Mapping[str, str], chapters: Sequence[tuple[str, float]]
    ) -> None:
        """A file; `chapters` are titles and seconds."""
        with naming(str(path)):
            whole = WholeFile(path)
            try:
                audio = None
                for samples, rate, _ in sound:
                    audio = audio or self._opened(whole.file.name, path.suffix.lower(), rate, tags, chapters)
                    audio.write(samples)
                if audio is not None:
                    audio.end()
                whole.keep()
            finally:
                whole.drop()

    def _opened(
        self, path: str, suffix: str, rate: int, tags: Mapping[str, str], chapters: Sequence[tuple[str, float]]
    ) -> EncodedAudio:
        import av
        from av.stream import Disposition

        codec, options = CODECS.get(suffix, M4B), dict(_OPTIONS[suffix])
        if suffix == ".m4b" and len(chapters) > MOST_NERO:
            options["movflags"] += "+disable_chpl"
        container = av.open(path, "w", format=codec.container, container_options=options)
        container.metadata.update({name: value for name, value in tags.items() if value})
        audio = EncodedAudio(container, codec, rate, BIT_RATE)
        ends = [0, *(round(1000 * seconds) for seconds in accumulate(seconds for _, seconds in chapters))]
        marks = zip(chapters, pairwise(ends), strict=True)
        container.set_chapters(
            [
                {"id": index, "start": start, "end": end, "time_base": Fraction(1, 1000), "metadata": {"title": title}}
                for index, ((title, _), (start, end)) in enumerate(marks)
            ]
        )
        if self.cover is not None and (kind := kind_of(self.cover)):
            with av.open(io.BytesIO(self.cover), "r", format=kind[0]) as picture:
                stream: Any = container.add_stream_from_template(picture.streams.video[0])
                stream.disposition = Disposition.attached_pic
                stream.metadata["comment"] = "Cover (front)"
                packet = next(each for each in picture.demux() if each.size)
                packet.stream = stream
                container.mux(packet)
        return audio


def _levelled(sound: Sound, gain: np.float32) -> Sound:
    """The same with a gain, and with true peaks that are bounded. A gain of 1 leaves the samples as they are."""
    if gain == 1.0:
        yield from sound
        return
    limiter = None
    for piece in sound:
        limiter = limiter or Limiter(piece.rate)
        yield piece._replace(samples=limiter.push(piece.samples * gain, final=False))
    if limiter is not None:
        yield piece._replace(samples=limiter.push(np.zeros(0, np.float32), final=True))
