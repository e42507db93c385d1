"""How the bundled checkpoints are built: one module a family, each with the same functions.

    build_tokenizer()                             a fast tokenizer
    build_processor(tokenizer=None)               the family's real processor class
    build_config(tokenizer)                       the real configuration class, small
    build_model(seed=0, tokenizer=None)           freshly initialised, float32, eval mode

Importing this package imports no family.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol, cast

FAMILIES = ("qwen3vl", "llava_onevision", "internvl")


class Architecture(Protocol):
    """What a family's module has."""

    SPECIAL_TOKENS: tuple[str, ...]

    def build_tokenizer(self) -> Any: ...

    def build_processor(self, tokenizer: Any = None) -> Any: ...

    def build_config(self, tokenizer: Any) -> Any: ...

    def build_model(self, seed: int = 0, tokenizer: Any = None) -> Any: ...


def architecture(family: str) -> Architecture:
    """The module of a family; imports torch and transformers."""
    return cast(Architecture, importlib.import_module(f"{__name__}.{family}"))
