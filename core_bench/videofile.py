"""Frames of video files: which there are, when each is shown, which are sampled, and their pixels.

A file is first read packet by packet (without decoding, where its header counts frames), which gives the time of every
frame. Frames are then decoded from the nearest key frame and told by their time stamp, so that what is read does not
depend on how a container seeks. PyAV (FFmpeg) is the only reader.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import av
import numpy as np
from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream
from numpy.typing import NDArray
from PIL import Image

from core_bench.errors import SampleError, UserError

_MAX_FRAME_PIXELS = 100_000_000
_EBML, _SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"


@dataclass(frozen=True)
class _Stamps:
    """Time stamps of the frames, ascending, and of those at which decoding can start."""

    frames: tuple[int, ...]
    keys: tuple[int, ...]


class VideoInfo:
    """What a video file holds, as it is displayed: `frame_count`, `fps`, `width`, `height`, `duration` (seconds).

    `fps` is the average rate. `seconds` is the time of every frame from the first one; None where the file has no time
    stamps. `steady`: whether frame n is shown at n / fps, to half a frame. Raises SampleError for a file that yields no
    frame or is cut short.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with _open_video(path) as (container, stream):
            first = next(container.decode(stream), None)
            if first is None:
                raise SampleError(f"{path}: the video stream yields no frame")
            self.width, self.height = _displayed(first, stream, path).size
            stamps, self.frame_count = _stamps(path)
            if stream.duration and stream.time_base:
                lasting = float(stream.duration * stream.time_base)
            else:
                lasting = (container.duration or 0) / av.time_base
            rate = float(stream.average_rate or 0)
            self.fps = rate or (self.frame_count / lasting if lasting > 0 else 1.0)
            self.duration = lasting if lasting > 0 else self.frame_count / self.fps
            self.stamps = stamps
            self.seconds: NDArray[np.float64] | None = None
            if stamps is not None and stream.time_base:
                times = np.asarray(stamps.frames, dtype=np.float64) * float(stream.time_base)
                self.seconds = times - times[0]
            self.steady = self.seconds is None or _is_steady(self.seconds, self.fps)

    def second(self, index: int) -> float:
        """When a frame is shown, from the first one."""
        return index / self.fps if self.seconds is None else float(self.seconds[index])


def video_info(path: str) -> VideoInfo:
    """`VideoInfo` of a file, read once while the file stays as it is: several questions are asked about one video."""
    must_exist(path)
    state = os.stat(path)
    return _cached_info(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=8)  # the times of an hour's frames take megabytes
def _cached_info(path: str, size: int, changed: int) -> VideoInfo:
    return VideoInfo(path)


def read_frames(path: str, indices: Sequence[int]) -> list[Image.Image]:
    """The frames with these native indices, in the order asked for, as they are displayed, RGB.

    Raises SampleError for a frame that the file does not have, cannot be decoded or is damaged.
    """
    if not indices:
        return []
    if min(indices) < 0:
        raise SampleError(f"{path}: frame {min(indices)} asked for, frames are counted from 0")
    info = video_info(path)
    if max(indices) >= info.frame_count:
        raise SampleError(
            f"{path}: frame {max(indices)} asked for, only {info.frame_count} frames can be decoded (counted from 0)"
        )
    if info.stamps is None:
        kept = _by_number(path, set(indices))
    else:
        stamp_of = {index: info.stamps.frames[index] for index in indices}
        found = _by_stamp(path, sorted(set(stamp_of.values())), info.stamps.keys)
        if len(found) < len(set(stamp_of.values())):  # a seek that led too far, or a start that needs earlier frames
            found |= _by_stamp(path, sorted(set(stamp_of.values()) - found.keys()), ())
        kept = {index: found[stamp] for index, stamp in stamp_of.items() if stamp in found}
    missing = sorted(set(indices) - kept.keys())
    if missing:
        raise SampleError(f"{path}: frame {missing[0]} (at {info.second(missing[0]):.2f} s) cannot be decoded")
    return [kept[index] for index in indices]


