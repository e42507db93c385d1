"""The processes that share one run: `accelerate launch -m core_bench ...` and `torchrun -m core_bench ...` start them.

Samples are dealt out, each process appends to a file of its own, and the leader (rank 0) sums up. What passes between
processes is small and rare: who leads says that a step is done, or why not. Gloo carries it, on CPUs too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from core_bench.errors import UserError
from core_bench.schema import Sample

if TYPE_CHECKING:
    from core_bench.taskspec import FailedSample

T = TypeVar("T")
_PATIENCE = timedelta(days=7)  # a barrier waits for the slowest; a process that dies is noticed at once
_POLL_S = 0.02


class ToldByLeader(UserError):
    """The leader's mistake, on the other processes: it is told already."""


@dataclass(frozen=True)
class Team:
    """Process `rank` of `size`; `local_rank` of `local_size` on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def lead(self, work: Callable[[], T]) -> T:
        """What `work` returns on the leader, on every process; a UserError of it is raised on every process, too.

        The others wait: what the leader has written is there when they go on.
        """
        if self.size == 1:
            return work()
        from torch import distributed

        said: list[Any] = [None, None]
        if self.leads:
            try:
                said = [work(), None]
            except UserError as error:
                said = [None, error]
        self.wait()
        distributed.broadcast_object_list(said, src=0)
        result, mistake = said
        if mistake is not None:
            raise mistake if self.leads else ToldByLeader(str(mistake))
        value: T = result
        return value

    def leader_first(self, work: Callable[[], T]) -> T:
        """`work()` on every process, once the leader is done with it. For what makes files that are read thereafter."""
        done: list[T] = []
        self.lead(lambda: done.append(work()))
        return done[0] if done else work()

    def wait(self) -> None:
        """Until every process is here. UserError where one has died."""
        if self.size == 1:
            return
        from torch import distributed

        arrived = distributed.barrier(async_op=True)
        try:
            while not arrived.is_completed():  # in Python, so that signals are heard
                time.sleep(_POLL_S)
            arrived.wait()
        except RuntimeError:
            raise UserError(
                "another process of this run has ended early, its own message says why; the same command goes on"
            ) from None

    def shares_device(self, kind: str) -> bool:
        """Whether several processes compute on one device of this kind, so that no time of theirs means anything."""
        if kind == "cuda":
            import torch

            return self.local_size > torch.cuda.device_count()
        return self.local_size > 1

    def share(self, items: Sequence[T], cost: Callable[[T], float]) -> list[T]:
        """This process's part of `items`, in their order. By cost, dearest first, they go to each process and back
        again, so that dear ones do not pile up at one. The same on every process that knows the same items."""
        dearest_first = sorted(range(len(items)), key=lambda number: (-cost(items[number]), number))
        turns = [*range(self.size), *reversed(range(self.size))]
        mine = [number for place, number in enumerate(dearest_first) if turns[place % len(turns)] == self.rank]
        return [items[number] for number in sorted(mine)]


@cache
def this_team() -> Team:
    """The team of this process, as its launcher says; alone without one. UserError for half of what one says."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    given = [os.environ.get(name) for name in names]
    if given[1] is None:
        return Team()
    try:
        rank, size, local_rank, local_size = (int(text or "") for text in given)
    except ValueError:
        what = ", ".join(f"{name}={text}" for name, text in zip(names, given, strict=True))
        raise UserError(f"launcher: expected whole numbers in {', '.join(names)}, got {what}") from None
    if size > 1:
        from torch import distributed

        distributed.init_process_group("gloo", timeout=_PATIENCE)
    return Team(rank, size, local_rank, local_size)


def weight(sample: Sample | FailedSample) -> float:
    """About how long a sample takes: its media's bytes on disk; a missing file is light."""
    total = 0.0
    for medium in sample.media if isinstance(sample, Sample) else ():
        try:
            total += os.path.getsize(medium.path)
        except (OSError, ValueError):
            continue
    return total
