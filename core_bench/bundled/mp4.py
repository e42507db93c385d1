"""Writes a generated clip as an MP4 file (H.264, 4:2:0) whose bytes depend on its pixels alone."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from core_bench.bundled.clip import FPS

_QUANTISER = 16  # close to the pixels; a clip of 16 s at 128 x 128 takes about 10 KB
# One thread and no adaptive choice that looks ahead; without the encoder's own report in the stream.
_OPTIONS = {
    "preset": "veryfast",
    "qp": str(_QUANTISER),
    "x264-params": "threads=1:aq-mode=0:mbtree=0:bframes=0:rc-lookahead=0:scenecut=0:keyint=32",
}


def write_mp4(path: Path, pixels: NDArray[np.uint8]) -> None:
    """`pixels`: uint8 [seconds, height, width, 3], RGB with even sides; each picture becomes FPS equal frames.

    Raises ValueError for an odd side, which 4:2:0 cannot hold.
    """
    _, height, width, _ = pixels.shape
    if height % 2 or width % 2:
        raise ValueError(f"a clip of {width} x {height} pixels: expected even sides")
    with av.open(str(path), "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=FPS, options=_OPTIONS)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.time_base = Fraction(1, FPS)
        stream.codec_context.thread_count = 1
        for number, picture in enumerate(pixels.repeat(FPS, axis=0)):
            frame = av.VideoFrame.from_ndarray(to_yuv420(picture), format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def to_yuv420(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """RGB uint8 [H, W, 3] as planar YUV 4:2:0, limited range: uint8 [H * 3 / 2, W]. Source: ITU-R BT.601-7, 2.5.

    Done here and not by the video library, whose result depends on the processor's instruction set.
    """
    rgb = picture.astype(np.float64) / 255
    luma = 16 + rgb @ (65.481, 128.553, 24.966)
    blue, red = 128 + rgb @ (-37.797, -74.203, 112.0), 128 + rgb @ (112.0, -93.786, -18.214)
    height, width = luma.shape
    chroma = [plane.reshape(height // 2, 2, width // 2, 2).mean(axis=(1, 3)) for plane in (blue, red)]
    planes = [luma.ravel(), *(plane.ravel() for plane in chroma)]
    return np.rint(np.concatenate(planes)).astype(np.uint8).reshape(height * 3 // 2, width)
