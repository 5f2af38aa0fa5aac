"""A book from a file: plain text, Markdown, HTML or EPUB."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from voice_clone_client import sources
from voice_clone_client.errors import InvalidArgument, Unsupported

from .book import Book, ChapterList
from .pages import Page, sentences_of

SUFFIXES = (".txt", ".md", ".html", ".xhtml", ".htm", ".epub")

_CHAPTER = re.compile(
    r"(?:chapter|part|book|kapitel|teil|chapitre|partie|cap[ií]tulo|parte|capitolo|hoofdstuk|глава|часть)"
    r"\s+(?:\d+|[ivxlcdm]+|[^\W\d_]+)\b[^\n]{0,80}|第[\d一二三四五六七八九十百零〇]{1,6}[章回部][^\n]{0,80}",
    re.IGNORECASE,
)
_SAID = re.compile(r"[.,;!?…]\Z")  # the end of a sentence that only begins as the title of a chapter does
_FRONT_MATTER = re.compile(r"---\s*\n((?:[^\n]*\n){0,100}?)(?:---|\.\.\.)\s*(?:\n|\Z)")
_ENTRY = re.compile(r"(title|author|lang|language):\s*[\"']?(.*?)[\"']?\s*", re.IGNORECASE)


def read_book(source: sources.Source, name: str) -> Book:
    """Read a book.

    Args:
        source: the file, or its content.
        name: of the file: its suffix says what it is; without one it is text.

    Raises:
        InvalidArgument: it cannot be read, or has nothing to speak; the text says why.
        Unsupported: a package is missing that reads it.
        OSError: the file cannot be opened.
    """
    suffix = Path(name).suffix.lower()
    if suffix == ".epub":
        from .epub import read_epub

        book = read_epub(source)
    elif suffix == ".md":
        book = _markdown(sources.text(source))
    elif suffix in (".html", ".htm", ".xhtml"):
        book = _html(sources.text(source))
    elif suffix in ("", ".txt"):
        book = _plain(sources.text(source))
    else:
        raise InvalidArgument(f"{suffix} is no kind of book; give a file of {', '.join(SUFFIXES)}")
    if not book.chapters:
        raise InvalidArgument("the book has nothing to speak; it needs at least one letter or digit")
    title = book.title or Path(name).stem
    return replace(book, title=title, chapters=[replace(each, title=each.title or title) for each in book.chapters])


def _plain(text: str) -> Book:
    """Chapters begin at a form feed, and at lines such as `Chapter 7`. With blank lines, paragraphs are between them;
    without any, each line is one."""
    chapters = ChapterList()
    for part in re.split(r"\f", text):
        chapters.begin("")
        lines, blank = part.strip().splitlines(), re.search(r"\n[^\S\n]*\n", part.strip()) is not None
        held: list[str] = []
        for line in [*(line.strip() for line in lines), ""]:
            title = not held and _CHAPTER.fullmatch(line) and not _SAID.search(line)
            if title:
                chapters.begin(line)
                chapters.add(line, heading=True)
            elif line:
                held.append(line)
            if held and (not line or not blank):
                chapters.add(" ".join(held))
                held.clear()
    return Book(chapters.all())


def _markdown(text: str) -> Book:
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        raise Unsupported("a book in Markdown needs a further package: pip install markdown-it-py") from None
    front, about = _FRONT_MATTER.match(text), dict[str, str]()
    if front is not None:
        text = text[front.end() :]
        entries = (_ENTRY.fullmatch(line) for line in front[1].splitlines())
        about = {found[1].lower(): found[2] for found in entries if found}
    book = _html(MarkdownIt("commonmark").enable("table").render(text))
    language = about.get("lang") or about.get("language", "")
    return replace(book, title=about.get("title", book.title), author=about.get("author", ""), language=language)


def _html(text: str) -> Book:
    chapters = ChapterList()
    page = Page(chapters.add, chapters.begin)
    page.read(text)
    title, author, language = (" ".join(page.about[name].split()) for name in ("title", "author", "language"))
    return Book(chapters.all(), title, author, language, warnings=sentences_of(page.left_out))