def sample_indices(
    n_frames: int,
    fps: float,
    *,
    frames: int | None = None,
    fps_wanted: float | None = None,
    span: tuple[int, int] | None = None,
    seconds: Sequence[float] | NDArray[np.float64] | None = None,
) -> list[int]:
    """Uniformly spaced native frame indices inside `span` ([first, last), default the whole file), ascending and
    distinct.

    `frames`: at most so many, the first and last frame of the span included (a single one comes from the middle).
    `fps_wanted`: as many as the span lasts seconds times this rate, at least one. With neither, every frame.
    `seconds` (one a frame, of a file of variable rate): even in time, each instant gives the frame that is on screen,
    and a frame that is on screen for several is taken once.
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
        lasting = available / fps if seconds is None else _lasting(seconds[first:last], fps)
        frames = max(1, round(lasting * fps_wanted))
    count = available if frames is None else min(frames, available)
    if seconds is not None and count < available:
        return _on_screen(seconds[first:last], first, count)
    if count == 1:
        return [first + (available - 1) // 2]
    return [int(index) for index in np.linspace(first, last - 1, count).round()]


def _lasting(seconds: Sequence[float] | NDArray[np.float64], fps: float) -> float:
    """How long frames are shown in all, the last one for as long as the others on average."""
    steps = len(seconds) - 1
    return (float(seconds[-1]) - float(seconds[0])) * (steps + 1) / steps if steps else 1 / fps


def _on_screen(seconds: Sequence[float] | NDArray[np.float64], first: int, count: int) -> list[int]:
    """Native indices of the frames on screen at `count` even instants; `seconds` are those of the frames from
    `first`."""
    begin, end = float(seconds[0]), float(seconds[-1])
    instants = [(begin + end) / 2] if count == 1 else np.linspace(begin, end, count)
    places = np.searchsorted(seconds, instants, side="right") - 1
    return [first + int(place) for place in np.unique(places)]


def _is_steady(seconds: NDArray[np.float64], fps: float) -> bool:
    """Whether frame n is shown at n / fps, to half a frame: headers name rates that a file does not keep."""
    return bool(np.abs(seconds * fps - np.arange(len(seconds))).max() <= 0.5)


def _stamps(path: str) -> tuple[_Stamps | None, int]:
    """The frames' time stamps, None where they have none or not one each, and how many frames there are."""
    _refuse_cut(path)
    frames, keys, n = _of_packets(path)
    if n and len(set(frames)) == len(frames) == n:
        return _Stamps(tuple(sorted(frames)), tuple(sorted(keys))), n
    frames, keys, n = _of_frames(path)
    if len(frames) == n and all(a < b for a, b in itertools.pairwise(frames)):
        return _Stamps(tuple(frames), tuple(keys)), n
    return None, n


def _of_packets(path: str) -> tuple[list[int], list[int], int]:
    """Time stamps of a stream whose header counts its frames, from its packets: all, those of key frames, and how many
    frames are shown (edit lists hide some). Nothing where the header counts none: there a packet need not be a
    frame."""
    frames: list[int] = []
    keys: list[int] = []
    shown = stored = 0
    with _open_video(path) as (container, stream):
        if not stream.frames:
            return [], [], 0
        for packet in container.demux(stream):
            if packet.dts is None and not packet.size:  # the end
                continue
            stored += 1
            if packet.is_discard:
                continue
            shown += 1
            if packet.pts is not None:
                frames.append(packet.pts)
                if packet.is_keyframe:
                    keys.append(packet.pts)
        if stored < stream.frames:
            if "mp4" not in container.format.name:  # AVI counts frames that were dropped
                return [], [], 0
            raise SampleError(f"{path}: cut short: {stored} of the {stream.frames} frames of its header are there")
    return frames, keys, shown


def _of_frames(path: str) -> tuple[list[int], list[int], int]:
    """Time stamps of all frames, of key frames, and the number of frames, by decoding all of them."""
    with _open_video(path) as (container, stream):
        found = [(frame.pts, frame.key_frame) for frame in container.decode(stream)]
    frames = [pts for pts, _ in found if pts is not None]
    return frames, [pts for pts, key in found if pts is not None and key], len(found)


def _refuse_cut(path: str) -> None:
    """SampleError for a Matroska, WebM or AVI file that ends before its outermost element does: these may not say how
    many frames there are.

    Sources: RFC 8794, 4 (sizes), and RFC 9559, 5.1.1 (the segment follows the EBML header); Microsoft's AVI RIFF file
    reference (a chunk's size follows its name).
    """
    with open(path, "rb") as file:
        head = file.read(4096)
    declared = 0
    if head.startswith(b"RIFF"):
        declared = 8 + int.from_bytes(head[4:8], "little")
    elif head.startswith(_EBML):
        length, at = _ebml_size(head, len(_EBML))
        at += length or 0
        if head[at : at + len(_SEGMENT)] == _SEGMENT:
            length, at = _ebml_size(head, at + len(_SEGMENT))
            declared = 0 if length is None else at + length
    there = os.path.getsize(path)
    if declared > there:
        raise SampleError(f"{path}: cut short: {there} of the {declared} bytes of its header are there")


