"""Progress with counts and remaining time, on stderr, for what takes longer than two seconds at a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, TypeVar

from core_bench.team import this_team

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")
DELAY_S = 2.0


def track(items: Iterable[Item], label: str, total: int | None = None) -> Iterator[Item]:
    """The items, with a bar on stderr while they are worked through; nothing where stderr is no terminal.

    `total` defaults to the length of `items` where they have one; without one only the count is shown.
    """
    if not sys.stderr.isatty() or not this_team().leads:
        yield from items
        return
    if total is None and isinstance(items, Sized):
        total = len(items)
    bar = _LateBar(label, total)
    try:
        for done, item in enumerate(items, start=1):
            yield item
            bar.update(done)
    finally:
        bar.close()


class _LateBar:
    """A bar that appears after `DELAY_S`, from a timer: the first item alone may take longer."""

    def __init__(self, label: str, total: int | None) -> None:
        self._label, self._total, self._done = label, total, 0
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._closed = False
        self._timer = threading.Timer(DELAY_S, self._show)
        self._timer.daemon = True
        self._timer.start()

    def update(self, done: int) -> None:
        with self._lock:
            self._done = done
            if self._progress is not None:
                self._progress.update(self._progress.task_ids[0], completed=done)

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._progress is not None:
                self._progress.stop()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with self._lock:
            if self._closed:
                return
            # stdout is left alone: tables may go to a pipe.
            self._progress = Progress(
                *columns, console=Console(file=sys.stderr), redirect_stdout=False, redirect_stderr=False
            )
            self._progress.add_task(self._label, total=self._total, completed=self._done)
            self._progress.start()
