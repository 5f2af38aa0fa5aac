"""Books from files: their chapters and paragraphs, what is left out, and files that are refused."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any

import pytest
from voice_clone_client import InvalidArgument
from voice_clone_command.books.book import Book
from voice_clone_command.books.epub import MOST_ENTRIES, MOST_ENTRY, MOST_UNPACKED, MOST_XML
from voice_clone_command.books.pages import MOST_PAGE
from voice_clone_command.books.reading import read_book

from tests.support.book_files import CONTAINER, NAV, PACKAGE, PAGE, entries, epub, png

ENCRYPTION = '<encryption xmlns:e="http://www.w3.org/2001/04/xmlenc#"><e:EncryptionMethod Algorithm="{}"/></encryption>'


def read(text: str, suffix: str) -> Book:
    return read_book(text.encode(), f"The File{suffix}")


def spoken(book: Book) -> list[tuple[str, list[str]]]:
    return [(chapter.title, chapter.paragraphs) for chapter in book.chapters]


@pytest.mark.parametrize(
    ("text", "chapters"),
    [
        ("One\nline.\n\nTwo.", [("The File", ["One line.", "Two."])]),
        ("One\nTwo\n", [("The File", ["One", "Two"])]),
        ("A\n\fB\n\f\n\f***\n", [("The File", ["A"]), ("The File", ["B"])]),
        (
            "Before.\n\nChapter 1: The Sea\n\nIt was calm.\n\nCHAPTER TWO\nIt was not.",
            [
                ("The File", ["Before."]),
                ("Chapter 1: The Sea", ["Chapter 1: The Sea", "It was calm."]),
                ("CHAPTER TWO", ["CHAPTER TWO", "It was not."]),
            ],
        ),
        (
            "Part I\n\nChapter 1\n\nYes.\n\nKapitel 2\n\nNo.",
            [("Chapter 1", ["Part I", "Chapter 1", "Yes."]), ("Kapitel 2", ["Kapitel 2", "No."])],
        ),
        ("Chapter 7 was long.\n\nIt ended.", [("The File", ["Chapter 7 was long.", "It ended."])]),
        ("第一章 海\n\n海很平静。", [("第一章 海", ["第一章 海", "海很平静。"])]),
    ],
)
def test_plain_text(text: str, chapters: list[Any]) -> None:
    book = read(text, ".txt")
    assert spoken(book) == chapters and book.title == "The File"


def test_markdown() -> None:
    book = read(
        "---\ntitle: 'The Sea'\nauthor: Ada\nlang: en\nother: x\n---\nBefore.\n\n# Part\n\n## *One* & `two`\n\n"
        "A [link](http://x) and ![a picture](p.png)\nthe rest.  \nA line.\n\n### Below\n\n- item\n- other\n\n"
        "```\ncode\n```\n\n| a | b |\n|---|---|\n| c | d |\n\nThree\n=====\n\n<p>Raw &eacute;.</p>\n",
        ".md",
    )
    assert (book.title, book.author, book.language) == ("The Sea", "Ada", "en")
    assert spoken(book) == [
        ("The Sea", ["Before."]),
        ("One & two", ["Part", "One & two", "A link and the rest.\nA line.", "Below", "item", "other"]),
        ("Three", ["Three", "Raw é."]),
    ]
    assert book.warnings == ("blocks of code are left out: 1", "tables are left out: 1")


def test_html() -> None:
    book = read(
        "<!DOCTYPE html><html lang=de><head><meta name=author content='Ada B'><title>The\n Sea</title><style>x</style>"
        "<body><nav><a>Menu</a></nav><h1>One</h1><p>A<p>B<br>C<script>if (a < b) {}</script> D"
        "<h2>Two</h2>E <ruby>F<rp>(<rt>f</rt><rp>)</ruby><div hidden>G<div>H</div></div>"
        "<aside role=doc-footnote>I</aside>J<svg><title>K</title></svg>"
        "<p>L<sup><a epub:type=noteref>1</a></sup>.</p>&lt;M&gt;&#233;</html>",
        ".html",
    )
    assert (book.title, book.author, book.language) == ("The Sea", "Ada B", "de")
    assert spoken(book) == [
        ("One", ["One", "A", "B\nC D"]),
        ("Two", ["Two", "E F", "J", "L.", "<M>é"]),
    ]


@pytest.mark.parametrize(
    ("text", "paragraphs"),
    [
        ("<p hidden>A<p>B", ["B"]),
        ("<div><p hidden>A<b>B</b></div>C", ["C"]),
        ("<p hidden>A<table><tr><td>B</table>C", ["C"]),
        ("<ul><li hidden>A<ul><li>B<li>C</ul>D<li>E</ul>F", ["E", "F"]),
        ("<dl><dt hidden>A<dd>B</dl>C", ["B", "C"]),
        ("<dl><dt>A<dd hidden>B</dl>C", ["A", "C"]),
        ("<table><tr><td>A<p>B<td>C<tr><td>D</table>E", ["E"]),
        ("<div hidden>A<p>B<div>C</div>D</i></div>E", ["E"]),
        ("<p>A<ruby>B<rp>(<rt>C<rp>)</ruby>D", ["ABD"]),
    ],
)
def test_end_tags_may_be_left_out(text: str, paragraphs: list[str]) -> None:
    book = read(text, ".html")
    assert spoken(book) == [("The File", paragraphs)] and not any("ends" in warning for warning in book.warnings)


@pytest.mark.parametrize(
    "text",
    [
        "<p>A<template>B<p>C</p>",
        "<p>A<table><tr><td>B</td></tr><p>C",
        "A<script>B",
        "<p>A<!-- B<p>C",
        "<p>A<b title='B>C</b><p>D",
        pytest.param(f"<p>A{'<a ' * 300_000}", id="tags"),  # hours, if each of them is looked at alone
        pytest.param(f"<p>A{'<!--' * 300_000}", id="comments"),
    ],
)
def test_what_an_element_without_end_swallows_is_said(text: str) -> None:
    book = read(text, ".html")
    assert spoken(book) == [("The File", ["A"])]
    assert "ends of pages, behind an element or a tag without an end, are left out: 1" in book.warnings


def test_epub() -> None:
    book = read_book(epub(entries()), "x.epub")
    assert (book.title, book.author, book.language) == ("The Sea", "Ada Łódź, Ben", "en-GB")
    assert book.cover == png(8, 8)
    assert spoken(book) == [
        ("One & only", ["Chapter the first", "It was a calm sea."]),
        ("Two", ["Of two."]),
        ("Three", ["Of three.", "Of it, too."]),
    ]


def test_contents_with_links_elsewhere_and_with_names_of_characters() -> None:
    """As pages of the web have them."""
    nav = NAV.replace("text/c.xhtml#three", "https://example.com/#x").replace("&amp; only", "&nbsp;&amp;&lt;&rsquo;")
    book = read_book(epub(entries(nav=nav)), "x.epub")
    assert [chapter.title for chapter in book.chapters] == ["One &<’", "Two"]
    assert spoken(book)[-1][1][-1] == "Of it, too."
    for outside in ("../../x", "/etc/passwd", "file:///etc/passwd"):
        book = read_book(epub(entries(nav=NAV.replace("text/c.xhtml#three", outside))), "x.epub")
        assert [chapter.title for chapter in book.chapters][-1] == "Two"


def test_epub_2_and_one_without_contents() -> None:
    package = PACKAGE.replace('properties="nav"', "")
    book = read_book(epub(entries(package=package, nav=PAGE.format(""))), "x.epub")
    assert [chapter.title for chapter in book.chapters] == ["One by NCX", "Two by NCX"]
    package = package.replace("application/x-dtbncx+xml", "text/plain")
    book = read_book(epub(entries(package=package, nav=PAGE.format(""))), "x.epub")
    assert [chapter.title for chapter in book.chapters] == ["Chapter the first"]


def test_fonts_may_be_obfuscated() -> None:
    fonts = ENCRYPTION.format("http://www.idpf.org/2008/embedding")
    assert read_book(epub(entries(encryption=fonts)), "x.epub").title == "The Sea"


BOMB = f'<!DOCTYPE x [<!ENTITY a "{"x" * 1000}">' + "".join(
    f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("hostile", "words"),
    [
        ({"package": f"{BOMB}]><package>&i;</package>"}, "entities"),
        ({"package": '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><package>&a;</package>'}, "entities"),
        ({"package": PACKAGE + "<a/>" * (MOST_XML // 4)}, "4 MiB"),
        ({"package": (BOMB + "]><package>&i;</package>").encode("utf-16")}, "entities"),
        ({"package": "<package>"}, "no valid XML"),
        ({"package": PACKAGE.replace("text/c.xhtml", "../../../etc/passwd")}, "leads out"),
        ({"package": PACKAGE.replace("text/c.xhtml", "/etc/passwd")}, "leads out"),
        ({"package": PACKAGE.replace("text/c.xhtml", "file:///etc/passwd")}, "leads out"),
        ({"package": PACKAGE.replace("text/c.xhtml", "%2e%2e/%2e%2e/etc/passwd")}, "leads out"),
        ({"container": CONTAINER.replace("OEBPS/book.opf", "../book.opf")}, "leads out"),
        ({"container": "<container/>"}, "lacks"),
        ({"container": None}, "lacks"),
        ({"c": None}, "lacks"),
        ({"a": "x" * (MOST_ENTRY + 1)}, "32 MiB"),
        ({"a": "x" * (MOST_PAGE + 1)}, f"{MOST_PAGE:,}"),
        ({"a": b"\xff\xfe\x00\xd8", "c": b"\xc3"}, "UTF-8"),
        ({"rights": "<rights/>"}, "DRM"),
        ({"encryption": ENCRYPTION.format("http://www.w3.org/2001/04/xmlenc#aes128-cbc")}, "DRM"),
        ({f"x{number}": "" for number in range(MOST_ENTRIES)}, str(MOST_ENTRIES)),
    ],
)
def test_hostile_epubs_are_refused(hostile: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        read_book(epub(entries(**hostile)), "x.epub")


def test_archives_that_lie() -> None:
    """Sizes that are no true ones, bytes that are none of deflate, a flag for encryption, another kind of packing."""
    good = epub(entries())
    at = good.index(b"PK\1\2", good.index(b"PK\1\2") + 4)  # of the container
    lies = [b"", b"PK", good[:-30], good[: len(good) // 2], bytes(5000)]
    for offset, value in ((8, 1), (10, 12), (24, 7), (42, 0xFFFFFFF)):
        form = "<H" if offset < 16 else "<I"
        lies.append(good[: at + offset] + struct.pack(form, value) + good[at + offset + struct.calcsize(form) :])
    for lie in lies:
        with pytest.raises(InvalidArgument):
            read_book(lie, "x.epub")


def test_a_bomb_in_many_entries_is_refused() -> None:
    items = "".join(f'<item id="x{n}" href="x{n}.xhtml" media-type="application/xhtml+xml"/>' for n in range(40))
    spine = "".join(f'<itemref idref="x{n}"/>' for n in range(40))
    package = PACKAGE.replace("</manifest>", items + "</manifest>").replace("</spine>", spine + "</spine>")
    file = io.BytesIO(epub(entries(package=package)))
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        for number in range(40):
            archive.writestr(f"OEBPS/x{number}.xhtml", " " * MOST_PAGE)
    assert 40 * MOST_PAGE > MOST_UNPACKED and len(file.getvalue()) < 1 << 20
    with pytest.raises(InvalidArgument, match="too large"):
        read_book(file.getvalue(), "x.epub")


@pytest.mark.parametrize(
    ("data", "name", "words"),
    [
        (b"* * *", "x.txt", "letter or digit"),
        (b"\xff\xfe\xff", "x.md", "UTF-8"),
        (b"<p>A<![x[B", "x.html", "section"),
        (b"A" * (MOST_PAGE + 1), "x.html", f"{MOST_PAGE:,}"),
        (b"x", "x.pdf", ".epub"),
        (epub(entries(a=PAGE.format(""), c=PAGE.format(""))), "x.epub", "letter or digit"),
    ],
)
def test_files_that_are_no_books(data: bytes, name: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        read_book(data, name)
