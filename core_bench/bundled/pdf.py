"""Writes generated documents as PDF files: text in Helvetica, the panel of figures as a lossless image.

A writer of its own, because the libraries at hand do not give the same bytes twice: PDFium's own save adds a random
/ID to every file. A page is half as many points wide and high as pixels, so that rendering at 144 dpi gives the
pixels that were drawn.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from core_bench.bundled.pages import FONT_PIXELS, Line, Page

PIXELS_PER_POINT = 2  # at 144 dpi
FONT_POINTS = (FONT_PIXELS - 2) / PIXELS_PER_POINT
_BASELINE = 11  # pixels below the upper edge of a line
_CATALOG, _PAGES, _FONT, _FIRST_FREE = 1, 2, 3, 4
_PER_PAGE = 3  # objects: the page, its content, its panel
_ESCAPES = str.maketrans({"\\": r"\\", "(": r"\(", ")": r"\)"})


def pdf_bytes(pages: Sequence[Page]) -> bytes:
    """A PDF 1.4 file with these pages: the same bytes for the same pages (and the same zlib). Texts must be Latin-1."""
    firsts = [_FIRST_FREE + _PER_PAGE * number for number in range(len(pages))]
    kids = " ".join(f"{first} 0 R" for first in firsts)
    objects = {
        _CATALOG: f"<< /Type /Catalog /Pages {_PAGES} 0 R >>".encode(),
        _PAGES: f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        _FONT: b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    }
    for first, page in zip(firsts, pages, strict=True):
        objects |= _page_objects(first, page)
    return _file(objects)


def _page_objects(first: int, page: Page) -> dict[int, bytes]:
    height, width = page.pixels.shape[:2]
    box = f"[0 0 {width / PIXELS_PER_POINT:g} {height / PIXELS_PER_POINT:g}]"
    resources = f"<< /Font << /F {_FONT} 0 R >> /XObject << /Panel {first + 2} 0 R >> >>"
    sheet = f"<< /Type /Page /Parent {_PAGES} 0 R /MediaBox {box} /Resources {resources} /Contents {first + 1} 0 R >>"
    x0, y0, x1, y1 = (int(edge) for edge in page.panel)
    image = f"/Type /XObject /Subtype /Image /Width {x1 - x0} /Height {y1 - y0} /ColorSpace /DeviceRGB"
    return {
        first: sheet.encode(),
        first + 1: _stream("", _content(page).encode("latin-1")),
        first + 2: _stream(f"{image} /BitsPerComponent 8 ", page.pixels[y0:y1, x0:x1].tobytes()),
    }


def _content(page: Page) -> str:
    """The operators that paint a page; PDF counts upwards from the lower left corner."""
    height = page.pixels.shape[0]
    x0, y0, x1, y1 = page.panel
    placed = (x1 - x0, 0, 0, y1 - y0, x0, height - y1)
    matrix = " ".join(f"{value / PIXELS_PER_POINT:g}" for value in placed)
    return "\n".join([f"q {matrix} cm /Panel Do Q", "BT", f"/F {FONT_POINTS:g} Tf", *_texts(page.lines, height), "ET"])


def _texts(lines: Sequence[Line], height: int) -> list[str]:
    return [
        f"1 0 0 1 {line.x / PIXELS_PER_POINT:g} {(height - line.y - _BASELINE) / PIXELS_PER_POINT:g} Tm "
        f"({line.text.translate(_ESCAPES)}) Tj"
        for line in lines
    ]


def _stream(entries: str, content: bytes) -> bytes:
    packed = zlib.compress(content, 9)
    head = f"<< {entries}/Filter /FlateDecode /Length {len(packed)} >>\nstream\n"
    return head.encode() + packed + b"\nendstream"


def _file(objects: dict[int, bytes]) -> bytes:
    """Header, numbered objects, and the table of their places that a reader starts from."""
    out = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")  # bytes above 127: tells transfer programs that this is no text
    places = []
    for number in sorted(objects):
        places.append(len(out))
        out += b"%d 0 obj\n" % number + objects[number] + b"\nendobj\n"
    table = len(out)
    size = len(objects) + 1
    out += b"xref\n0 %d\n0000000000 65535 f \n" % size
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root %d 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, _CATALOG, table)
    return bytes(out)
