"""Readers on files written here, lossless, so that every pixel and frame is known."""

from __future__ import annotations

import struct
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pypdfium2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from core_bench.errors import SampleError, UserError
from core_bench.media import VideoInfo, load_image, load_page, read_frames, read_visual, sample_indices
from core_bench.schema import Media


def frames_of(n: int, width: int = 48, height: int = 32, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8)


def write_video(path: Path, frames: NDArray[np.uint8], rate: Fraction = Fraction(10)) -> str:
    """A lossless RGB video in the container that the name's ending says."""
    codec, layout = ("ffv1", "bgr0") if path.suffix == ".mkv" else ("png", "rgb24")
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], layout
        for picture in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=layout)))
        container.mux(stream.encode())
    return str(path)


def set_display_matrix(path: str, a: int, b: int, c: int, d: int) -> None:
    """Write the track header's matrix (QuickTime: x' = a x + c y, y' = b x + d y, in 16.16 fixed point)."""
    content = bytearray(Path(path).read_bytes())
    at = content.index(b"tkhd") + 44
    struct.pack_into(">9i", content, at, a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
    Path(path).write_bytes(content)


@pytest.mark.parametrize("ending", ["mov", "mkv"])  # Matroska has no frame count in its header
def test_video_frames_come_back_exactly(tmp_path: Path, ending: str) -> None:
    frames = frames_of(13)
    path = write_video(tmp_path / f"clip.{ending}", frames)
    info = VideoInfo(path)
    assert (info.frame_count, info.width, info.height) == (13, 48, 32)
    assert info.fps == pytest.approx(10)
    assert info.duration == pytest.approx(1.3, abs=0.11)
    for asked in (range(13), [12, 0, 5], [7, 7], []):
        assert all(
            np.array_equal(np.asarray(got), frames[i]) for got, i in zip(read_frames(path, asked), asked, strict=True)
        )


@pytest.mark.parametrize(
    ("matrix", "clockwise"), [((0, 1, -1, 0), 1), ((-1, 0, 0, -1), 2), ((0, -1, 1, 0), 3), ((1, 0, 0, 1), 0)]
)
def test_display_rotation_is_applied(tmp_path: Path, matrix: tuple[int, int, int, int], clockwise: int) -> None:
    frames = frames_of(3)
    path = write_video(tmp_path / "phone.mov", frames)
    set_display_matrix(path, *matrix)
    upright = np.rot90(frames[2], k=-clockwise)
    assert np.array_equal(np.asarray(read_frames(path, [2])[0]), upright)
    info = VideoInfo(path)
    assert (info.height, info.width) == upright.shape[:2]


def test_asking_beyond_the_end(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mkv", frames_of(4))
    with pytest.raises(SampleError, match=r"clip\.mkv: frame 4 asked for, only 4 frames"):
        read_frames(path, [0, 4])
    with pytest.raises(SampleError, match=r"clip\.mkv: frame -1"):
        read_frames(path, [-1])
    with pytest.raises(SampleError, match=r"clip\.mkv: frames \[2, 9\) asked for, the video has 4"):
        read_visual(Media(kind="video", path=path, span=(2, 9)))


def test_a_truncated_video_is_one_error(tmp_path: Path) -> None:
    path = Path(write_video(tmp_path / "cut.mkv", frames_of(20)))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(SampleError, match=r"cut\.mkv"):
        read_frames(str(path), range(20))


@settings(max_examples=200, deadline=None)
@given(n=st.integers(1, 5000), frames=st.integers(1, 300), data=st.data())
def test_sample_indices_are_even(n: int, frames: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, n - 1))
    last = data.draw(st.integers(first + 1, n))
    indices = sample_indices(n, 25.0, frames=frames, span=(first, last))
    assert len(indices) == min(frames, last - first)
    assert indices == sorted(set(indices))
    assert first <= indices[0] <= indices[-1] < last
    if len(indices) > 1:
        assert (indices[0], indices[-1]) == (first, last - 1)
        gaps = np.diff(indices)
        assert gaps.max() - gaps.min() <= 1


def test_sample_indices_by_rate() -> None:
    assert len(sample_indices(250, 25.0, fps_wanted=2.0)) == 20
    assert len(sample_indices(250, 25.0, fps_wanted=2.0, span=(0, 50))) == 4
    assert sample_indices(5, 25.0, fps_wanted=0.1) == [2]
    assert sample_indices(4, 25.0, fps_wanted=99.0) == [0, 1, 2, 3]
    assert sample_indices(3, 25.0) == [0, 1, 2]


def test_sample_indices_refuses_nonsense() -> None:
    with pytest.raises(UserError, match="exclude each other"):
        sample_indices(9, 1.0, frames=2, fps_wanted=1.0)
    with pytest.raises(UserError, match="--frames: expected a number above 0, got 0"):
        sample_indices(9, 1.0, frames=0)
    with pytest.raises(UserError, match="--fps"):
        sample_indices(9, 1.0, fps_wanted=float("nan"))
    with pytest.raises(SampleError, match="the video has 9"):
        sample_indices(9, 1.0, span=(9, 12))


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    raw = frames_of(1)[0]
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held so that the picture must be turned 90 degrees clockwise
    Image.fromarray(raw).save(tmp_path / "phone.png", exif=exif)
    assert np.array_equal(np.asarray(load_image(str(tmp_path / "phone.png"))), np.rot90(raw, k=-1))


def test_picture_modes_become_rgb(tmp_path: Path) -> None:
    def saved(picture: Image.Image) -> NDArray[np.uint8]:
        path = tmp_path / "any.png"
        picture.save(path)
        got = load_image(str(path))
        assert got.mode == "RGB"
        return np.asarray(got)

    grey = np.array([[0, 100, 255]], dtype=np.uint8)
    assert saved(Image.fromarray(grey)).tolist() == [[[0] * 3, [100] * 3, [255] * 3]]
    deep = Image.fromarray(np.array([[0, 100 << 8, 65535]], dtype=np.uint16))
    assert saved(deep).tolist() == [[[0] * 3, [100] * 3, [255] * 3]]
    clear = np.array([[[9, 9, 9, 0], [7, 8, 9, 255]]], dtype=np.uint8)
    assert saved(Image.fromarray(clear, "RGBA")).tolist() == [[[255, 255, 255], [7, 8, 9]]]
    palette = Image.fromarray(grey).convert("P")
    assert saved(palette).shape == (1, 3, 3)
    faint = Image.fromarray(np.array([[[9, 0], [80, 255]]], dtype=np.uint8), "LA")
    assert saved(faint).tolist() == [[[255] * 3, [80] * 3]]
    assert saved(Image.fromarray(grey > 50)).tolist() == [[[0] * 3, [255] * 3, [255] * 3]]
    big_endian = Image.fromarray(np.array([[0, 100 << 8, 65535]], dtype=">u2"))
    big_endian.save(tmp_path / "deep.tif")
    assert np.asarray(load_image(str(tmp_path / "deep.tif"))).tolist() == [[[0] * 3, [100] * 3, [255] * 3]]


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_pixels_without_a_white_are_refused(tmp_path: Path, kind: type) -> None:
    path = tmp_path / "measured.tif"
    Image.fromarray(np.array([[0, 70_000]], dtype=kind)).save(path)
    with pytest.raises(SampleError, match=r"measured\.tif: pixels of 32 bits \(mode [IF]\): expected 8 or 16"):
        load_image(str(path))


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # Pillow's, of what it makes do with
@settings(max_examples=150, deadline=None)
@given(
    ending=st.sampled_from(["png", "jpg", "gif", "webp", "tif", "bmp"]),
    holes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=12),
    share=st.floats(0, 1),
)
def test_a_spoilt_picture_is_read_or_refused_in_a_line(
    tmp_path_factory: pytest.TempPathFactory, ending: str, holes: list[tuple[int, int]], share: float
) -> None:
    path = tmp_path_factory.getbasetemp() / f"spoilt.{ending}"
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a picture"
    extra: dict[str, Any] = {} if ending in ("gif", "bmp") else {"exif": exif}
    Image.fromarray(frames_of(1)[0]).save(path, **extra)
    content = bytearray(path.read_bytes())
    for at, value in holes:
        content[at % len(content)] = value
    path.write_bytes(content[: max(1, int(len(content) * share))] if share < 0.5 else content)
    try:
        said = f"{path}: {load_image(str(path)).mode}"
    except SampleError as error:
        said = str(error)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said


