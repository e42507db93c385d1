"""Attention in which every query head has a mode of its own: full, streaming, silenced or blind to visual keys."""

from core_bench.kernels.hybrid_attention.api import IMPLEMENTATIONS, hybrid_attention

__all__ = ["IMPLEMENTATIONS", "hybrid_attention"]
