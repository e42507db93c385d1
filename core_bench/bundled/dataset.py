"""What a generated data set is: its splits, how one is written, and how one is made for a length of prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Dataset:
    """`splits`: name -> frozen dataclass with everything the content depends on, among it `seed` and `n`.

    `write(folder, split, spec)` writes the split's files; item i depends on the seed and i alone. `sized(spec, tokens)`
    is `spec` with media of another size, so that a prompt of the bundled model has about `tokens` tokens.
    """

    splits: Mapping[str, Any]
    write: Callable[[Path, str, Any], None]
    sized: Callable[[Any, int], Any]
