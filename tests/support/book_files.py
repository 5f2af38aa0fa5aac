"""Files of books for tests: a picture, and EPUBs, good and hostile."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping

CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
)
PACKAGE = """<?xml version="1.0"?>
<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/" version="3.0">
<metadata><dc:title>The Sea</dc:title><dc:creator>Ada Łódź</dc:creator><dc:creator>Ben</dc:creator>
<dc:language>en-GB</dc:language><meta name="cover" content="pic"/></metadata>
<manifest>
<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>
<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>
<item id="pic" href="images/cover.png" media-type="image/png"/>
<item id="a" href="text/a%20b.xhtml" media-type="application/xhtml+xml"/>
<item id="c" href="text/c.xhtml" media-type="application/xhtml+xml"/>
<item id="notes" href="text/notes.xhtml" media-type="application/xhtml+xml"/>
</manifest>
<spine toc="ncx"><itemref idref="nav"/><itemref idref="a"/><itemref idref="c"/>
<itemref idref="notes" linear="no"/></spine>
</package>"""
NAV = """<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"><body>
<nav epub:type="landmarks"><ol><li><a href="text/c.xhtml">Not this</a></li></ol></nav>
<nav epub:type="toc"><h1>Contents</h1><ol>
<li><a href="text/a%20b.xhtml"><span>One</span> &amp; only</a></li>
<li><a href="text/c.xhtml">Two</a><ol><li><a href="text/c.xhtml#three">Three</a>
<ol><li><a href="text/c.xhtml#deep">Too deep</a></li></ol></li></ol></li>
</ol></nav></body></html>"""
NCX = """<!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "http://www.daisy.org/z3986/2005/ncx-2005-1.dtd">
<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap>
<navPoint><navLabel><text>One by NCX</text></navLabel><content src="text/a%20b.xhtml"/></navPoint>
<navPoint><navLabel><text>Two by NCX</text></navLabel><content src="text/c.xhtml"/></navPoint>
</navMap></ncx>"""
PAGE = '<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title>No</title></head><body>{}</body></html>'


def png(width: int, height: int) -> bytes:
    """A picture of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x80\x20\x10" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def entries(**others: str | bytes | None) -> dict[str, str | bytes]:
    """The entries of an EPUB; `others` replace those of these names, None leaves one out."""
    named: dict[str, str | bytes | None] = {
        "container": CONTAINER,
        "package": PACKAGE,
        "nav": NAV,
        "ncx": NCX,
        "cover": png(8, 8),
        "a": PAGE.format("<h1>Chapter the first</h1><p>It was a <b>calm</b> sea.</p>"),
        "c": PAGE.format('<p>Of two.</p><div id="three"><p>Of three.</p><h3 id="deep">Of it, too.</h3></div>'),
        "notes": PAGE.format("<p>A note.</p>"),
        **others,
    }
    return {_PATHS.get(name, name): value for name, value in named.items() if value is not None}


_PATHS = {
    "container": "META-INF/container.xml",
    "encryption": "META-INF/encryption.xml",
    "rights": "META-INF/rights.xml",
    "package": "OEBPS/book.opf",
    "nav": "OEBPS/nav.xhtml",
    "ncx": "OEBPS/toc.ncx",
    "cover": "OEBPS/images/cover.png",
    "a": "OEBPS/text/a b.xhtml",
    "c": "OEBPS/text/c.xhtml",
    "notes": "OEBPS/text/notes.xhtml",
}


def epub(contents: Mapping[str, str | bytes]) -> bytes:
    """An archive of these entries."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        for name, content in contents.items():
            archive.writestr(name, content)
    return file.getvalue()
