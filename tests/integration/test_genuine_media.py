"""Every file of the real media: its known frames, size and orientation, or one clear error; and in a run."""

from __future__ import annotations

import csv
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from core_bench.errors import SampleError
from core_bench.media import Visual, load_image, load_page, read_frames, read_visual
from core_bench.schema import Media
from core_bench.videofile import video_info

# What a broken file says after its name. doc_malformed.pdf is malformed, yet every PDF reader opens it.
ERRORS = {
    "audio_only.mp3": "no video stream",
    "audio_attached_pic.mp3": "no video stream",
    "vid_zero_bytes.webm": "not a readable video (",
    "vid_no_streams.mp4": "no video stream",
    "vid_no_frames.avi": "the video stream yields no frame",
    "vid_unopenable.flv": "not a readable video (",
    "doc_password.pdf": "not a readable PDF (Failed to load document (PDFium: Incorrect password error).)",
    "doc_zero_bytes.pdf": "not a readable PDF (",
    "img_broken.png": "not a readable picture (",
}
PAGES = {"doc_4_pages.pdf": 4, "doc_table_nics.pdf": 1, "doc_federal_register.pdf": 15, "doc_malformed.pdf": 1}
VIDEOS = 10  # readable ones


def kind_of(name: str) -> Any:
    return "page" if name.endswith(".pdf") else "image" if name.endswith((".png", ".jpg")) else "video"


@pytest.fixture(scope="module")
def media(genuine_data: Path) -> Path:
    return genuine_data / "media"


@pytest.fixture(scope="module")
def rows(media: Path) -> dict[str, dict[str, str]]:
    """Name -> what the manifest says, the parts of `info` among it."""
    with (media / "MANIFEST.tsv").open(newline="") as table:
        found = {row["file"]: row for row in csv.DictReader(table, delimiter="\t")}
    for row in found.values():
        row |= dict(part.partition("=")[::2] for part in row["info"].split(";"))
    assert len(found) == 30
    assert set(found) == {path.name for path in media.iterdir()} - {"MANIFEST.tsv"}
    return found


def read(media: Path, name: str, page: int = 0, **options: Any) -> Visual:
    return read_visual(Media(kind=kind_of(name), path=str(media / name), page=page), **options)


@pytest.mark.parametrize("name", ERRORS)
def test_a_broken_file_is_one_line_that_names_it(media: Path, name: str) -> None:
    with pytest.raises(SampleError) as told:
        read(media, name)
    assert str(told.value).startswith(f"{media / name}: {ERRORS[name]}")
    assert "\n" not in str(told.value)


def test_every_other_file_is_as_the_manifest_says(media: Path, rows: dict[str, dict[str, str]]) -> None:
    kinds: dict[str, int] = {}
    for name, row in rows.items():
        if name in ERRORS:
            continue
        visual = read(media, name, frames=3)
        kinds[visual.kind] = kinds.get(visual.kind, 0) + 1
        assert all(picture.mode == "RGB" and picture.size == visual.size for picture in visual.pictures)
        width, height = float(row["width"]), float(row["height"])
        if name.endswith(".pdf"):
            assert np.allclose(visual.size, (width * 2, height * 2), atol=1), "two pixels a point"
            continue
        turned = row.get("exif_orientation") == "6"
        assert visual.size == ((height, width) if turned else (width, height))
        if visual.kind != "clip":
            continue
        n = int(row["frames_decoded"])
        assert visual.n_frames == n
        steady = row["pts_steps"] != "7"
        if steady:
            assert visual.frames == tuple(sorted({0, round((n - 1) / 2), n - 1}))
        assert len(visual.pictures) == len(visual.frames) == len(visual.seconds) == min(n, 3)
        if row["fps"] != "None":
            assert visual.fps == pytest.approx(float(row["fps"]), abs=1e-3)
            if steady:
                expected = [frame / float(row["fps"]) for frame in visual.frames]
                assert visual.seconds == pytest.approx(expected, abs=2e-3)
        assert bool(visual.ticks) != steady, "frames of variable rate stand where their time says"
    assert kinds["clip"] == VIDEOS
    assert kinds["clip"] + kinds["picture"] + len(ERRORS) == len(rows)


def test_all_pages(media: Path) -> None:
    for name, pages in PAGES.items():
        sizes = {load_page(str(media / name), page, dpi=36).size for page in range(pages)}
        assert len(sizes) == 1
        with pytest.raises(SampleError, match=rf"{name}: page index {pages} asked for, the document has {pages} pages"):
            load_page(str(media / name), pages)
    page = np.asarray(load_page(str(media / "doc_table_nics.pdf"), 0))
    assert 0.02 < (page < 128).mean() < 0.5, "a dense table in black on white"


