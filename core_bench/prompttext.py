"""Texts as a person reads them: a prompt with its runs of visual tokens folded, a question on one line."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from core_bench.schema import Prepared


def readable_prompt(tokenizer: Any, prepared: Prepared) -> str:
    """The prompt as the model reads it, decoded from its ids; a run of N visual tokens is `[<|image_pad|> x N]`."""
    ids = prepared.inputs["input_ids"][0].tolist()
    visual = [role in ("cell", "newline") for role in prepared.token_map.roles()]
    pieces = []
    for placeholder, run in groupby(range(len(ids)), key=lambda at: ids[at] if visual[at] else None):
        tokens = [ids[at] for at in run]
        if placeholder is None:
            pieces.append(str(tokenizer.decode(tokens, skip_special_tokens=False)))
        else:
            pieces.append(f"[{tokenizer.convert_ids_to_tokens(placeholder)} x {len(tokens)}]")
    return "".join(pieces)


def on_one_line(text: str) -> str:
    """With every run of white space as one space."""
    return " ".join(text.split())
