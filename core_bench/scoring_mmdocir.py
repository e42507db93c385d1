"""MMDocIR's recall of pages and of layouts, and what a ranking by heads says.

Source: Dong et al., "MMDocIR" (2025), section 5.1. Page recall@k is the share of the true pages among the first k.
Layout recall@k is the area that the first k boxes share with the true ones, summed over all pairs on one page, divided
by the area of the true ones: where boxes overlap it exceeds 1. `capped` is it, cut at 1.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

PAGE_KS = (1, 3, 5)
LAYOUT_KS = (1, 5, 10)

Layout = tuple[int, Sequence[float]]  # page, and (x0, y0, x1, y1) in the units of the page


def page_recall(ranked: Sequence[int], true: Collection[int], k: int) -> float:
    """Share of the distinct true pages among the first k; ValueError without a true page."""
    wanted = set(true)
    if not wanted:
        raise ValueError("page_id: expected a page, got none")
    return len(wanted & set(ranked[:k])) / len(wanted)


def layout_recall(ranked: Sequence[Layout], true: Sequence[Layout], k: int) -> float | None:
    """Shared area over true area, not capped; None where the true boxes have no area."""
    whole = sum(_area(box) for _, box in true)
    if whole <= 0:
        return None
    return sum(_shared(one, other) for one in ranked[:k] for other in true) / whole


def _area(box: Sequence[float]) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def _shared(one: Layout, other: Layout) -> float:
    if one[0] != other[0]:
        return 0.0
    (a0, b0, a1, b1), (c0, d0, c1, d1) = one[1], other[1]
    return _area((max(a0, c0), max(b0, d0), min(a1, c1), min(b1, d1)))


def write_ranking(ranked: Mapping[str, Sequence[Any]]) -> str:
    """The first labels of each kind as one line: what a run records as the prediction."""
    most = {"pages": PAGE_KS[-1], "layouts": LAYOUT_KS[-1]}
    return json.dumps({kind: list(labels[: most[kind]]) for kind, labels in ranked.items()}, separators=(",", ":"))


def read_ranking(text: str) -> tuple[list[int], list[Layout]] | None:
    """Pages and layouts of a line that `write_ranking` wrote; None for any other text."""
    try:
        found = json.loads(text)
        pages = [page for page in found["pages"] if isinstance(page, int)]
        boxes = found.get("layouts", [])
        layouts: list[Layout] = [(int(page), [float(edge) for edge in edges]) for page, *edges in boxes]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    if len(pages) != len(found["pages"]) or any(len(box) != 4 for _, box in layouts):
        return None
    return pages, layouts
