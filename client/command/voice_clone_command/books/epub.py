"""A book from an EPUB (2 and 3): a zip archive of XHTML.

An archive may be hostile: its entries are counted, what is unpacked is bounded, nothing is written, no link leads out
of it, and XML may declare no entities. What is encrypted is refused, except for fonts.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from html.entities import html5
from posixpath import dirname, join, normpath
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape

from voice_clone_client.errors import InvalidArgument
from voice_clone_client.sources import Source, opened

from .book import Book, ChapterList
from .pages import Page, sentences_of

MOST_ENTRIES = 20_000
MOST_UNPACKED = 256 << 20
"""Bytes of all that is read of an archive."""
MOST_ENTRY = 32 << 20
MOST_XML = 4 << 20
"""Bytes of an entry that says what the others are: its elements take fifty times as much."""
_NAMED = re.compile(r"&([A-Za-z][A-Za-z0-9]*);")
_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
_ENCRYPTED = 0x1  # flag of an entry
_TYPE = "{http://www.idpf.org/2007/ops}type"
_BROKEN = (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, OSError, ValueError, RuntimeError)


def read_epub(source: Source) -> Book:
    """Read an EPUB.

    Raises:
        InvalidArgument: it is none, too large, or encrypted.
        OSError: the file cannot be opened.
    """
    with opened(source) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return _Epub(archive).book()
        except _BROKEN as error:
            raise _wrong(f"it is no valid archive: {error}") from None


class _Epub:
    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._left = MOST_UNPACKED
        entries = archive.infolist()
        if len(entries) > MOST_ENTRIES:
            raise _wrong(f"it has {len(entries)} entries; at most {MOST_ENTRIES} are read")
        if any(each.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for each in entries):
            raise _wrong("its entries are packed otherwise than by deflate")
        self._entries = {each.filename: each for each in entries}
        protected = "META-INF/rights.xml" in self._entries or any(each.flag_bits & _ENCRYPTED for each in entries)
        if "META-INF/encryption.xml" in self._entries:
            methods = self._xml("META-INF/encryption.xml").iterfind(".//{*}EncryptionMethod")
            protected = protected or any(each.get("Algorithm") not in _FONTS for each in methods)
        if protected:
            raise _wrong("it is protected against copying (DRM)")
        root = self._xml("META-INF/container.xml").find(".//{*}rootfile")
        self._path = _inside("", "" if root is None else root.get("full-path", ""))
        self._package = self._xml(self._path)
        self._items = {each.get("id", ""): each for each in self._package.iterfind(".//{*}item")}

    def book(self) -> Book:
        begins, chapters, left_out = self._contents(), ChapterList(), Counter[str]()
        for path in self._pages():
            own = {place: title for (at, place), title in begins.items() if at == path}
            if "" in own:
                chapters.begin(own.pop(""))
            page = Page(chapters.add, chapters.begin, own if begins else None)
            page.read(self._text(path))
            left_out += page.left_out
        title, language = (" ".join(self._said(name)[:1]) for name in ("title", "language"))
        return Book(
            chapters.all(), title, ", ".join(self._said("creator")), language, self._cover(), sentences_of(left_out)
        )

    def _said(self, name: str) -> list[str]:
        """What the package says of the book."""
        return [" ".join((each.text or "").split()) for each in self._package.iterfind(f".//{{*}}{name}")]

    def _pages(self) -> Iterator[str]:
        """The files of the text in their order, without the table of contents."""
        for reference in self._package.iterfind(".//{*}itemref"):
            item = self._items.get(reference.get("idref", ""))
            if item is None:
                raise _wrong("its spine names an item that it does not list")
            is_page = item.get("media-type") in ("application/xhtml+xml", "text/html") and not _has(item, "nav")
            if is_page and reference.get("linear") != "no":
                yield _inside(self._path, item.get("href", ""))

    def _contents(self) -> dict[tuple[str, str], str]:
        """The titles of chapters by file and `id` of the element where they begin; "": the beginning of the file."""
        found = dict[tuple[str, str], str]()
        for item in self._items.values():
            is_ncx = item.get("media-type") == "application/x-dtbncx+xml" and not found
            if (entries_of := _nav if _has(item, "nav") else _ncx if is_ncx else None) is not None:
                path = _inside(self._path, item.get("href", ""))
                own = dict[tuple[str, str], str]()
                for href, title in entries_of(self._xml(path)):
                    file, _, place = href.partition("#")
                    with suppress(InvalidArgument):  # one that leads out of the book is none of its chapters
                        own[_inside(path, file), unquote(place)] = " ".join(title.split())
                found = own or found
        return found

    def _cover(self) -> bytes | None:
        named = [each.get("content") for each in self._package.iterfind(".//{*}meta") if each.get("name") == "cover"]
        for id, item in self._items.items():
            is_cover = _has(item, "cover-image") or id in named
            if is_cover and item.get("media-type") in ("image/jpeg", "image/png"):
                return self._read(_inside(self._path, item.get("href", "")), MOST_ENTRY)
        return None

    def _xml(self, path: str) -> Element:
        text = self._text(path, MOST_XML)
        if "<!ENTITY" in text:
            raise _wrong("its XML declares entities")
        try:
            return ElementTree.fromstring(_NAMED.sub(_character, text))
        except ElementTree.ParseError as error:
            raise _wrong(f"{path} is no valid XML: {error}") from None

    def _text(self, path: str, most: int = MOST_ENTRY) -> str:
        data = self._read(path, most)
        try:
            return data.decode("utf-16" if data[:2] in (b"\xfe\xff", b"\xff\xfe") else "utf-8-sig")
        except UnicodeDecodeError:
            raise _wrong(f"{path} is neither UTF-8 nor UTF-16") from None

    def _read(self, path: str, most: int) -> bytes:
        """The bytes of an entry, of which no more are unpacked than it may have."""
        entry = self._entries.get(path)
        if entry is None:
            raise _wrong(f"it lacks {path!r}")
        most = min(most, self._left)
        with self._archive.open(entry) as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise _wrong(f"{path} is too large; at most {most >> 20} MiB of it are read")
        self._left -= len(data)
        return data


def _has(item: Element, property: str) -> bool:
    return property in item.get("properties", "").split()


def _nav(page: Element) -> Iterator[tuple[str, str]]:
    """The entries of the upper two levels of the table of contents of EPUB 3: links and titles."""
    for nav in page.iterfind(".//{*}nav"):
        for outer in nav.iterfind("./{*}ol/{*}li") if "toc" in nav.get(_TYPE, "").split() else ():
            for entry in (outer, *outer.iterfind("./{*}ol/{*}li")):
                if (link := entry.find("./{*}a")) is not None:
                    yield link.get("href", ""), "".join(link.itertext())


def _ncx(table: Element) -> Iterator[tuple[str, str]]:
    """The same of EPUB 2."""
    for outer in table.iterfind("./{*}navMap/{*}navPoint"):
        for entry in (outer, *outer.iterfind("./{*}navPoint")):
            content, label = entry.find("./{*}content"), entry.find("./{*}navLabel/{*}text")
            if content is not None and label is not None:
                yield content.get("src", ""), label.text or ""


def _character(named: re.Match[str]) -> str:
    """What stands for an HTML character reference, which XML does not know: pages have them without a declaration."""
    found = html5.get(f"{named[1]};")
    return named[0] if found is None else escape(found)


def _inside(base: str, href: str) -> str:
    """The path in the archive that a link in a file of it means.

    Raises:
        InvalidArgument: it leads out of the archive.
    """
    link = unquote(href.partition("#")[0])
    path = normpath(join(dirname(base), link)) if link else base
    if path.startswith(("/", "..")) or ":" in link.partition("/")[0]:
        raise _wrong(f"a link leads out of it: {href!r}")
    return path


def _wrong(problem: str) -> InvalidArgument:
    return InvalidArgument(f"the EPUB cannot be read: {problem}")
