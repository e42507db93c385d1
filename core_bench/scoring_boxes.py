"""Boxes that a model writes into its answer, and referring expression comprehension (REC) by them.

A family writes boxes in one kind of coordinates, which its wrapper names (`BOXES`) and the record repeats:

- `thousandths`: 0 to 1000 of the picture's width and height (Qwen3-VL, InternVL);
- `shares`: 0 to 1 of them;
- `pixel`: pixels of the original picture.

An answer is read in these alone. Reading it in several and keeping what fits the truth best would favour any model.
"""

from __future__ import annotations

import math
import re

from core_bench.metrics import acc_at_iou
from core_bench.schema import Box

_SCALES = {"thousandths": 1000.0, "shares": 1.0}
CONVENTIONS = (*_SCALES, "pixel")
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)"
# Between two numbers of a box: a comma, or the brackets of "(x0, y0), (x1, y1)".
_GAP = r"\s*(?:[\])]\s*,?\s*[\[(]|,|\s)\s*"
_FOUR = rf"({_NUMBER}){_GAP}({_NUMBER}){_GAP}({_NUMBER}){_GAP}({_NUMBER})"
BOX_PATTERN = re.compile(rf"[\[(]\s*{_FOUR}\s*[\])]")
_BARE = re.compile(rf"\s*{_FOUR}\s*\.?\s*")


def read_box(text: str) -> Box | None:
    """The four numbers, as written, of the only box in a text; None for none and for different ones.

    A box is four numbers in brackets, also as two points ("(10, 20), (30, 40)"), or a text of four numbers alone.
    """
    found = {match.groups() for match in BOX_PATTERN.finditer(text)}
    if not found and (bare := _BARE.fullmatch(text)):
        found = {bare.groups()}
    boxes = {(float(a), float(b), float(c), float(d)) for a, b, c, d in found}
    if len(boxes) != 1:
        return None
    box = boxes.pop()
    return box if all(map(math.isfinite, box)) else None


def in_pixels(box: Box, convention: str, size: tuple[int, int]) -> Box:
    """A box in a family's coordinates as pixels of a picture of `size` (width, height)."""
    if convention not in CONVENTIONS:
        raise ValueError(f"convention: expected one of {', '.join(CONVENTIONS)}, got {convention!r}")
    if convention == "pixel":
        return box
    across, down = (side / _SCALES[convention] for side in size)
    return box[0] * across, box[1] * down, box[2] * across, box[3] * down


def rec(text: str, convention: str, size: tuple[int, int], target: Box) -> tuple[float, bool]:
    """Acc@0.5 of one answer: 1 if its box has an IoU of at least 0.5 with the target, and whether it was unreadable.

    No box, several, or one without area: IoU 0, unparsed. The mean over expressions is the Acc@0.5 of REC (Yu et al.,
    "Modeling Context in Referring Expressions", 2016: correct where IoU is above 0.5; later work counts 0.5 too).
    """
    said = read_box(text)
    return acc_at_iou(None if said is None else in_pixels(said, convention, size), target)
