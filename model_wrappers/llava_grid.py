"""How LLaVA-OneVision's tokens lie on a picture, one axis at a time, in exact fractions.

Where patches do not fill a tile (384 pixels are 27 patches of 14, and 6 pixels more), its last pixels reach no token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Span:
    """Neighbouring cells of one axis of a grid: `cells` of them, the first is number `first` of the grid.

    Pixel coordinate p of the medium lies at p * scale + offset, in cells counted from the first.
    """

    first: int
    cells: int
    scale: Fraction
    offset: Fraction


@dataclass(frozen=True)
class Tile:
    """A square of `pixels` x `pixels`, which the vision tower cuts into patches of `patch` x `patch`."""

    pixels: int
    patch: int

    @property
    def side(self) -> int:
        """Tokens along one side."""
        return self.pixels // self.patch

    def whole(self, extent: int) -> Span:
        """An axis of `extent` pixels squeezed into one tile."""
        return Span(0, self.side, Fraction(self.pixels, self.patch * extent), Fraction(0))

    def pooled(self, extent: int) -> Span:
        """The same, the tokens then interpolated to half as many (rounded up)."""
        cells = math.ceil(self.side / 2)
        return Span(0, cells, self.whole(extent).scale * cells / self.side, Fraction(0))

    def centred(self, extent: int, square: int) -> Span:
        """An axis of `extent` pixels, padded to `square` pixels on both sides and squeezed into one tile; cells that
        show nothing but padding are left out."""
        scale = self.whole(square).scale
        low = (square - extent) // 2 * scale
        first, end = math.floor(low), min(self.side, math.ceil(low + extent * scale))
        return Span(first, end - first, scale, low - first)

    def joined(self, extent: int, resized: int, tiles: int, kept: int, cells: int) -> list[Span]:
        """An axis of `extent` pixels, `resized` and centred on `tiles` tiles in a row; of the cells of these, the
        middle ones are `kept`, and these then interpolated to `cells`.

        One span where patches fill a tile. Else one a tile, as the last pixels of each are in no cell; but an
        interpolated cell may mix two tiles, so there it is one span again, in which these gaps are spread evenly: a
        cell is off by up to half a gap.
        """
        if not cells:
            return []
        padding, paste = (tiles * self.side - kept) // 2, (tiles * self.pixels - resized) // 2
        gap = self.pixels - self.side * self.patch
        if gap and cells == kept:
            spans = []
            for number in range(tiles):
                first, end = max(padding, number * self.side), min(padding + kept, (number + 1) * self.side)
                offset = Fraction(paste - number * self.pixels, self.patch) + number * self.side - first
                spans.append(Span(first - padding, end - first, Fraction(resized, extent * self.patch), offset))
            return [span for span in spans if span.cells > 0]
        density = Fraction(self.side, self.pixels)  # cells a pixel, gaps included
        late = density * gap / 2  # on average, so much later does a pixel's cell come than if there were no gaps
        reduced = Fraction(cells, kept)
        return [Span(0, cells, density * reduced * resized / extent, (paste * density + late - padding) * reduced)]
