"""RAM of every head with its error, and the head table `heads.tsv` that carries it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from core_bench.errors import UserError
from core_bench.heads.plan import Head, HeadShape

FloatArray = NDArray[np.float64]
COLUMNS = ("layer", "head", "ram", "stderr", "chance", "sink_corrected", "n")
_VALUES = COLUMNS[2:6]


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Mean RAM (attention mass on the evidence, 0..1) of each head over `n` samples; all arrays [layers, heads]
    float64, read-only.

    stderr: standard error of `ram`, clustered by image, video or document (NaN: one cluster only). chance: what an
    attention spread evenly over all visible keys would put on the evidence. sink_corrected: RAM minus the mean RAM of
    placebo regions (NaN: no sample had room for a placebo).
    """

    ram: FloatArray
    stderr: FloatArray
    chance: FloatArray
    sink_corrected: FloatArray
    n: int

    def __post_init__(self) -> None:
        for name in _VALUES:
            array = np.array(getattr(self, name), dtype=np.float64)
            if array.ndim != 2 or 0 in array.shape or array.shape != np.shape(self.ram):
                raise UserError(f"HeadScores: {name}: expected [layers, heads] like ram, got shape {array.shape}")
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        for name in ("ram", "chance"):
            bad = np.argwhere(~np.isfinite(getattr(self, name)))
            if len(bad):
                layer, head = map(int, bad[0])
                raise UserError(f"HeadScores: {name} of head ({layer}, {head}) is not a finite number")
        if self.n < 1:
            raise UserError(f"HeadScores: n: expected at least 1 sample, got {self.n}")

    @property
    def n_layers(self) -> int:
        return int(self.ram.shape[0])

    @property
    def n_heads(self) -> int:
        return int(self.ram.shape[1])

    def ranking(self) -> list[Head]:
        """All heads, highest RAM first; equal ones by (layer, head)."""
        order = np.argsort(-self.ram, axis=None, kind="stable")  # row-major: a stable sort breaks ties by (layer, head)
        return [divmod(int(flat), self.n_heads) for flat in order]

    def top(self, k: int) -> list[Head]:
        self._check_k(k)
        return self.ranking()[:k]

    def bottom(self, k: int) -> list[Head]:
        self._check_k(k)
        return self.ranking()[-k:]

    def _check_k(self, k: int) -> None:
        if not 1 <= k <= self.ram.size:
            raise UserError(f"number of heads: expected 1 to {self.ram.size}, got {k}")

    def write_tsv(self, path: str | os.PathLike[str]) -> None:
        """Write the head table whole or not at all; floats in the shortest form that reads back exactly."""
        lines = ["\t".join(COLUMNS)]
        for layer, head in np.ndindex(self.n_layers, self.n_heads):
            values = [repr(float(getattr(self, name)[layer, head])) for name in _VALUES]
            lines.append("\t".join([str(layer), str(head), *values, str(self.n)]))
        target = Path(path)
        partial = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
        partial.replace(target)

    @classmethod
    def read_tsv(cls, path: str | os.PathLike[str], shape: HeadShape | None = None) -> HeadScores:
        """Read a head table. UserError names file and line, and both shapes when it was made for another model."""
        rows = _read_rows(Path(path))
        n_layers = max(layer for layer, _ in rows) + 1
        n_heads = max(head for _, head in rows) + 1
        if shape is not None and (n_layers, n_heads) != (shape.n_layers, shape.n_heads):
            raise UserError(f"{path}: a table of {n_layers} layers x {n_heads} heads, but the model has {shape}")
        if len(rows) != n_layers * n_heads:
            raise UserError(
                f"{path}: expected one row for each of {n_layers} layers x {n_heads} heads, got {len(rows)} rows"
            )
        counts = {n for _, n in rows.values()}
        if len(counts) != 1:
            raise UserError(f"{path}: column n: expected the same number in every row, got {sorted(counts)}")
        grid = np.array([rows[divmod(flat, n_heads)][0] for flat in range(len(rows))])
        try:
            columns = [column.reshape(n_layers, n_heads) for column in grid.T]
            return cls(columns[0], columns[1], columns[2], columns[3], counts.pop())
        except UserError as error:
            raise UserError(f"{path}: {error}") from None


def _read_rows(path: Path) -> dict[Head, tuple[tuple[float, ...], int]]:
    """(layer, head) -> (the four float columns, n)."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: expected a readable head table: {error}") from None
    if not lines or tuple(lines[0].split("\t")) != COLUMNS:
        raise UserError(f"{path}:1: expected the tab-separated columns {' '.join(COLUMNS)}")
    rows: dict[Head, tuple[tuple[float, ...], int]] = {}
    for number, line in enumerate(lines[1:], start=2):
        cells = line.split("\t")
        try:
            if len(cells) != len(COLUMNS):
                raise ValueError(f"expected {len(COLUMNS)} columns, got {len(cells)}")
            head = (int(cells[0]), int(cells[1]))
            if min(head) < 0:
                raise ValueError(f"expected layer and head from 0 up, got {head}")
            if head in rows:
                raise ValueError(f"head {head} stands in the table twice")
            rows[head] = (tuple(map(float, cells[2:6])), int(cells[6]))
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}") from None
    if not rows:
        raise UserError(f"{path}: expected one row a head, got none")
    return rows


def pool_scores(tables: Sequence[HeadScores]) -> HeadScores:
    """Unweighted mean of the tasks' tables: every task counts the same, however many samples it has.

    Standard errors add in quadrature and are divided by the number of tasks (the tasks' samples are independent); n
    is the sum.
    """
    if not tables:
        raise UserError("pooling head tables: expected at least one table")
    if len({table.ram.shape for table in tables}) != 1:
        raise UserError(f"pooling head tables: expected one shape, got {[table.ram.shape for table in tables]}")
    stacked = {name: np.stack([getattr(table, name) for table in tables]) for name in _VALUES}
    return HeadScores(
        ram=stacked["ram"].mean(axis=0),
        stderr=np.sqrt((stacked["stderr"] ** 2).sum(axis=0)) / len(tables),
        chance=stacked["chance"].mean(axis=0),
        sink_corrected=stacked["sink_corrected"].mean(axis=0),
        n=sum(table.n for table in tables),
    )