def test_the_rotated_phone_video(media: Path) -> None:
    """Turned by 180 degrees, at a variable rate: the frames are those of the stream, turned, at their own times."""
    path = str(media / "vid_vfr_rotated180.mp4")
    with av.open(path) as container:
        stored = [(frame.time, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    assert len(stored) == 25
    for index in (0, 12, 24):
        assert np.array_equal(np.asarray(read_frames(path, [index])[0]), stored[index][1][::-1, ::-1])
    assert video_info(path).seconds == pytest.approx([time - stored[0][0] for time, _ in stored])
    visual = read_visual(Media(kind="video", path=path), frames=6)
    times = np.array([time for time, _ in stored])
    instants = np.linspace(times[0], times[-1], 6)
    assert list(visual.frames) == sorted({int(np.flatnonzero(times <= instant + 1e-9)[-1]) for instant in instants})


def test_the_default_stream_of_several(media: Path) -> None:
    visual = read(media, "vid_multistream_nasa.mp4", frames=2)
    assert visual.size == (320, 180)
    assert (visual.n_frames, visual.fps) == (325, 25)


@pytest.mark.parametrize(
    "name",
    ["vid_chaplin.mp4", "vid_multistream_nasa.mp4", "vid_hevc_10bit.mp4", "vid_av1.mkv", "vid_vp8_1s_720p.webm"],
)
def test_frames_after_a_seek_are_those_of_reading_on(media: Path, name: str) -> None:
    path = str(media / name)
    last = video_info(path).frame_count - 1
    asked = [last, last // 2, last // 3, 0]
    with av.open(path) as container:
        expected = {n: f.to_ndarray(format="rgb24") for n, f in enumerate(container.decode(video=0)) if n in asked}
    for index in asked:
        assert np.array_equal(np.asarray(read_frames(path, [index])[0]), expected[index])


def test_pictures(media: Path) -> None:
    turned = Image.open(media / "img_exif_orientation6.jpg")
    assert turned.size == (1200, 1800)
    upright = load_image(str(media / "img_exif_orientation6.jpg"))
    assert upright.size == (1800, 1200)
    assert np.array_equal(np.asarray(upright), np.rot90(np.asarray(turned), k=-1))
    cmyk = Image.open(media / "img_cmyk.jpg")
    assert cmyk.mode == "CMYK"
    inks = np.asarray(cmyk).astype(int)
    light = np.asarray(load_image(str(media / "img_cmyk.jpg"))).astype(int).sum(axis=2).ravel()
    assert np.corrcoef(inks.sum(axis=2).ravel(), light)[0, 1] < -0.9, "more ink is darker: not inverted"
    grey = np.asarray(load_image(str(media / "img_scanned_page.png")))
    assert np.array_equal(grey, np.repeat(np.asarray(Image.open(media / "img_scanned_page.png"))[..., None], 3, axis=2))


def remuxed(source: Path, target: Path) -> Path:
    """The video stream alone, packet by packet, with the index first as in files for the web."""
    with av.open(str(source)) as old, av.open(str(target), "w", options={"movflags": "faststart"}) as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for packet in old.demux(old.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                new.mux(packet)
    return target


@pytest.mark.parametrize(("matrix", "clockwise"), [((0, 1, -1, 0), 1), ((0, -1, 1, 0), 3)])
def test_a_video_that_is_turned_by_90_degrees(
    media: Path, tmp_path: Path, matrix: tuple[int, int, int, int], clockwise: int
) -> None:
    path = remuxed(media / "vid_chaplin.mp4", tmp_path / "turned.mp4")
    plain = np.asarray(read_frames(str(path), [30])[0])
    content = bytearray(path.read_bytes())
    a, b, c, d = (edge << 16 for edge in matrix)
    # the track header's matrix, QuickTime File Format, "Track header atoms"
    struct.pack_into(">9i", content, content.index(b"tkhd") + 44, a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(content)
    visual = read_visual(Media(kind="video", path=str(path)), frames=4)
    assert visual.size == (360, 640)
    assert (video_info(str(path)).width, video_info(str(path)).height) == (360, 640)
    assert np.array_equal(np.asarray(read_frames(str(path), [30])[0]), np.rot90(plain, k=-clockwise))


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_video_that_is_cut_in_mid_stream(media: Path, tmp_path: Path, share: float) -> None:
    whole = remuxed(media / "vid_bigbuckbunny.mp4", tmp_path / "whole.mp4")
    assert read_visual(Media(kind="video", path=str(whole)), frames=3).frames == (0, 66, 131)
    short = tmp_path / "short.mp4"
    short.write_bytes(whole.read_bytes()[: int(whole.stat().st_size * share)])
    with pytest.raises(
        SampleError, match=r"short\.mp4: cut short: \d+ of the 132 frames of its header are there"
    ) as told:
        read_visual(Media(kind="video", path=str(short)), frames=3)
    assert "\n" not in str(told.value)


TASK = """\
task: broken
dataset_path: broken.jsonl
generation_kwargs: {max_new_tokens: 1}
"""


def test_a_run_goes_on_past_broken_files(media: Path, tmp_path: Path, bench: Callable[..., Any]) -> None:
    """Each is a recorded failure that names the file; the good ones around them are answered."""
    whole = remuxed(media / "vid_bigbuckbunny.mp4", tmp_path / "whole.mp4")
    short = tmp_path / "short.mp4"
    short.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    columns = {"image": "image", "page": "pdf", "video": "video"}
    names = ["vid_hevc.mp4", *ERRORS, str(short), "no such file.mp4", "img_cmyk.jpg"]
    lines = [
        f'{{"id": "{n}", "{columns[kind_of(name)]}": "{name}", "question": "What?", "answer": "nothing"}}\n'
        for n, name in enumerate(names)
    ]
    (tmp_path / "broken.jsonl").write_text("".join(lines))
    (tmp_path / "broken.yaml").write_text(TASK)
    ended = bench("dense", "--tasks", tmp_path / "broken.yaml", "--data-dir", media, "--frames", 2)
    assert ended.code == 0, ended.said
    by_id = {row["id"]: row for row in ended.rows}
    assert len(by_id) == len(names) == ended.record["tasks"]["broken"]["n"]
    assert ended.record["tasks"]["broken"]["n_failed"] == len(names) - 2
    for n, name in enumerate(names):
        failure = by_id[str(n)]["failure"]
        if n in (0, len(names) - 1):
            assert failure is None
            assert by_id[str(n)]["frames"] == ([[0, 9]] if n == 0 else [[]]), "what was really read is recorded"
        else:
            assert Path(name).name in failure
            assert ERRORS.get(name, "") in failure
            assert "\n" not in failure
    assert bench("dense", "--tasks", tmp_path / "broken.yaml", "--data-dir", media, "--strict", out="strict").code == 1
