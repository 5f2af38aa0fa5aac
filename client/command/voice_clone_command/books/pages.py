"""From HTML to what is spoken: headings, paragraphs, and places at which chapters begin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from html.parser import HTMLParser

from voice_clone_client.errors import InvalidArgument

MOST_PAGE = 8_000_000
"""Characters of a page."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BLOCKS = _words(
    "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure "
    "footer form h1 h2 h3 h4 h5 h6 header hr html li main ol p section summary ul"
)
_SILENT = _words("audio canvas iframe math nav object rp rt script style svg template title video")
_LEFT_OUT = {"pre": "blocks of code", "table": "tables"}
_NOTES = _words(
    "annotation doc-endnote doc-endnotes doc-footnote doc-noteref doc-pagebreak doc-toc endnote endnotes footnote "
    "footnotes landmarks noteref page-list pagebreak rearnote rearnotes toc"
)
"""Of EPUB's `epub:type`, and of the attribute `role`."""
_LINES = _words("td th tr")
_STRUCTURE = _BLOCKS | _LINES | _words("table tbody thead tfoot ruby rp rt")
_ENDS = {
    "p": (_BLOCKS | _LINES | {"table", "pre"}) - {"body", "caption", "html"},
    **dict.fromkeys(("dd", "dt"), _words("dd dt")),
    **dict.fromkeys(("rp", "rt"), _words("rp rt")),
    **dict.fromkeys(("td", "th"), _LINES),
    "tr": _words("tr tbody tfoot"),
    "li": _words("li"),
}
"""Elements whose end tag may be left out, and the start tags that end each. So does the end of what it is in."""
_UNENDED = "ends of pages, behind an element or a tag without an end,"
_DEEPEST = 512
_VOID = _words("area base br col embed hr img input link meta param source track wbr")


class Page(HTMLParser):
    """Reads a page.

    Args:
        paragraph: called with each paragraph, and whether it is a heading.
        begin: called with the title where a chapter begins.
        begins: titles of chapters by the `id` of the element where they begin; None: at headings of level 1 and 2.
    """

    def __init__(
        self,
        paragraph: Callable[[str, bool], None],
        begin: Callable[[str], None],
        begins: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(convert_charrefs=True)
        self._paragraph, self._begin, self._begins = paragraph, begin, begins
        self._text: list[str] = []
        self._level = 0  # of the heading that is read
        self._muted: list[str] = []  # the element whose content is not spoken, and what is open in it
        self.left_out = Counter[str]()
        """How many elements of a kind were left out."""
        self.about = {"title": "", "author": "", "language": ""}
        """What the page says of itself."""

    def read(self, text: str) -> None:
        """Read all of it.

        Raises:
            InvalidArgument: it is too large, or has what HTML has not.
        """
        if len(text) > MOST_PAGE:
            raise InvalidArgument(f"a page of HTML is too large; at most {MOST_PAGE:,} characters are read")
        try:
            self.feed(text)
        except AssertionError as error:  # of a section such as <![X[
            raise InvalidArgument(f"a page of HTML cannot be read: {error}") from None
        # What remains is a tag or a comment without its end, which no browser shows. The parser would look for that end
        # from each "<" in it, so in quadratic time.
        unended = self.rawdata.startswith("<")
        if not unended:
            self.close()
        if unended or (self._muted and self._muted[0] not in _ENDS):
            self.left_out[_UNENDED] += 1
        self._end_block()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "html":
            self.about["language"] = given.get("lang") or given.get("xml:lang", "")
        if tag == "meta" and given.get("name", "").lower() == "author":
            self.about["author"] = " ".join(given.get("content", "").split())
        while self._muted and tag in _ENDS.get(self._muted[-1], ()):
            self._muted.pop()
        if self._muted:
            if (tag in _STRUCTURE or tag == self._muted[0]) and tag not in _VOID and len(self._muted) < _DEEPEST:
                self._muted.append(tag)
            return
        if self._begins is not None and (title := self._begins.get(given.get("id", ""))) is not None:
            self._end_block()
            self._begin(title)
        kinds = {*given.get("epub:type", "").split(), *given.get("role", "").split()}
        if tag in _SILENT or tag in _LEFT_OUT or kinds & _NOTES or "hidden" in given:
            if tag not in _VOID:
                self._muted.append(tag)
            if tag in _LEFT_OUT:
                self.left_out[_LEFT_OUT[tag]] += 1
        if tag in _BLOCKS or tag in _LEFT_OUT:
            self._end_block()
            self._level = int(tag[1]) if tag in ("h1", "h2", "h3", "h4", "h5", "h6") else self._level
        elif tag == "br":
            self._text.append("\n")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._muted:
            while self._muted.pop() != tag:
                pass
        elif self._muted and self._muted[0] in _ENDS and tag in _STRUCTURE:  # of what the muted element is in
            self._muted.clear()
        if not self._muted and tag in _BLOCKS:
            self._end_block()

    def handle_data(self, data: str) -> None:
        if self._muted == ["title"]:
            self.about["title"] += data
        elif not self._muted:
            self._text.append(" ".join(f".{data}.".split())[1:-1])  # of white space at the edges one stays

    def _end_block(self) -> None:
        lines = "".join(self._text).split("\n")
        paragraph = "\n".join(filter(None, (" ".join(line.split()) for line in lines)))
        level, self._level = self._level, 0
        self._text.clear()
        if not paragraph:
            return
        if self._begins is None and level in (1, 2):
            self._begin(" ".join(paragraph.split()))
        self._paragraph(paragraph, level > 0)


def sentences_of(left_out: Mapping[str, int]) -> tuple[str, ...]:
    """What `Page.left_out` says, as sentences."""
    return tuple(f"{kind} are left out: {count}" for kind, count in left_out.items())
