"""The times of frames in prompts, maps and labels are those at which they are shown, also where a rate varies."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from core_bench.media import read_visual
from core_bench.model_wrappers.base import ModelWrapper
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.schema import Media, Sample
from core_bench.show_panels import make_panels


def uneven(path: Path, tenths: list[int]) -> Media:
    """A clip whose frames are shown at these tenths of a second."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "bgr0"
        for time in tenths:
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), time, dtype=np.uint8), format="rgb24")
            frame = frame.reformat(format="bgr0")
            frame.pts, frame.time_base = time, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return Media(kind="video", path=str(path))


def sample_of(video: Media) -> Sample:
    return Sample(task="t", id="1", cluster="c", media=(video,), prompt="When?", question="When?", target="now")


@pytest.mark.parametrize(
    ("tenths", "frames", "stamps"),
    [
        # evenly: frames 0, 6, 13, 19 of ten a second, two to a stamp
        (list(range(20)), (0, 6, 13, 19), (0.3, 1.6)),
        # a long frame, a burst, a long frame: what is on screen at 0, 3.3, 6.6 and 9.9 seconds
        ([0, *range(30, 48), 99], (0, 4, 18, 19), (1.65, 7.3)),
    ],
)
def test_time_stamps(
    tmp_path: Path, tiny_model: Any, tiny_processor: Any, tenths: list[int], frames: tuple[int, ...],
    stamps: tuple[float, ...],
) -> None:  # fmt: skip
    wrapper = Qwen3VL(tiny_model, tiny_processor)
    prepared = wrapper.prepare(sample_of(uneven(tmp_path / "clip.mkv", tenths)), frames=4)
    assert prepared.frames == (frames,)
    row = prepared.to_row()
    assert row["fps"] == pytest.approx([10], abs=8)  # an average, of the uneven file
    told = [[tenths[frame] / 10 for frame in frames]] if tenths != list(range(20)) else None
    assert row.get("seconds") == told, "where frames and their rate do not tell it"
    text = wrapper.processor.tokenizer.decode(prepared.inputs["input_ids"][0])
    said = [float(stamp) for stamp in re.findall(r"<\s*([\d.]+)\s*seconds\s*>", text)]
    assert said == pytest.approx(stamps, abs=0.051), text
    assert [block.seconds for block in prepared.token_map.blocks] == pytest.approx(list(stamps), abs=0.01)


def test_every_family_knows_when_its_frames_are_shown(tmp_path: Path, untrained: ModelWrapper) -> None:
    tenths = [0, *range(30, 48), 99]
    sample = sample_of(uneven(tmp_path / "clip.mkv", tenths))
    prepared = untrained.prepare(sample, frames=4)
    for block in prepared.token_map.blocks:
        assert block.seconds == pytest.approx(np.mean([tenths[frame] / 10 for frame in block.frames]))
    visuals = [read_visual(sample.media[0], frames=4)]
    labels = [panel.label for panel in make_panels(sample, visuals, prepared.token_map, [])]
    drawn = [block.frames[0] for block in prepared.token_map.blocks]
    for frame, label in zip(drawn, labels, strict=True):
        assert f"frame {frame} ({tenths[frame] / 10:.1f} s)" in label
