"""The process that reads media ahead of a run, see core_bench/decoding.py: what it does, and how it answers.

A request is a line of JSON on stdin; an answer on stdout is the length of a JSON text, that text, and the pixels of all
pictures that it names, as rows of RGB.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from collections import deque
from typing import Any

from core_bench.errors import SampleError
from core_bench.media import Visual, read_visual
from core_bench.schema import Media

MOST_BYTES = 1 << 30  # of pixels that wait to be fetched: while there are more, no further sample is begun
LENGTH_BYTES = 8


class _Outbox:
    """Answers that wait to be fetched."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._answers: deque[list[bytes]] = deque()
        self._bytes = 0

    def wait_for_room(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._bytes <= MOST_BYTES)

    def put(self, parts: list[bytes]) -> None:
        with self._changed:
            self._answers.append(parts)
            self._bytes += sum(map(len, parts))
            self._changed.notify_all()

    def send(self, pipe: int) -> None:
        """Write all answers, now and to come, into `pipe`."""
        with open(pipe, "wb") as file:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._answers)
                    parts = self._answers.popleft()
                try:
                    file.writelines(parts)
                    file.flush()
                except OSError:  # the run is gone
                    os._exit(1)
                with self._changed:
                    self._bytes -= sum(map(len, parts))
                    self._changed.notify_all()


def serve() -> None:
    """The worker's own work: answer the requests on stdin until that ends."""
    pipe = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not come between the answers
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    outbox = _Outbox()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    threading.Thread(target=outbox.send, args=(pipe,), daemon=True).start()
    while True:
        outbox.wait_for_room()
        outbox.put(_answer(json.loads(requests.get())))


def _listen(requests: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)  # the run is gone, whatever is being decoded


def _answer(request: dict[str, Any]) -> list[bytes]:
    """Length, JSON and pixels of one answer."""
    told: dict[str, Any]
    pixels: list[bytes] = []
    try:
        media = [Media(**{**fields, "span": fields["span"] and tuple(fields["span"])}) for fields in request["media"]]
        visuals = [read_visual(medium, frames=request["frames"], fps=request["fps"]) for medium in media]
        pixels = [picture.tobytes() for visual in visuals for picture in visual.pictures]
        told = {"visuals": [_fields(visual) for visual in visuals]}
    except SampleError as error:
        told = {"failure": str(error)}
    except Exception:  # the run ends with it, as if it had come up there
        told = {"bug": traceback.format_exc()}
    text = json.dumps(told).encode()
    return [len(text).to_bytes(LENGTH_BYTES), text, *pixels]


def _fields(visual: Visual) -> dict[str, Any]:
    """A visual without its pixels, as JSON holds it."""
    told = {name: getattr(visual, name) for name in ("path", "kind", "frames", "fps", "n_frames", "seconds")}
    return {**told, "sizes": [picture.size for picture in visual.pictures], "ticks": list(visual.ticks.items())}
