"""The time stamps in a prompt are those at which the frames are shown, also where a file's rate varies."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.schema import Media, Sample


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
    path = tmp_path / "clip.mkv"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "bgr0"
        for time in tenths:
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), time, dtype=np.uint8), format="rgb24")
            frame = frame.reformat(format="bgr0")
            frame.pts, frame.time_base = time, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    video = Media(kind="video", path=str(path))
    sample = Sample(task="t", id="1", cluster="c", media=(video,), prompt="When?", question="When?", target="now")
    wrapper = Qwen3VL(tiny_model, tiny_processor)
    prepared = wrapper.prepare(sample, frames=4)
    assert prepared.frames == (frames,)
    row = prepared.to_row()
    assert row["fps"] == pytest.approx([10], abs=8)  # an average, of the uneven file
    told = [[tenths[frame] / 10 for frame in frames]] if tenths != list(range(20)) else None
    assert row.get("seconds") == told, "where frames and their rate do not tell it"
    text = wrapper.processor.tokenizer.decode(prepared.inputs["input_ids"][0])
    said = [float(stamp) for stamp in re.findall(r"<\s*([\d.]+)\s*seconds\s*>", text)]
    assert said == pytest.approx(stamps, abs=0.051), text
    assert [block.seconds for block in prepared.token_map.blocks] == pytest.approx(list(stamps), abs=0.01)