def test_pages(tmp_path: Path) -> None:
    document = pypdfium2.PdfDocument.new()
    for width, height in ((200, 100), (72, 144)):
        document.new_page(width, height)
    path = str(tmp_path / "two.pdf")
    document.save(path)
    assert load_page(path, 0).size == (400, 200)  # 144 dpi: two pixels a point
    assert load_page(path, 1, dpi=72).size == (72, 144)
    for page in (2, -1):
        with pytest.raises(SampleError, match=rf"two\.pdf: page index {page} asked for, the document has 2 pages"):
            load_page(path, page)
    with pytest.raises(SampleError, match="too large at 100000 dpi"):
        load_page(path, 0, dpi=100_000)


@pytest.mark.parametrize(("turned", "corner"), [(0, (0, 0)), (90, (0, 1)), (180, (1, 1)), (270, (1, 0))])
def test_a_page_is_upright(tmp_path: Path, turned: int, corner: tuple[int, int]) -> None:
    """A page that says it is to be turned clockwise: the mark of its top left corner goes round."""
    document = pypdfium2.PdfDocument.new()
    page = document.new_page(200, 100)
    mark = pypdfium2.PdfImage.new(document)
    mark.set_bitmap(pypdfium2.PdfBitmap.from_pil(Image.new("RGB", (4, 4), (0, 0, 0))))
    mark.set_matrix(pypdfium2.PdfMatrix().scale(20, 20).translate(0, 80))  # points, from the bottom left
    page.insert_obj(mark)
    page.set_rotation(turned)
    page.gen_content()
    path = str(tmp_path / "turned.pdf")
    document.save(path)
    picture = load_page(path, 0)
    assert picture.size == ((400, 200) if turned in (0, 180) else (200, 400))
    dark = np.argwhere(np.asarray(picture).min(axis=2) < 50)
    row, column = dark.mean(axis=0) / (picture.height, picture.width)
    assert (round(row), round(column)) == corner


@pytest.mark.parametrize("kind", ["image", "page", "video"])
@pytest.mark.parametrize("content", [None, b"", b"\x00" * 300, b"%PDF-1.7\nnot really"])
def test_a_missing_or_broken_file_is_named(tmp_path: Path, kind: str, content: bytes | None) -> None:
    path = tmp_path / "some file.bin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SampleError, match=r"some file\.bin: \S") as caught:
        read_visual(Media(kind=kind, path=str(path)))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    with pytest.raises(SampleError, match="not a file"):
        read_visual(Media(kind=kind, path=str(tmp_path)))  # type: ignore[arg-type]


def test_a_medium_may_say_how_many_frames_it_gives(tmp_path: Path) -> None:
    medium = Media(kind="video", path=write_video(tmp_path / "a.mkv", frames_of(80)), frames=64)
    assert len(read_visual(medium).frames) == 64
    assert len(read_visual(medium, frames=5).frames) == 5, "what the run says goes first"
    assert len(read_visual(medium, fps=1.0).frames) == 8
    assert len(read_visual(replace(medium, frames=None)).frames) == 32
