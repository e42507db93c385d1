"""Values that pass between tasks, model wrappers and the evaluation: plain, frozen, free of torch.

Conventions, converted once when a dataset is loaded:
- boxes are (x0, y0, x1, y1), half-open, in pixels of the original image, page or frame (after EXIF orientation);
- frames are native 0-based frame indices of the video file; seconds are derived from them;
- pages are 0-based PDF page indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

PAGE_DPI = 144  # of PDF pages, where a task does not say
MediaKind = Literal["image", "video", "page"]
View = Literal["whole", "thumbnail", "tiles"]
TokenRole = Literal["cell", "newline", "marker", "text"]
Box = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Media:
    """One picture, video or PDF page that a prompt shows, by file path.

    `page` is the 0-based index of a PDF page (kind "page"). `span` limits a video to native frames
    [first, last); None means the whole file. `frames`: how many frames a video gives, evenly, where the run does not
    say. `subtitles`: path of its .srt file, for prompts that show them (core_bench/subtitles.py). `dpi`: dots per inch
    at which a PDF page is rendered; that of the task replaces it.
    """

    kind: MediaKind
    path: str
    page: int | None = None
    span: tuple[int, int] | None = None
    frames: int | None = None
    subtitles: str | None = None
    dpi: int = PAGE_DPI


@dataclass(frozen=True, kw_only=True)
class Region:
    """A piece of visual evidence: a box (None: the whole picture) in medium number `medium`, at native frame
    `frame`."""

    medium: int
    box: Box | None = None
    frame: int | None = None


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One item of a task. `question` is a substring of `prompt`, `phrase` one of `question`.

    `cluster` names the image, video or document that the item shares with others: standard errors are clustered by
    it, and detection and evaluation must not share one. `prime` is text put at the start of the model's answer.
    `defects`: what the task knows to be wrong with the record, by kind.
    """

    task: str
    id: str
    cluster: str
    media: tuple[Media, ...]
    prompt: str
    question: str
    target: Any
    phrase: str | None = None
    system: str | None = None
    prime: str = ""
    choices: tuple[str, ...] = ()
    evidence: tuple[Region, ...] = ()
    defects: tuple[str, ...] = ()
    doc: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class VisualBlock:
    """One contiguous run of visual tokens in `input_ids`: a grid of `rows` x `cols` cells, in raster order.

    The token of cell (r, c) stands at `start + r * row_stride + c`. A point (x, y) in original pixels lies in cell
    coordinates (x * scale_x + offset_x, y * scale_y + offset_y). `frames` are the native frames merged into this
    block (empty for pictures). `view` says how the block shows its medium: "whole", alone; "thumbnail", whole but
    reduced, beside tiles; "tiles", one tile or several joined in one grid. A block of tiles may show a part of the
    medium only, and its outermost cells may reach beyond the medium (padding).
    """

    medium: int
    start: int
    rows: int
    cols: int
    row_stride: int
    scale_x: float
    scale_y: float
    offset_x: float = 0.0
    offset_y: float = 0.0
    frames: tuple[int, ...] = ()
    seconds: float | None = None
    view: View = "whole"

    def positions(self) -> list[int]:
        """Token positions of all cells, in raster order."""
        return [self.start + r * self.row_stride + c for r in range(self.rows) for c in range(self.cols)]


@dataclass(frozen=True, kw_only=True)
class TokenMap:
    """Where every visual token of one prompt came from. `length` is the number of prompt tokens.

    `newlines`: positions of tokens among the visual ones that stand for no place, such as LLaVA's at the end of every
    row. `markers`: positions of the tokens that open or close a piece of a medium.
    """

    blocks: tuple[VisualBlock, ...]
    length: int
    newlines: tuple[int, ...] = ()
    markers: tuple[int, ...] = ()

    @property
    def n_visual(self) -> int:
        """Cells of all blocks, without newlines and markers."""
        return sum(block.rows * block.cols for block in self.blocks)

    def roles(self) -> tuple[TokenRole, ...]:
        """What every position of the prompt is. RuntimeError where two claim one position or one lies outside."""
        roles: list[TokenRole] = ["text"] * self.length
        cells = [position for block in self.blocks for position in block.positions()]
        claims: tuple[tuple[TokenRole, Sequence[int]], ...] = (
            ("cell", cells),
            ("newline", self.newlines),
            ("marker", self.markers),
        )
        for role, positions in claims:
            for position in positions:
                if not 0 <= position < self.length or roles[position] != "text":
                    raise RuntimeError(f"position {position} of {self.length}: no place of its own for a {role}")
                roles[position] = role
        return tuple(roles)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Model inputs for one sample (batch of one), with its token map.

    `spans` maps a query rule ("question", "phrase", "last") to sorted token positions in the prompt; a rule that the
    sample cannot serve is absent. `frames` holds, per medium, the native frame indices that were really read (empty
    for pictures), `fps` the file's average frame rate (None for pictures), `seconds` when each of the frames is shown,
    for files of variable rate (empty for others).
    """

    inputs: Mapping[str, Any]
    token_map: TokenMap
    spans: Mapping[str, tuple[int, ...]]
    frames: tuple[tuple[int, ...], ...] = ()
    fps: tuple[float | None, ...] = ()
    seconds: tuple[tuple[float, ...], ...] = ()

    def to_row(self) -> dict[str, Any]:
        """What a row of samples.jsonl says of the prompt; `fps` and `seconds` only where they say something."""
        row: dict[str, Any] = {
            "tokens": {"prompt": self.token_map.length, "visual": self.token_map.n_visual},
            "frames": [list(frames) for frames in self.frames],
        }
        if any(self.fps):
            row["fps"] = list(self.fps)
        if any(self.seconds):
            row["seconds"] = [[round(second, 3) for second in seconds] for seconds in self.seconds]
        return row
