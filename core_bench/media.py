"""Reading pictures, PDF pages and videos from disk, so that boxes and frame numbers of annotations fit what is read.

Every reader returns 8-bit RGB pictures and raises `SampleError` with one line that names the file when it cannot.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
import pypdfium2
from PIL import Image, ImageOps

from core_bench.errors import SampleError
from core_bench.schema import PAGE_DPI, Media
from core_bench.videofile import VideoInfo, first_line, must_exist, read_frames, sample_indices, video_info

__all__ = [
    "DEFAULT_FRAMES", "PAGE_DPI", "VideoInfo", "Visual", "load_image", "load_page", "page_sizes", "read_frames",
    "read_visual", "sample_indices",
]  # fmt: skip

DEFAULT_FRAMES = 32
_MAX_PAGE_PIXELS = 100_000_000
_POINTS_PER_INCH = 72
# SyntaxError: Pillow's broken PNG; the last ones: broken EXIF and broken headers of the rarer formats.
_PILLOW_ERRORS = (
    OSError, ValueError, SyntaxError, Image.DecompressionBombError, EOFError, LookupError, TypeError, OverflowError,
    struct.error,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Visual:
    """One medium as pixels: a picture, or the frames of a clip with their native indices and the file's frame rate.

    `seconds`: when each of `frames` is shown. `ticks`: of a file of variable rate, frame -> where it would stand at the
    constant rate `fps`.
    """

    path: str
    kind: Literal["picture", "clip"]
    pictures: tuple[Image.Image, ...]
    frames: tuple[int, ...] = ()
    fps: float | None = None
    n_frames: int = 0
    seconds: tuple[float, ...] = ()
    ticks: Mapping[int, float] = field(default_factory=dict)

    def tick(self, frame: int) -> float:
        """`frame` where the rate is constant; tick / fps is when it is shown."""
        return self.ticks.get(frame, frame)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in original pixels."""
        return self.pictures[0].size


def read_visual(medium: Media, *, frames: int | None = None, fps: float | None = None) -> Visual:
    """Read one medium. Videos: `frames` or `fps` as in `sample_indices`; with neither, up to as many as
    the medium says, else up to 32, evenly."""
    if medium.kind == "image":
        return Visual(path=medium.path, kind="picture", pictures=(load_image(medium.path),))
    if medium.kind == "page":
        return Visual(
            path=medium.path, kind="picture", pictures=(load_page(medium.path, medium.page or 0, medium.dpi),)
        )
    info = video_info(medium.path)
    if frames is None and fps is None:
        frames = medium.frames or DEFAULT_FRAMES
    try:
        indices = sample_indices(
            info.frame_count,
            info.fps,
            frames=frames,
            fps_wanted=fps,
            span=medium.span,
            seconds=None if info.steady else info.seconds,
        )
    except SampleError as error:
        raise SampleError(f"{medium.path}: {error}") from error
    return Visual(
        path=medium.path,
        kind="clip",
        pictures=tuple(read_frames(medium.path, indices)),
        frames=tuple(indices),
        fps=info.fps,
        n_frames=info.frame_count,
        seconds=tuple(map(info.second, indices)),
        ticks={} if info.steady else {index: info.second(index) * info.fps for index in indices},
    )


def load_image(path: str) -> Image.Image:
    """The picture as RGB in its upright (EXIF) orientation; transparent parts are white, 16-bit grey is scaled to 8
    bits; of several pictures in one file, the first.

    Raises SampleError for a file that is missing, cut short or no picture, and for 32-bit pixels, of which no file says
    which are black and white.
    """
    must_exist(path)
    try:
        with Image.open(path) as opened:
            opened.load()
            picture = ImageOps.exif_transpose(opened)
    except _PILLOW_ERRORS as error:
        raise SampleError(f"{path}: not a readable picture ({first_line(error)})") from error
    if picture.mode.startswith("I;16"):  # a plain convert() would clip everything above 255 to white
        picture = Image.fromarray((np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8))
    if picture.mode in ("I", "F"):
        raise SampleError(f"{path}: pixels of 32 bits (mode {picture.mode}): expected 8 or 16")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        picture = Image.alpha_composite(white, picture)
    return picture.convert("RGB")


def page_sizes(path: str | os.PathLike[str]) -> tuple[tuple[float, float], ...]:
    """Width and height in points of every page of a PDF; a file is opened once while it stays as it is.

    Raises SampleError for a missing, encrypted or unreadable document.
    """
    try:
        state = os.stat(path)
    except OSError as error:
        raise SampleError(f"{path}: not a readable PDF ({error.strerror})") from error
    return _page_sizes(os.fspath(path), state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=512)
def _page_sizes(path: str, size: int, changed: int) -> tuple[tuple[float, float], ...]:
    try:
        with pypdfium2.PdfDocument(path) as document:
            return tuple(document.get_page_size(page) for page in range(len(document)))
    except (pypdfium2.PdfiumError, OSError) as error:
        raise SampleError(f"{path}: not a readable PDF ({error})") from error


def load_page(path: str, page: int, dpi: int = PAGE_DPI) -> Image.Image:
    """PDF page `page` (0-based) rendered as RGB at `dpi`; boxes on pages are in these pixels.

    Raises SampleError for a missing, encrypted or unreadable document and for a page it does not have.
    """
    must_exist(path)
    try:
        document = pypdfium2.PdfDocument(path)
    except (pypdfium2.PdfiumError, OSError) as error:
        raise SampleError(f"{path}: not a readable PDF ({first_line(error)})") from error
    try:
        if not 0 <= page < len(document):
            raise SampleError(f"{path}: page index {page} asked for, the document has {len(document)} pages (0-based)")
        sheet = document[page]
        scale = dpi / _POINTS_PER_INCH
        width, height = sheet.get_size()
        if width * height * scale * scale > _MAX_PAGE_PIXELS:
            raise SampleError(f"{path}: page {page} is {width:.0f} x {height:.0f} points, too large at {dpi} dpi")
        return sheet.render(scale=scale).to_pil().convert("RGB")
    except pypdfium2.PdfiumError as error:
        raise SampleError(f"{path}: page {page} cannot be rendered ({first_line(error)})") from error
    finally:
        document.close()
