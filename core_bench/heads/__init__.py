"""Heads of a language model: what each may see (`HeadPlan`), how they score (`HeadScores`), which are picked.

A head is (layer, query head), both 0-based, as the text model's config counts them. Nothing here needs torch.
"""

from core_bench.heads.choice import (
    ArmSpec,
    Draw,
    check_budget,
    k_for,
    parse_arms,
    random_controls,
    read_head_list,
    select_heads,
)
from core_bench.heads.plan import Head, HeadPlan, HeadShape, Hold, Mode, OffKind
from core_bench.heads.scores import HeadScores, pool_scores

__all__ = [
    "ArmSpec",
    "Draw",
    "Head",
    "HeadPlan",
    "HeadScores",
    "HeadShape",
    "Hold",
    "Mode",
    "OffKind",
    "check_budget",
    "k_for",
    "parse_arms",
    "pool_scores",
    "random_controls",
    "read_head_list",
    "select_heads",
]
