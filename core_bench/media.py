"""Reading pictures, PDF pages and videos from disk, so that boxes and frame numbers of annotations fit what is read.

Every reader returns 8-bit RGB pictures and raises `SampleError` with one line that names the file when it cannot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import av
import numpy as np
import pypdfium2
from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream
from PIL import Image, ImageOps

from core_bench.errors import SampleError, UserError
from core_bench.schema import Media

PAGE_DPI = 144
DEFAULT_FRAMES = 32
_MAX_PAGE_PIXELS = 100_000_000
_POINTS_PER_INCH = 72


@dataclass(frozen=True, kw_only=True)
class Visual:
    """One medium as pixels: a picture, or the frames of a clip with their native indices and the file's frame rate."""

    path: str
    kind: Literal["picture", "clip"]
    pictures: tuple[Image.Image, ...]
    frames: tuple[int, ...] = ()
    fps: float | None = None
    n_frames: int = 0

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
        return Visual(path=medium.path, kind="picture", pictures=(load_page(medium.path, medium.page or 0),))
    info = VideoInfo(medium.path)
    if frames is None and fps is None:
        frames = medium.frames or DEFAULT_FRAMES
    try:
        indices = sample_indices(info.frame_count, info.fps, frames=frames, fps_wanted=fps, span=medium.span)
    except SampleError as error:
        raise SampleError(f"{medium.path}: {error}") from error
    return Visual(
        path=medium.path,
        kind="clip",
        pictures=tuple(read_frames(medium.path, indices)),
        frames=tuple(indices),
        fps=info.fps,
        n_frames=info.frame_count,
    )


def load_image(path: str) -> Image.Image:
    """The picture as RGB in its upright (EXIF) orientation; transparent parts are white, 16-bit grey is scaled to 8
    bits.

    Raises SampleError for a file that is missing, cut short or no picture.
    """
    _must_exist(path)
    try:
        with Image.open(path) as opened:
            opened.load()
            picture = ImageOps.exif_transpose(opened)
    except (
        OSError,
        ValueError,
        SyntaxError,
        Image.DecompressionBombError,
    ) as error:  # SyntaxError: Pillow's broken PNG
        raise SampleError(f"{path}: not a readable picture ({_first_line(error)})") from error
    if picture.mode.startswith("I;16"):  # a plain convert() would clip everything above 255 to white
        picture = Image.fromarray((np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8))
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        picture = Image.alpha_composite(white, picture)
    return picture.convert("RGB")


def load_page(path: str, page: int, dpi: int = PAGE_DPI) -> Image.Image:
    """PDF page `page` (0-based) rendered as RGB at `dpi`; boxes on pages are in these pixels.

    Raises SampleError for a missing, encrypted or unreadable document and for a page it does not have.
    """
    _must_exist(path)
    try:
        document = pypdfium2.PdfDocument(path)
    except (pypdfium2.PdfiumError, OSError) as error:
        raise SampleError(f"{path}: not a readable PDF ({_first_line(error)})") from error
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
        raise SampleError(f"{path}: page {page} cannot be rendered ({_first_line(error)})") from error
    finally:
        document.close()


class VideoInfo:
    """What a video file holds, after its display rotation: `frame_count`, `fps`, `width`, `height`, `duration`
    (seconds).

    The frame count is the header's; a file without one is decoded once to count. `fps` is the average rate, so a
    frame's second in a file of variable rate is approximate. Raises SampleError for a file that yields no frame.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with _open_video(path) as (container, stream):
            frames = container.decode(stream)
            first = next(frames, None)
            if first is None:
                raise SampleError(f"{path}: the video stream yields no frame")
            self.width, self.height = _upright(first).size
            self.frame_count = int(stream.frames) or 1 + sum(1 for _ in frames)
            if stream.duration and stream.time_base:
                seconds = float(stream.duration * stream.time_base)
            else:
                seconds = (container.duration or 0) / av.time_base
            rate = float(stream.average_rate or 0)
            self.fps = rate or (self.frame_count / seconds if seconds > 0 else 1.0)
            self.duration = seconds if seconds > 0 else self.frame_count / self.fps


def read_frames(path: str, indices: Sequence[int]) -> list[Image.Image]:
    """The frames with these native indices, in the order asked for, upright RGB.

    The file is decoded once in order, and only the wanted frames are kept: seeking is not exact in files of variable
    rate.
    """
    if not indices:
        return []
    kept: dict[int, Image.Image] = {}
    wanted, last, count = set(indices), max(indices), 0
    if min(indices) < 0:
        raise SampleError(f"{path}: frame {min(indices)} asked for, frames are counted from 0")
    with _open_video(path) as (container, stream):
        for number, frame in enumerate(container.decode(stream)):
            count = number + 1
            if number in wanted:
                kept[number] = _upright(frame)
            if number == last:
                break
    if count <= last:
        raise SampleError(f"{path}: frame {last} asked for, only {count} frames can be decoded")
    return [kept[index] for index in indices]


def sample_indices(
    n_frames: int,
    fps: float,
    *,
    frames: int | None = None,
    fps_wanted: float | None = None,
    span: tuple[int, int] | None = None,
) -> list[int]:
    """Uniformly spaced native frame indices inside `span` ([first, last), default the whole file), ascending and
    distinct.

    `frames`: at most so many, the first and last frame of the span included (a single one comes from the middle).
    `fps_wanted`: as many as the span lasts seconds times this rate, at least one. With neither, every frame.
    """
    if frames is not None and fps_wanted is not None:
        raise UserError("--frames and --fps exclude each other: give one of them")
    for name, value in (("--frames", frames), ("--fps", fps_wanted)):
        if value is not None and not value > 0:
            raise UserError(f"{name}: expected a number above 0, got {value}")
    first, last = span if span is not None else (0, n_frames)
    if not 0 <= first < last <= n_frames:
        raise SampleError(f"frames [{first}, {last}) asked for, the video has {n_frames}")
    available = last - first
    if fps_wanted is not None:
        frames = max(1, round(available / fps * fps_wanted))
    count = available if frames is None else min(frames, available)
    if count == 1:
        return [first + (available - 1) // 2]
    return [int(index) for index in np.linspace(first, last - 1, count).round()]


# PyAV 19 reads metadata only when asked and has no such option; older ones decode it on opening, where odd bytes raise.
_OPEN_OPTIONS: dict[str, Any] = {} if int(av.__version__.split(".")[0]) >= 19 else {"metadata_errors": "ignore"}


@contextmanager
def _open_video(path: str) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The opened file and the stream a player would show; FFmpeg's errors, also while decoding, become SampleError."""
    _must_exist(path)
    try:
        with av.open(path, **_OPEN_OPTIONS) as container:
            streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
            if not streams:
                raise SampleError(f"{path}: no video stream")
            stream = next((s for s in streams if s.disposition & Disposition.default), streams[0])
            stream.thread_type = "AUTO"
            yield container, stream
    except (av.FFmpegError, OSError) as error:
        raise SampleError(f"{path}: not a readable video ({_first_line(error)})") from error


def _upright(frame: av.VideoFrame) -> Image.Image:
    """The frame as RGB, turned by the file's display rotation (counter-clockwise degrees, to the next quarter turn)."""
    picture = np.rot90(frame.to_ndarray(format="rgb24"), k=round(frame.rotation / 90) % 4)
    return Image.fromarray(np.ascontiguousarray(picture))


def _must_exist(path: str) -> None:
    if not os.path.exists(path):
        raise SampleError(f"{path}: no such file")
    if not os.path.isfile(path):
        raise SampleError(f"{path}: not a file")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
