"""Media read ahead: a process of its own opens the videos and PDF pages of the samples to come.

It gets lines of JSON and answers with JSON and raw pixels, so that what arrives is, byte for byte, what `read_visual`
gives. It loads no torch. A file that crashes the decoder takes this worker along, not the run. The worker leads a
process group: Ctrl-C does not reach it, and where the run is killed while the worker is stopped, the system ends it;
awake, it ends when its input does.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Self

from PIL import Image

from core_bench.decodeworker import LENGTH_BYTES
from core_bench.errors import SampleError
from core_bench.media import Visual, read_visual
from core_bench.runfolder import Row
from core_bench.schema import Media, Sample

AHEAD = 2  # samples that are read before they are wanted
LIMIT_S = 600.0  # of waiting for one sample: an hour of video whose header counts no frames takes minutes
LIGHT_BYTES = 1 << 20  # pictures that take at most so much on disk are read here, faster than they could be handed over
_START = "import sys; sys.path[:] = sys.argv[1:]; from core_bench.decodeworker import serve; serve()"
COMMAND = (sys.executable, "-c", _START)  # and this process's sys.path, so that both run the same files


class MediaAhead:
    """Reads the media of `samples`, which are to be asked for in this order. Use it in a `with` statement.

    `frames`, `fps`: as in `read_visual`.
    """

    def __init__(self, samples: Iterable[Sample], *, frames: int | None, fps: float | None) -> None:
        self._frames, self._fps = frames, fps
        self._coming = deque(sample for sample in samples if not _is_light(sample.media))
        self._asked: deque[Sample] = deque()
        self._elsewhere = {sample.id for sample in self._coming}
        self._worker: _Worker | None = None
        self._waited_ms = 0.0
        self._lap_began = time.perf_counter()

    def __enter__(self) -> Self:
        if self._coming:
            self._ask(AHEAD)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def read(self, sample: Sample) -> list[Visual]:
        """The sample's media. Raises SampleError as `read_visual` does, and for what crashes the worker or keeps it
        beyond the limit."""
        begin = time.perf_counter()
        try:
            if sample.id in self._elsewhere:
                return self._fetch(sample)
            return [read_visual(medium, frames=self._frames, fps=self._fps) for medium in sample.media]
        finally:
            self._waited_ms += (time.perf_counter() - begin) * 1000

    def lap(self) -> dict[str, float]:
        """Times of a row: since the last lap or the start, in all and in `read`."""
        now = time.perf_counter()
        found = {"media_ms": self._waited_ms, "sample_ms": (now - self._lap_began) * 1000}
        self._waited_ms, self._lap_began = 0.0, now
        return found

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is read meanwhile: for what is timed."""
        worker = self._worker
        if worker is None:
            yield
            return
        worker.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            worker.process.send_signal(signal.SIGCONT)

    def _fetch(self, sample: Sample) -> list[Visual]:
        names = ", ".join(dict.fromkeys(medium.path for medium in sample.media))
        # Over which sample a worker died is not known, it may be one further on: this one is tried again, alone.
        for count in (1 + AHEAD, 1):
            worker = self._ask(count)
            if self._asked[0] is not sample:
                raise RuntimeError(f"sample {sample.id}: read out of turn, {self._asked[0].id} comes first")
            try:
                answer = worker.answer(time.monotonic() + LIMIT_S)
            except TimeoutError:
                self._end()
                self._coming.popleft()
                raise SampleError(f"{names}: not read within {LIMIT_S:g} s") from None
            except EOFError:
                ended_by = self._end()
                continue
            self._asked.popleft()
            if isinstance(answer, SampleError):
                raise answer
            return answer
        self._coming.popleft()
        raise SampleError(f"{names}: the process that read it died ({ended_by})")

    def _ask(self, count: int) -> _Worker:
        """Have the next `count` samples asked for; the worker, which is started where there is none."""
        if self._worker is None:
            self._worker = _Worker()
        while len(self._asked) < count and self._coming:
            sample = self._coming.popleft()
            self._asked.append(sample)
            media = [asdict(medium) for medium in sample.media]
            self._worker.ask({"media": media, "frames": self._frames, "fps": self._fps})
        return self._worker

    def _end(self) -> str:
        """End the worker; what it was asked for is to be asked again. Returns what had ended it."""
        worker, self._worker = self._worker, None
        self._coming.extendleft(reversed(self._asked))
        self._asked.clear()
        return "" if worker is None else worker.end()


def with_lap(rows: Iterable[Row], media: MediaAhead) -> list[Row]:
    """The rows of the sample just worked on, with how long that took."""
    lap = media.lap()
    return [{**row, "times": {**row.get("times", {}), **lap}} for row in rows]


class _Worker:
    """The other process, seen from here."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *sys.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._requests, self._answers = self.process.stdin, self.process.stdout
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._answers, selectors.EVENT_READ)

    def ask(self, request: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # it is dead, as the missing answer will show
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()

    def answer(self, deadline: float) -> list[Visual] | SampleError:
        """The next answer. EOFError where the worker is dead, TimeoutError at the deadline (of the monotonic clock)."""
        length = int.from_bytes(self._read(LENGTH_BYTES, deadline))
        told = json.loads(self._read(length, deadline))
        if "failure" in told:
            return SampleError(told["failure"])
        if "bug" in told:
            raise RuntimeError(f"reading media: {told['bug']}")
        return [self._visual(fields, deadline) for fields in told["visuals"]]

    def _visual(self, fields: dict[str, Any], deadline: float) -> Visual:
        sizes = fields.pop("sizes")
        pictures = [Image.frombytes("RGB", (w, h), self._read(3 * w * h, deadline)) for w, h in sizes]
        return Visual(
            **fields
            | {"pictures": tuple(pictures), "ticks": dict(fields["ticks"])}
            | {name: tuple(fields[name]) for name in ("frames", "seconds")}
        )

    def _read(self, count: int, deadline: float) -> bytearray:
        data = bytearray(count)
        left = memoryview(data)
        while left:
            if not self._ready.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            got = os.readv(self._answers.fileno(), [left])
            if not got:
                raise EOFError
            left = left[got:]
        return data

    def end(self) -> str:
        """Kill it, also where it is stopped; returns what had ended it, if it was dead already."""
        self.process.kill()
        code = self.process.wait()
        self._ready.close()
        self._answers.close()
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _is_light(media: Sequence[Media]) -> bool:
    """Whether these are pictures, and small ones. A missing file is light: it is told where it is read."""
    if any(medium.kind != "image" for medium in media):
        return False
    try:
        return sum(os.path.getsize(medium.path) for medium in media) <= LIGHT_BYTES
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return True
