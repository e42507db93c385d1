"""Frames of videos written here: variable rate, key frames, pixels that are not square, several streams, damage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.stream import Disposition
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from core_bench import videofile
from core_bench.errors import SampleError
from core_bench.media import read_visual
from core_bench.schema import Media
from core_bench.videofile import read_frames, sample_indices, video_info

Pixels = NDArray[np.uint8]


def moving(n: int, width: int = 64, height: int = 48) -> Pixels:
    """A bright bar that moves on, over a gradient: every frame differs from every other."""
    frames = np.tile(np.linspace(20, 120, width, dtype=np.uint8)[None, None, :, None], (n, height, 1, 3)).copy()
    for number in range(n):
        frames[number, :, (3 * number) % width : (3 * number) % width + 4] = 230
        frames[number, number % height] = 5
    return frames


def write(
    path: Path,
    frames: Pixels,
    *,
    pts: Sequence[int] | None = None,
    codec: str = "ffv1",
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
    ratio: Fraction | None = None,
) -> str:
    """A video with these time stamps in tenths of a second (default: one each); lossless with the default codec."""
    layout = "bgr0" if codec == "ffv1" else "yuv420p"
    with av.open(str(path), "w", options=container_options or {}) as container:
        stream: Any = container.add_stream(codec, rate=10, options=options or {})
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], layout
        stream.codec_context.time_base = Fraction(1, 10)
        if ratio is not None:
            stream.codec_context.sample_aspect_ratio = ratio
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=layout)
            frame.pts, frame.time_base = (number if pts is None else pts[number]), Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return str(path)


GROUPS = "keyint=10:min-keyint=10:scenecut=0:bframes=2:b-adapt=0:open-gop=1"


def h264(path: Path, n: int = 60, params: str = GROUPS, **more: Any) -> str:
    """By default six groups of pictures, with frames that refer to later ones, also of the next group."""
    options = {"preset": "veryfast", "qp": "18", "x264-params": params}
    return write(path, moving(n), codec="libx264", options=options, **more)


def decoded(path: str) -> list[Pixels]:
    with av.open(path) as container:
        return [np.asarray(frame.to_image()) for frame in container.decode(video=0)]


# One long frame, a burst, then one long frame again: 20 frames in 10 seconds.
UNEVEN = [0, *range(40, 58), 99]


def test_a_variable_rate_is_sampled_by_time(tmp_path: Path) -> None:
    frames = moving(20)
    path = write(tmp_path / "uneven.mkv", frames, pts=UNEVEN)
    info = video_info(path)
    assert (info.frame_count, info.steady) == (20, False)
    assert info.seconds == pytest.approx(np.array(UNEVEN) / 10)
    visual = read_visual(Media(kind="video", path=path), frames=5)
    # instants 0, 2.475, 4.95, 7.425 and 9.9 s; on screen: frames 0, 0, 10, 18, 19
    assert visual.frames == (0, 10, 18, 19)
    assert visual.seconds == pytest.approx((0, 4.9, 5.7, 9.9))
    assert all(np.array_equal(np.asarray(p), frames[i]) for p, i in zip(visual.pictures, visual.frames, strict=True))
    assert visual.fps is not None
    assert [visual.tick(frame) / visual.fps for frame in visual.frames] == pytest.approx(visual.seconds)
    assert read_visual(Media(kind="video", path=path), frames=1).frames == (10,), "in the middle of the time"
    by_rate = read_visual(Media(kind="video", path=path), fps=0.5)
    assert by_rate.frames == visual.frames, "10.4 seconds at one frame in two: five instants"
    whole = read_visual(Media(kind="video", path=path), frames=99)
    assert whole.frames == tuple(range(20))


def test_a_constant_rate_is_sampled_by_number(tmp_path: Path) -> None:
    path = write(tmp_path / "even.mkv", moving(20))
    visual = read_visual(Media(kind="video", path=path), frames=5)
    assert visual.frames == (0, 5, 10, 14, 19)
    assert visual.seconds == pytest.approx((0, 0.5, 1.0, 1.4, 1.9))
    assert [visual.tick(frame) for frame in visual.frames] == [0, 5, 10, 14, 19]
    assert not visual.ticks


def test_a_rate_that_the_file_does_not_keep(tmp_path: Path) -> None:
    """Even frames, five a second, in a file whose header says ten."""
    path = write(tmp_path / "slow.mkv", moving(20), pts=range(0, 40, 2))
    info = video_info(path)
    assert info.fps == 10
    assert not info.steady
    visual = read_visual(Media(kind="video", path=path), frames=4)
    assert visual.seconds == pytest.approx([frame / 5 for frame in visual.frames])
    assert [visual.tick(frame) / 10 for frame in visual.frames] == pytest.approx(visual.seconds)
    assert len(read_visual(Media(kind="video", path=path), fps=2.0).frames) == 8


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.floats(0.001, 30), min_size=1, max_size=60),
    frames=st.integers(1, 40),
    data=st.data(),
)
def test_sampling_by_time_gives_what_is_on_screen(steps: list[float], frames: int, data: st.DataObject) -> None:
    seconds = np.concatenate([[0.0], np.cumsum(steps)])
    first = data.draw(st.integers(0, len(steps)))
    last = data.draw(st.integers(first + 1, len(seconds)))
    found = sample_indices(len(seconds), 25.0, frames=frames, span=(first, last), seconds=seconds)
    assert found == sorted(set(found))
    assert first <= found[0] <= found[-1] < last
    assert len(found) <= frames
    if frames == 1:
        assert len(found) == 1
        return
    assert (found[0], found[-1]) == (first, last - 1)
    if frames < last - first:
        for instant in np.linspace(seconds[first], seconds[last - 1], frames):
            shown = max(index for index in range(first, last) if seconds[index] <= instant)
            assert shown in found


@pytest.mark.parametrize("ending", ["mp4", "mkv"])
def test_frames_after_a_seek_are_those_of_reading_on(tmp_path: Path, ending: str) -> None:
    path = h264(tmp_path / f"groups.{ending}")
    expected = decoded(path)
    assert len(expected) == video_info(path).frame_count == 60
    for asked in ([59], [0, 59], [10], [9, 11, 31], [29, 30, 30, 28], list(range(0, 60, 7)), list(range(60))):
        found = read_frames(path, asked)
        assert all(np.array_equal(np.asarray(p), expected[i]) for p, i in zip(found, asked, strict=True)), asked


def test_only_what_is_needed_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = h264(tmp_path / "groups.mp4")
    video_info(path)
    worked = count_decoded(monkeypatch)
    read_frames(path, [59])
    assert 0 < sum(worked) <= 30, "at most three groups of ten frames, of six"
    worked.clear()
    read_frames(path, [0, 5])
    assert 0 < sum(worked) <= 10


def count_decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by 1 for every frame that is handed out."""
    worked: list[int] = []
    opened = videofile._open_video

    class Counting:
        def __init__(self, container: Any) -> None:
            self.seek: Callable[..., None] = container.seek
            self.container = container

        def decode(self, stream: Any) -> Any:
            for frame in self.container.decode(stream):
                worked.append(1)
                yield frame

    class Opened:
        def __init__(self, path: str) -> None:
            self.manager = opened(path)

        def __enter__(self) -> tuple[Any, Any]:
            container, stream = self.manager.__enter__()
            return Counting(container), stream

        def __exit__(self, *error: Any) -> Any:
            return self.manager.__exit__(*error)

    monkeypatch.setattr(videofile, "_open_video", Opened)
    return worked