def _ebml_size(data: bytes, at: int) -> tuple[int | None, int]:
    """An element's size, None if unknown, and where its content starts."""
    width = 9 - (data[at] if at < len(data) else 0).bit_length()
    largest = (1 << 7 * width) - 1
    value = int.from_bytes(data[at : at + width], "big") & largest
    return (None if value == largest else value), at + width


def _by_stamp(path: str, wanted: Sequence[int], keys: Sequence[int]) -> dict[int, Image.Image]:
    """The undamaged frames among those with the `wanted` (ascending) time stamps. With `keys`, those of the key frames,
    decoding starts at the key frame before each; without, at the file's start."""
    kept: dict[int, Image.Image] = {}
    with _open_video(path) as (container, stream):
        frames, start, position = _with_state(container.decode(stream)), None, None
        for stamp in wanted:
            place = bisect_right(keys, stamp)
            if place and (position is None or keys[place - 1] > position):
                start = keys[place - 1]
                container.seek(start, stream=stream)
                frames = _with_state(container.decode(stream))
            # Frames before the start of an open group of pictures refer to some that were not decoded.
            if position is None or position < stamp:
                for shown in frames:
                    position = shown.frame.pts
                    if position is not None and position >= stamp:
                        break
            if position == stamp and (start is None or stamp >= start) and shown.sound:
                kept[stamp] = _displayed(shown.frame, stream, path)
    return kept


def _by_number(path: str, wanted: set[int]) -> dict[int, Image.Image]:
    """The wanted frames of a file without time stamps, counted from its start."""
    kept: dict[int, Image.Image] = {}
    with _open_video(path) as (container, stream):
        for number, shown in enumerate(_with_state(container.decode(stream))):
            if number in wanted and shown.sound:
                kept[number] = _displayed(shown.frame, stream, path)
            if number == max(wanted):
                break
    return kept


class _Shown(NamedTuple):
    """A decoded frame, and whether nothing it builds on is missing."""

    frame: av.VideoFrame
    sound: bool


def _with_state(frames: Iterable[av.VideoFrame]) -> Iterator[_Shown]:
    """FFmpeg marks the frame in which data is missing, but not those after it, which build on it until a key frame."""
    sound = True
    for frame in frames:
        sound = not frame.is_corrupt and (sound or bool(frame.key_frame))
        yield _Shown(frame, sound)


# PyAV 19 reads metadata only when asked and has no such option; older ones decode it on opening, where odd bytes raise.
_OPEN_OPTIONS: dict[str, Any] = {} if int(av.__version__.split(".")[0]) >= 19 else {"metadata_errors": "ignore"}


@contextmanager
def _open_video(path: str) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The opened file and the stream a player would show; FFmpeg's errors, also while decoding, become SampleError."""
    must_exist(path)
    try:
        with av.open(path, **_OPEN_OPTIONS) as container:
            streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
            if not streams:
                raise SampleError(f"{path}: no video stream")
            stream = next((s for s in streams if s.disposition & Disposition.default), streams[0])
            stream.thread_type = "AUTO"
            yield container, stream
    except (av.FFmpegError, OSError) as error:
        raise SampleError(f"{path}: not a readable video ({first_line(error)})") from error


def _displayed(frame: av.VideoFrame, stream: VideoStream, path: str) -> Image.Image:
    """The frame as RGB, as wide as its pixels' aspect ratio says, turned by the file's display rotation
    (counter-clockwise degrees, to the next quarter turn)."""
    pixels = frame.to_ndarray(format="rgb24")
    ratio = stream.sample_aspect_ratio
    if ratio and ratio != 1:
        width = max(1, round(frame.width * ratio))
        if width * frame.height > _MAX_FRAME_PIXELS:
            raise SampleError(f"{path}: pixels of aspect ratio {ratio}: frames would be {width} x {frame.height}")
        pixels = np.asarray(Image.fromarray(pixels).resize((width, frame.height), Image.Resampling.BICUBIC))
    return Image.fromarray(np.ascontiguousarray(np.rot90(pixels, k=round(frame.rotation / 90) % 4)))


def must_exist(path: str) -> None:
    """SampleError where there is no file of this name."""
    if not os.path.exists(path):
        raise SampleError(f"{path}: no such file")
    if not os.path.isfile(path):
        raise SampleError(f"{path}: not a file")


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its kind where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
