"""Attention in which every query head has a mode of its own: full, streaming, silenced or blind to visual keys."""

from core_bench.kernels.hybrid_attention.api import hybrid_attention
from core_bench.kernels.hybrid_attention.backends import (
    IMPLEMENTATIONS,
    available,
    check_impl,
    choose,
    describe,
    why_not,
)

__all__ = ["IMPLEMENTATIONS", "available", "check_impl", "choose", "describe", "hybrid_attention", "why_not"]
