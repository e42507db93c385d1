"""Media that a process of its own reads ahead: the same pixels, and what happens where that process comes to grief."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pypdfium2
import pytest
from PIL import Image

from core_bench import decodeworker, decoding
from core_bench.decoding import AHEAD, MediaAhead, with_lap
from core_bench.errors import SampleError
from core_bench.media import Visual, read_visual
from core_bench.schema import Media, Sample

# The worker, but for files whose names say what they do to a decoder.
HOSTILE = """
import os, signal, sys, time
sys.path[:] = sys.argv[1:]
from core_bench import decodeworker
plain = decodeworker.read_visual
def read_visual(medium, **options):
    kind = os.path.basename(medium.path)
    if kind.startswith("crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind.startswith("hang"):
        time.sleep(600)
    if kind.startswith("bug"):
        raise KeyError("a mistake of ours")
    print("a library's chatter")
    return plain(medium, **options)
decodeworker.read_visual = read_visual
decodeworker.serve()
"""


def clip(path: Path, tenths: Sequence[int] = range(8)) -> Media:
    """A lossless clip of noise whose frames are shown at these tenths of a second."""
    pixels = np.random.default_rng(len(path.name)).integers(0, 256, (len(tenths), 32, 48, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "bgr0"
        for tenth, picture in zip(tenths, pixels, strict=True):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="bgr0")
            frame.pts, frame.time_base = tenth, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return Media(kind="video", path=str(path))


def sample(name: str, *media: Media) -> Sample:
    return Sample(task="t", id=name, cluster=name, media=media, prompt="Who?", question="Who?", target="nobody")


def clips(folder: Path, *names: str) -> list[Sample]:
    return [sample(name, clip(folder / f"{name}.mkv")) for name in names]


def told(visuals: Sequence[Visual]) -> list[dict[str, Any]]:
    """Everything a visual holds, pictures as their bytes."""
    return [
        {
            **vars(visual),
            "ticks": dict(visual.ticks),
            "pictures": [(p.mode, p.size, p.tobytes()) for p in visual.pictures],
        }
        for visual in visuals
    ]


def pid_of(media: MediaAhead) -> int:
    assert media._worker is not None
    return media._worker.process.pid


def state(pid: int) -> str:
    """The system's letter for a process: T where it is stopped, Z or nothing where it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def becomes(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "COMMAND", (sys.executable, "-c", HOSTILE))


@pytest.mark.parametrize(("frames", "fps"), [(None, None), (3, None), (None, 2.0)])
def test_the_same_as_read_here(tmp_path: Path, frames: int | None, fps: float | None) -> None:
    document = pypdfium2.PdfDocument.new()
    document.new_page(30, 40)
    document.new_page(50, 60)
    document.save(tmp_path / "a.pdf")
    Image.effect_noise((20, 30), 90).save(tmp_path / "a.png")
    steady, uneven = clip(tmp_path / "a.mkv"), clip(tmp_path / "uneven.mkv", [0, 5, 6, 7, 30])
    media = [
        Media(kind="image", path=str(tmp_path / "a.png")),
        steady,
        Media(kind="video", path=steady.path, span=(2, 7), frames=4),
        uneven,
        Media(kind="page", path=str(tmp_path / "a.pdf"), page=1),
    ]
    samples = [sample("all", *media), *(sample(str(n), medium) for n, medium in enumerate(media))]
    with MediaAhead(samples, frames=frames, fps=fps) as ahead:
        for one in samples:
            here = [read_visual(medium, frames=frames, fps=fps) for medium in one.media]
            assert told(ahead.read(one)) == told(here)
    assert read_visual(uneven).ticks, "a file of variable rate is among them"


def test_an_unreadable_file_gives_the_same_text(tmp_path: Path) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    media = [Media(kind="video", path=str(tmp_path / name)) for name in ("broken.mp4", "absent.mp4")]
    media += [Media(kind="page", path=str(tmp_path / "absent.pdf")), Media(kind="image", path=str(tmp_path / "a.png"))]
    samples = [sample(str(n), medium) for n, medium in enumerate(media)]
    with MediaAhead(samples, frames=None, fps=None) as ahead:
        for one in samples:
            with pytest.raises(SampleError) as here:
                read_visual(one.media[0])
            with pytest.raises(SampleError) as there:
                ahead.read(one)
            assert str(there.value) == str(here.value)


@pytest.mark.usefixtures("hostile")
def test_a_file_that_crashes_the_decoder_costs_one_sample(tmp_path: Path) -> None:
    samples = clips(tmp_path, "a", "crash", "b", "c", "d")
    failed = {}
    with MediaAhead(samples, frames=2, fps=None) as ahead:
        for one in samples:
            try:
                assert told(ahead.read(one)) == told([read_visual(one.media[0], frames=2)])
            except SampleError as error:
                failed[one.id] = str(error)
    assert failed == {"crash": f"{tmp_path}/crash.mkv: the process that read it died (SIGSEGV)"}


def test_a_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    samples = clips(tmp_path, "a", "b", "c")
    with MediaAhead(samples, frames=2, fps=None) as ahead:
        ahead.read(samples[0])
        first = pid_of(ahead)
        os.kill(first, signal.SIGKILL)
        for one in samples[1:]:
            assert told(ahead.read(one)) == told([read_visual(one.media[0], frames=2)])
        assert pid_of(ahead) != first


@pytest.mark.usefixtures("hostile")
def test_a_file_that_hangs_the_decoder_costs_one_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = clips(tmp_path, "a", "hang", "b")
    with MediaAhead(samples, frames=2, fps=None) as ahead:
        ahead.read(samples[0])
        hung = pid_of(ahead)
        monkeypatch.setattr(decoding, "LIMIT_S", 0.1)
        with pytest.raises(SampleError, match=r"hang\.mkv: not read within 0\.1 s$"):
            ahead.read(samples[1])
        assert state(hung) in ("", "Z")
        monkeypatch.setattr(decoding, "LIMIT_S", 60)
        assert ahead.read(samples[2])


@pytest.mark.usefixtures("hostile")
def test_a_mistake_of_ours_is_no_sample_s_failure(tmp_path: Path) -> None:
    samples = clips(tmp_path, "bug")
    with MediaAhead(samples, frames=2, fps=None) as ahead, pytest.raises(RuntimeError, match="a mistake of ours"):
        ahead.read(samples[0])


def test_it_stands_still_while_something_is_timed(tmp_path: Path) -> None:
    samples = clips(tmp_path, "a", "b", "c")
    with MediaAhead(samples, frames=2, fps=None) as ahead:
        pid = pid_of(ahead)
        with ahead.paused():
            assert becomes(lambda: state(pid) == "T")
        assert becomes(lambda: state(pid) != "T")
        for one in samples:
            assert ahead.read(one)


@pytest.mark.parametrize("paused", [False, True])
def test_an_interruption_leaves_no_process(tmp_path: Path, paused: bool) -> None:
    pids = []

    def work() -> None:
        with MediaAhead(clips(tmp_path, "a", "b", "c"), frames=2, fps=None) as ahead:
            pids.append(pid_of(ahead))
            with ahead.paused() if paused else contextlib.nullcontext():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert state(pids[0]) in ("", "Z")


@pytest.mark.parametrize("paused", [False, True])
def test_it_ends_with_a_run_that_is_killed(tmp_path: Path, paused: bool) -> None:
    script = f"""
import os, signal
from contextlib import nullcontext
from core_bench.decoding import MediaAhead
from core_bench.schema import Media, Sample
media = (Media(kind="video", path={str(tmp_path / "a.mkv")!r}),)
sample = Sample(task="t", id="a", cluster="a", media=media, prompt="", question="", target="")
with MediaAhead([sample], frames=None, fps=None) as ahead:
    ahead.read(sample)
    with ahead.paused() if {paused} else nullcontext():
        print(ahead._worker.process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""
    clip(tmp_path / "a.mkv")
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert becomes(lambda: state(int(ended.stdout)) in ("", "Z"))


def test_small_pictures_need_no_process(tmp_path: Path) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    samples = [sample("a", Media(kind="image", path=str(tmp_path / "a.png")))]
    with MediaAhead(samples, frames=None, fps=None) as ahead:
        assert ahead._worker is None
        assert told(ahead.read(samples[0])) == told([read_visual(samples[0].media[0])])
        assert ahead._worker is None
        with ahead.paused():  # nothing to stand still
            pass


def test_large_pictures_are_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "LIGHT_BYTES", 100)
    Image.effect_noise((30, 20), 90).save(tmp_path / "a.png")
    samples = [sample("a", Media(kind="image", path=str(tmp_path / "a.png")))]
    with MediaAhead(samples, frames=None, fps=None) as ahead:
        assert ahead._worker is not None
        assert told(ahead.read(samples[0])) == told([read_visual(samples[0].media[0])])


def test_no_more_than_two_samples_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = clips(tmp_path, "a", "b", "c", "d")
    asked: list[str] = []

    def note(worker: Any, request: dict[str, Any]) -> None:
        asked.extend(Path(medium["path"]).stem for medium in request["media"])
        ask(worker, request)

    ask = decoding._Worker.ask
    monkeypatch.setattr(decoding._Worker, "ask", note)
    with MediaAhead(samples, frames=1, fps=None) as ahead:
        assert asked == ["a", "b"]
        ahead.read(samples[0])
        assert asked == ["a", "b", "c"]
        assert len(asked) == 1 + AHEAD
        with pytest.raises(RuntimeError, match="sample d: read out of turn, b comes first"):
            ahead.read(samples[3])


def test_pixels_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decodeworker, "MOST_BYTES", 10)
    outbox = decodeworker._Outbox()
    outbox.put([b"x" * 10])
    outbox.wait_for_room()  # ten are not too many
    outbox.put([b"y", b"z"])
    went_on = threading.Event()

    def go_on() -> None:
        outbox.wait_for_room()
        went_on.set()

    threading.Thread(target=go_on, daemon=True).start()
    assert not went_on.wait(0.1)
    read, write = os.pipe()
    threading.Thread(target=outbox.send, args=(write,), daemon=True).start()
    assert went_on.wait(10)
    fetched = b""
    while len(fetched) < 12:
        fetched += os.read(read, 12)
    assert fetched == b"x" * 10 + b"yz"


def test_laps(tmp_path: Path) -> None:
    samples = clips(tmp_path, "a", "b")
    with MediaAhead(samples, frames=2, fps=None) as ahead:
        ahead.read(samples[0])
        first, second = with_lap([{"id": "a", "times": {"generate_ms": 1.0}}, {"id": "b"}], ahead)
        assert first["times"] == {"generate_ms": 1.0, **second["times"]}
        assert 0 < second["times"]["media_ms"] <= second["times"]["sample_ms"]
        (unread,) = with_lap([{"id": "c"}], ahead)
        assert unread["times"]["media_ms"] == 0, "the wait counts for one sample only"
