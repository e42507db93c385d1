"""What can be measured at a model's attention without changing its result: mass on key sets, and time.

Shape suffixes: B batch, H query heads, K KV heads, R rows (query tokens), N queries, M keys, D head size, S key sets,
L layers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from core_bench.kernels.attention_mass import attention_mass


class MassProbe:
    """Collects, while one prompt is read, the softmax mass that query tokens put on sets of key tokens.

    `rows`: positions of the query tokens. `sets`: for each set the positions of its keys. After one forward (batch of
    one; in chunks or not) under `apply(model, plan, probe=probe)`, `mass` is float32 [L, H, S] on the CPU: the mean
    over rows of the mass, over all keys that a row sees. A probe that sees a second prompt starts anew.
    """

    def __init__(self, rows: Sequence[int], sets: Sequence[Sequence[int]]) -> None:
        if not rows:
            raise ValueError("rows: expected at least one query position, got none")
        if not sets:
            raise ValueError("sets: expected at least one set of key positions, got none")
        self.rows = tuple(int(r) for r in rows)
        self.sets = tuple(tuple(int(j) for j in keys) for keys in sets)
        self._n_layers = 0
        self._mass_by_layer: dict[int, Tensor] = {}  # summed over the rows seen so far
        self._seen: dict[int, int] = {}  # how many rows of each layer
        self._sets_SM = torch.zeros(len(self.sets), 0, dtype=torch.bool)

    @property
    def mass(self) -> Tensor:
        if not self._n_layers or self._seen != {layer: len(self.rows) for layer in range(self._n_layers)}:
            raise RuntimeError("MassProbe: no whole prompt was read while the probe was applied")
        return torch.stack([self._mass_by_layer[layer].cpu() for layer in range(self._n_layers)]) / len(self.rows)

    def begin(self, batch: int, length: int, n_layers: int) -> None:
        """A prompt of `length` tokens is about to be read."""
        if batch != 1:
            raise ValueError(f"MassProbe: expected a batch of one, got {batch}")
        used = [*self.rows, *(j for keys in self.sets for j in keys)]
        if min(used) < 0 or max(used) >= length:
            outside = min(used) if min(used) < 0 else max(used)
            raise ValueError(f"MassProbe: position {outside} lies outside the prompt of {length} tokens")
        self._n_layers = n_layers
        self._mass_by_layer, self._seen = {}, {}
        self._sets_SM = torch.zeros(len(self.sets), length, dtype=torch.bool)
        for s, keys in enumerate(self.sets):
            self._sets_SM[s, list(keys)] = True

    @torch.no_grad()
    def observe(
        self,
        layer: int,
        q_BHND: Tensor,
        k_BKMD: Tensor,
        *,
        start: int = 0,
        kv_range_B2: Sequence[tuple[int, int]],
        scale: float | None,
    ) -> None:
        """Takes one layer's queries, from position `start` on, and keys as its attention sees them.

        Extra memory O(H x R x tile).
        """
        rows = [row for row in self.rows if start <= row < start + q_BHND.shape[2]]
        if not rows:
            return
        self._sets_SM = self._sets_SM.to(q_BHND.device)
        mass_BHRS = attention_mass(
            q_BHND[:, :, [row - start for row in rows]],
            k_BKMD,
            rows_R=rows,
            sets_SM=self._sets_SM[:, : k_BKMD.shape[2]],
            kv_range_B2=kv_range_B2,
            scale=scale,
        )
        self._mass_by_layer[layer] = self._mass_by_layer.get(layer, 0.0) + mass_BHRS[0].sum(dim=1)
        self._seen[layer] = self._seen.get(layer, 0) + len(rows)


class AttentionTimer:
    """Adds up the seconds spent inside the language model's attention function, synchronised on CUDA."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def measure(self, device: torch.device) -> Iterator[None]:
        synchronize(device)
        begin = time.perf_counter()
        yield
        synchronize(device)
        self.seconds += time.perf_counter() - begin


def synchronize(device: torch.device) -> None:
    """Waits for the work queued on a CUDA device; other devices here run synchronously."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
