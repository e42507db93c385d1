"""Answers a device that runs out of memory: the prompt is read again in smaller chunks, and the row says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

CHUNKS = (8192, 2048, 512)  # tokens; what is tried after the chunk that was asked for

T = TypeVar("T")


def within_memory(work: Callable[[int | None], T], length: int, chunk: int | None) -> tuple[T, int | None]:
    """`work(chunk)` for a prompt of `length` tokens, and the chunk that it could be done with; None: read at once.

    Raises torch.OutOfMemoryError where the smallest chunk does not fit either.
    """
    import torch

    at_once = length if chunk is None else min(chunk, length)
    *sizes, last = [chunk, *(size for size in CHUNKS if size < at_once)]
    for size in sizes:
        try:
            return work(size), _used(size, length)
        except torch.OutOfMemoryError:
            pass
        # Outside the handler: the error's traceback would keep the tensors of the failed forward alive.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return work(last), _used(last, length)


def _used(size: int | None, length: int) -> int | None:
    return size if size is not None and size < length else None