def test_a_file_is_looked_through_once_while_it_stays_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mkv", moving(5))
    first = video_info(path)
    assert video_info(path) is first
    write(tmp_path / "a.mkv", moving(7))
    assert video_info(path).frame_count == 7


@pytest.mark.parametrize(("ratio", "width"), [(Fraction(4, 3), 85), (Fraction(1, 2), 32), (Fraction(1), 64)])
def test_pixels_that_are_not_square(tmp_path: Path, ratio: Fraction, width: int) -> None:
    frames = np.zeros((3, 48, 64, 3), dtype=np.uint8)
    frames[:, :, 32:] = 250  # the right half
    path = write(tmp_path / "wide.mp4", frames, codec="libx264", options={"qp": "4"}, ratio=ratio)
    [picture] = read_frames(path, [1])
    assert picture.size == (width, 48)
    info = video_info(path)
    assert (info.width, info.height) == picture.size
    pixels = np.asarray(picture)
    assert pixels[:, : width // 2 - 3].max() < 10
    assert pixels[:, width // 2 + 3 :].min() > 240


def test_the_default_stream_is_read(tmp_path: Path) -> None:
    for default in (0, 1):
        path = tmp_path / f"two{default}.mkv"
        with av.open(str(path), "w") as container:
            streams: list[Any] = []
            for number, width in enumerate((64, 32)):
                stream: Any = container.add_stream("ffv1", rate=10)
                stream.width, stream.height, stream.pix_fmt = width, 48, "bgr0"
                stream.disposition = Disposition.default if number == default else Disposition(0)
                streams.append(stream)
            for number, pixels in enumerate(moving(4)):
                for stream in streams:
                    part = np.ascontiguousarray(pixels[:, : stream.width])
                    frame = av.VideoFrame.from_ndarray(part, format="rgb24").reformat(format="bgr0")
                    frame.pts, frame.time_base = number, Fraction(1, 10)
                    container.mux(stream.encode(frame))
            for stream in streams:
                container.mux(stream.encode())
        assert read_frames(str(path), [0])[0].width == (64, 32)[default]


def cut(path: str, share: float) -> str:
    content = Path(path).read_bytes()
    shorter = Path(path).with_stem("cut")
    shorter.write_bytes(content[: int(len(content) * share)])
    return str(shorter)


@pytest.mark.parametrize(("ending", "unit"), [("mp4", "frames"), ("mkv", "bytes"), ("avi", "bytes")])
def test_a_file_that_is_cut_short_says_so(tmp_path: Path, ending: str, unit: str) -> None:
    fast = {"movflags": "faststart"} if ending == "mp4" else None
    path = h264(tmp_path / f"whole.{ending}", container_options=fast)
    for share in (0.5, 0.8):
        with pytest.raises(
            SampleError, match=rf"cut\.{ending}: cut short: \d+ of the \d+ {unit} of its header"
        ) as told:
            read_visual(Media(kind="video", path=cut(path, share)), frames=2)
        assert "\n" not in str(told.value)


def test_an_index_that_is_lost_is_one_error(tmp_path: Path) -> None:
    path = h264(tmp_path / "whole.mp4")  # the index comes last
    with pytest.raises(SampleError, match=r"cut\.mp4: not a readable video"):
        read_visual(Media(kind="video", path=cut(path, 0.9)), frames=2)


def test_damage_in_the_middle_is_never_shown(tmp_path: Path) -> None:
    """Frames from before the damage are read; those in it are an error that names file and time."""
    path = Path(h264(tmp_path / "hole.mp4", container_options={"movflags": "faststart"}))
    expected = decoded(str(path))
    content = bytearray(path.read_bytes())
    middle = len(content) * 6 // 10
    content[middle : middle + len(content) // 5] = bytes(len(content) // 5)
    path.write_bytes(content)
    assert np.array_equal(np.asarray(read_frames(str(path), [3])[0]), expected[3])
    with pytest.raises(SampleError, match=r"hole\.mp4: "):
        read_frames(str(path), range(60))


def test_what_follows_damage_is_not_shown_either(tmp_path: Path) -> None:
    """FFmpeg marks the damaged frame alone and decodes on from it, to the next key frame."""
    path = h264(tmp_path / "whole.mkv", params="keyint=40:min-keyint=40:scenecut=0:bframes=0")
    hole = tmp_path / "hole.mkv"
    with av.open(path) as old, av.open(str(hole), "w") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for number, packet in enumerate(old.demux(old.streams.video[0])):
            if packet.dts is None:
                continue
            content = bytes(packet)
            if number == 30:
                content = content[: len(content) // 2] + bytes(len(content) - len(content) // 2)
            copy = av.Packet(content)
            copy.pts, copy.dts, copy.time_base = packet.pts, packet.dts, packet.time_base
            copy.is_keyframe, copy.stream = packet.is_keyframe, stream
            new.mux(copy)
    with av.open(str(hole)) as container:
        marked = [number for number, frame in enumerate(container.decode(video=0)) if frame.is_corrupt]
    assert marked == [30]
    expected = decoded(path)
    for index in (29, 40, 59):
        assert np.array_equal(np.asarray(read_frames(str(hole), [index])[0]), expected[index])
    for index in (30, 31, 39):
        with pytest.raises(SampleError, match=rf"hole\.mkv: frame {index} \(at .* s\) cannot be decoded"):
            read_frames(str(hole), [index])


@pytest.mark.parametrize("ending", ["avi", "mpg", "ts", "gif", "mov"])
def test_other_containers(tmp_path: Path, ending: str) -> None:
    codec = {"gif": "gif", "mpg": "mpeg1video", "mov": "mpeg4"}.get(ending, "mpeg4")
    frames, path = moving(12), tmp_path / f"clip.{ending}"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=25)
        stream.width, stream.height = 64, 48
        stream.pix_fmt = "rgb8" if ending == "gif" else "yuv420p"
        for pixels in frames:
            picture = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=stream.pix_fmt)
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    expected = decoded(str(path))
    assert len(expected) == video_info(str(path)).frame_count == 12
    asked = [11, 0, 6]
    found = read_frames(str(path), asked)
    assert all(np.array_equal(np.asarray(p), expected[i]) for p, i in zip(found, asked, strict=True))
