"""The command that speaks a book: book."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from voice_clone_client.client import Client
from voice_clone_client.errors import InvalidArgument
from voice_clone_client.requests import is_voiceless
from voice_clone_client.sources import content
from voice_clone_sound import MAX_LOUDNESS, MIN_LOUDNESS
from voice_clone_text.pieces import Style
from voice_clone_text.planner import Settings

from ..audio_file import MISSING, has_codecs
from ..books.book import Book
from ..books.kept import Damaged, KeptSentences
from ..books.planning import AFTER, ATTEMPTS, BEFORE, PARAGRAPH, PlannedChapter, Planner
from ..books.reading import SUFFIXES, read_book
from ..origin import Origins, hashed, read_files
from ..output import progress
from .common import add_mark, command, complain, given, report
from .voicing import add_knobs, add_normalize, add_parallel, add_shape, add_voice, how_of, within

LOUDNESS = -18.0
"""LUFS: what shops of audiobooks ask for."""

_FILE = re.compile(r"\d{2,6}[^/]{0,61}\.mp3|playlist\.m3u8|cover\.(?:jpg|png)")
"""The names that a file of a folder has; see `Writer`."""


def add(commands: Any) -> None:
    book = command(commands, "book", _book, "speak a book into a file with chapters; what is kept is not made again")
    book.add_argument("file", help=f"the text ({', '.join(SUFFIXES)}); - is plain text on stdin")
    add_voice(book)
    book.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="a .m4b or .mp3; any other name is a folder of .mp3 files"
    )
    book.add_argument("--title", help="of the book (default: what its file says, or is called)")
    book.add_argument("--author", help="of the book (default: what its file says)")
    book.add_argument("--cover", metavar="FILE", help="a JPEG or PNG (default: that of an EPUB)")
    book.add_argument(
        "--parts",
        metavar="DIR",
        help="where the sentences are kept, of this book alone (default: .OUTPUT.parts beside it)",
    )
    book.add_argument(
        "--loudness",
        type=lambda text: None if text == "off" else within(MIN_LOUDNESS, MAX_LOUDNESS, text),
        default=LOUDNESS,
        metavar="LUFS",
        help="of the book, by one gain for all of it (default: %(default)g; off leaves it as it is)",
    )
    for name, usual, place in (
        ("--paragraph-pause", PARAGRAPH, "between paragraphs"),
        ("--chapter-pause", AFTER, "at the end of a chapter"),
    ):
        seconds = partial(within, 0, 60)
        book.add_argument(name, type=seconds, default=usual, metavar="SECONDS", help=f"{place} (default: %(default)g)")
    add_parallel(book)
    add_shape(book)
    add_normalize(book)
    add_mark(book)
    add_knobs(book)


def _book(client: Client, parsed: argparse.Namespace) -> None:
    output = Path(parsed.output)
    if not has_codecs():
        parsed.parser.error(f"a book needs a further package: {MISSING}")
    named = output if output.name.strip(".") else output.resolve()  # `.` and `..` are no names
    if not named.name:
        parsed.parser.error(f"{output} is the root of all files; give the name of a file or a folder")
    is_one = output.suffix.lower() in (".m4b", ".mp3")
    if is_one and output.is_dir():
        parsed.parser.error(f"{output} is a folder; give the name of a file, or of a folder without .m4b and .mp3")
    if not is_one and output.is_file():
        parsed.parser.error(f"{output} is a file; give a name that ends in .m4b or .mp3, or that of a folder")
    how = read_files(how_of(parsed))
    if is_voiceless(how):
        parsed.parser.error("each sentence would have a voice of its own; give --voice, or one of the options like it")
    book = _read(parsed)
    origin = Origins(client, parsed.mark, parsed.timeout).of(how)
    chapters = _planned(parsed, book, how.pop("seed") or 0, origin)
    folder = Path(parsed.parts or named.with_name(f".{named.name}.parts"))
    output.parent.mkdir(parents=True, exist_ok=True)
    with closing(KeptSentences(folder, parsed.allow_partial)) as kept:
        before, place = _files_in(output, kept.read_plan()), str(output.resolve())
        kept.write_plan(_plan(book, chapters, origin, place, before))
        made, seconds, files = _made(client, parsed, book, chapters, origin, how, kept)
        for path in (output / name for name in set(before) - set(files)):
            if path.is_file():
                path.unlink()
        kept.write_plan(_plan(book, chapters, origin, place, files))
        dropped = kept.drop_others({each.address for chapter in chapters for each in chapter.all})
    count = sum(len(chapter.all) for chapter in chapters)
    done = f"{count} sentences, {made} made, {dropped} dropped"
    report(parsed, f"{parsed.output}\t{seconds:.2f} s\t{len(chapters)} chapters\t{done}")


def _read(parsed: argparse.Namespace) -> Book:
    from ..books.files import kind_of

    book = read_book(given(parsed.file), "stdin" if parsed.file == "-" else parsed.file)
    book = replace(book, title=parsed.title or book.title, author=parsed.author or book.author)
    if parsed.cover is not None:
        book = replace(book, cover=content(given(parsed.cover)))
    for warning in book.warnings:
        complain(warning)
    if book.cover is not None and kind_of(book.cover) is None:
        if parsed.cover is not None:
            raise InvalidArgument(f"`cover` {parsed.cover} is no picture; give a JPEG or PNG file")
        complain("the cover of the book is no JPEG or PNG that can be read; it is left out")
        book = replace(book, cover=None)
    return book


def _planned(parsed: argparse.Namespace, book: Book, seed: int, origin: dict[str, Any]) -> list[PlannedChapter]:
    style = Style(language=parsed.language or book.language or None)
    planner = Planner(
        Settings("text", inline_pauses=parsed.inline_pauses, style=style, normalize=parsed.normalize or "off"),
        parsed.sentence_characters,
        (BEFORE, parsed.paragraph_pause, parsed.chapter_pause),
        seed,
        1 if parsed.do_sample is False else ATTEMPTS,
        lambda text, seeds: hashed(origin, text=text, seeds=seeds),
    )
    chapters = planner.plan(book)
    for warning in planner.warnings:
        complain(warning)
    return chapters


def _files_in(output: Path, plan: dict[str, Any]) -> list[str]:
    """The files that a run wrote into the folder `output`, by its plan; none if it wrote elsewhere."""
    files = plan.get("files")
    if plan.get("output") != str(output.resolve()) or not isinstance(files, list):
        return []
    return [name for name in files if isinstance(name, str) and _FILE.fullmatch(name)]


def _plan(
    book: Book, chapters: Sequence[PlannedChapter], origin: dict[str, Any], output: str, files: list[str]
) -> dict[str, Any]:
    """What the book is made of, for its folder."""
    planned = [
        {"title": chapter.title, "sentences": [[each.address, each.text] for each in chapter.all]}
        for chapter in chapters
    ]
    about = {"title": book.title, "author": book.author, "origin": origin}
    return {**about, "output": output, "files": files, "chapters": planned}


def _made(
    client: Client,
    parsed: argparse.Namespace,
    book: Book,
    chapters: Sequence[PlannedChapter],
    origin: dict[str, Any],
    how: dict[str, Any],
    kept: KeptSentences,
) -> tuple[int, float, list[str]]:
    """Make the sentences that are missing, and the book; returns how many, its seconds, and the files of a folder."""
    from ..books.files import Writer, measured  # these need the extra
    from ..books.making import SentenceMaker

    tags = {"title": book.title, "album": book.title, "artist": book.author, "album_artist": book.author}
    tags |= {"composer": parsed.voice or "", "genre": "Audiobook", "media_type": "2"}
    made = 0
    with progress(parsed.quiet) as shown:
        maker = SentenceMaker(client, parsed.parallel, how, origin, kept, shown.show)
        while True:
            made += maker.make(each for chapter in chapters for each in chapter.all)
            try:
                figures = measured(chapters, kept, parsed.speed, parsed.loudness, shown.show)
                # Of several comments the first in the alphabet says least: without a mark, then with one that failed.
                writer = Writer(Path(parsed.output), {**tags, "comment": min(figures.comments)}, book.cover, shown.show)
                files = writer.write(chapters, figures, kept, parsed.speed)
                return made, sum(figures.lengths), files
            except Damaged:  # it is made again
                continue
