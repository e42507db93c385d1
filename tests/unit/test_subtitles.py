"""Subtitles: SubRip files as they come, and what a prompt shows of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from core_bench.errors import SampleError
from core_bench.media import Visual
from core_bench.schema import Media, Sample
from core_bench.subtitles import HEADING, SUBTITLES_HERE, Cue, read_srt, shown_at, with_subtitles

PLAIN = "1\n00:00:01,000 --> 00:00:02,500\nHello there.\n\n2\n00:01:00,000 --> 01:02:03,004\nTwo\nlines\n"


def cues_of(folder: Path, content: str | bytes) -> list[Cue]:
    path = folder / "a.srt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_srt(str(path))


@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\r"),
        "\ufeff" + PLAIN,
        PLAIN.replace("1\n00:00:01", "00:00:01").replace("\n\n2\n", "\n\n"),  # without counters
        PLAIN.replace("\n\n2\n", "\n2\n"),  # without blank lines
        PLAIN.replace("\n\n2\n", "\n\n\n\n 2 \n"),
        PLAIN.replace(",", "."),
        PLAIN.replace("00:00:01,000 --> 00:00:02,500", "00:01,000-->  00:02,5"),  # without hours
        PLAIN.replace("02,500", "02,500 X1:10 X2:20 Y1:5 Y2:9"),
        PLAIN.replace("Hello there.", '<font color="white" size=".72c">Hello there.</font>'),
        PLAIN.replace("Hello there.", "{\\an8}<i>Hello&nbsp;there.</i>"),
        PLAIN + "\n3\n00:00:09,000 --> 00:00:10,000\n\n",  # nothing said
        PLAIN + "\n3\n00:00:10,000 --> 00:00:09,000\nbackwards\n",
        PLAIN.rstrip("\n"),
    ],
)
def test_files_as_they_come(tmp_path: Path, content: str) -> None:
    assert cues_of(tmp_path, content) == [Cue(1.0, 2.5, "Hello there."), Cue(60.0, 3723.004, "Two lines")]


def test_cues_stand_in_order_of_time(tmp_path: Path) -> None:
    late, early = "00:00:05,000 --> 00:00:06,000\nlate\n", "00:00:01,000 --> 00:00:02,000\nearly\n"
    assert [cue.text for cue in cues_of(tmp_path, f"{late}\n{early}")] == ["early", "late"]
    assert cues_of(tmp_path, "") == []
    [number] = cues_of(tmp_path, "1\n00:00:01,000 --> 00:00:02,000\n1984\n")
    assert number.text == "1984", "a number may be what is said"


def test_files_that_are_no_subtitles(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=r"a\.srt: expected subtitles in UTF-8: byte 40"):
        cues_of(tmp_path, PLAIN.encode().replace(b"there", b"th\xe9re"))
    with pytest.raises(SampleError, match=r"a\.srt: expected subtitles in SubRip's format"):
        cues_of(tmp_path, "WEBVTT and nothing else")
    with pytest.raises(SampleError, match=r"none\.srt: cannot be read \(No such file"):
        read_srt(str(tmp_path / "none.srt"))


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="0123456789:,.->\n <>{}\\ab", max_size=120), st.lists(st.floats(0, 1e4), max_size=5))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str, seconds: list[float]) -> None:
    try:
        cues = cues_of(tmp_path_factory.getbasetemp(), text)
    except SampleError:
        return
    assert all(cue.begin < cue.end and cue.text and "\n" not in cue.text for cue in cues)
    assert set(shown_at(cues, seconds)) <= {cue.text for cue in cues}


def test_only_what_is_on_screen_at_a_sampled_frame() -> None:
    cues = [Cue(0, 2, "a"), Cue(2, 4, "b"), Cue(4, 6, "b"), Cue(6, 8, "c"), Cue(7, 9, "d"), Cue(10, 11, "a")]
    assert shown_at(cues, [1.0]) == ["a"]
    assert shown_at(cues, [2.0]) == ["b"], "a cue ends when the next begins"
    assert shown_at(cues, [3.0, 5.0]) == ["b"], "what goes on is given once"
    assert shown_at(cues, [7.5, 0.5, 1.0, 10.5]) == ["a", "c", "d", "a"]
    assert shown_at(cues, [9.5, 99.0]) == shown_at(cues, []) == shown_at([], [1.0]) == []


def test_a_prompt_gets_the_subtitles_of_its_frames(tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_text(PLAIN)
    video = Media(kind="video", path="a.mp4", subtitles=str(tmp_path / "a.srt"))
    pictures = (Image.new("RGB", (4, 4)),) * 2
    visual = Visual(path="a.mp4", kind="clip", pictures=pictures, frames=(0, 30), fps=10.0, seconds=(0.0, 1.5))
    sample = Sample(
        task="t", id="1", cluster="c", media=(video,), prompt=f"{SUBTITLES_HERE}Who?", question="Who?", target="A"
    )
    assert with_subtitles(sample, [visual]).prompt == f"{HEADING}Hello there.\nWho?"
    assert HEADING == "This video's subtitles are listed below:\n"
    late = replace(visual, seconds=(70.0, 71.0))
    assert with_subtitles(sample, [late]).prompt == f"{HEADING}Two lines\nWho?"
    assert with_subtitles(sample, [replace(visual, seconds=(5.0, 6.0))]).prompt == "Who?", "nothing is said there"
    without = replace(sample, media=(replace(video, subtitles=None),))
    assert with_subtitles(without, [visual]).prompt == "Who?"
    untouched = replace(sample, prompt="Who?")
    assert with_subtitles(untouched, [visual]) is untouched
