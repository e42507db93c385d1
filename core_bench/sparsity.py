"""How unevenly attention mass is spread over heads and over layers. Masses are at least zero and not all zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core_bench.stats import Floats

SLACK = 1e-9  # of the mass: a running sum may fall short of a share by rounding


def lorenz(mass: Floats) -> tuple[Floats, Floats]:
    """Share of heads, from the largest down, and the share of all mass that they hold; both (heads + 1,), from 0 to 1.

    This is the Lorenz curve (Lorenz 1905) turned by half a turn: it lies above the diagonal.
    """
    values = _checked(mass)
    held = np.concatenate([[0.0], np.cumsum(np.sort(values)[::-1])])
    return np.linspace(0, 1, len(held)), held / held[-1]


def gini(mass: Floats) -> float:
    """Gini coefficient: 0 where all heads hold the same, 1 - 1 / heads where one holds all.

    Half the mean absolute difference of two heads drawn with replacement, over the mean (Gini 1912), which of values
    sorted upwards is sum over i of (2 i - n - 1) x_i / (n sum of x), i from 1.
    """
    values = np.sort(_checked(mass))
    n = len(values)
    return float((2 * np.arange(1, n + 1) - n - 1) @ values / (n * values.sum()))


def heads_holding(mass: Floats, share: float) -> int:
    """The smallest number of heads that hold at least this share of the mass."""
    _, held = lorenz(mass)
    return int(np.argmax(held >= share - SLACK))


@dataclass(frozen=True)
class Layers:
    """Where in depth the mass lies: `share` (layers,) of it in each layer; mean depth and standard deviation of depth,
    on a scale from 0, the input of the first layer, to 1, the output of the last."""

    share: Floats
    centroid: float
    spread: float


def layers(mass_LH: Floats) -> Layers:
    """The mass as a distribution over depth, layer l of n at (l + 1/2) / n, so that models of any depth compare. Evenly
    spread mass has centroid 1/2 and a spread near 0.29."""
    _checked(mass_LH.ravel())
    share = mass_LH.sum(axis=1) / mass_LH.sum()
    depth = (np.arange(len(share)) + 0.5) / len(share)
    centroid = float(share @ depth)
    return Layers(share, centroid, float(np.sqrt(share @ (depth - centroid) ** 2)))


def _checked(mass: Floats) -> Floats:
    values = np.asarray(mass, dtype=np.float64).ravel()
    if values.size == 0 or not bool(np.all(np.isfinite(values))) or values.min() < 0 or values.sum() <= 0:
        raise ValueError("mass: expected finite values of at least zero, and one above it")
    return values
