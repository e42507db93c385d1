"""How much softmax mass given query tokens put on given sets of keys, head by head."""

from core_bench.kernels.attention_mass.api import IMPLEMENTATIONS, attention_mass

__all__ = ["IMPLEMENTATIONS", "attention_mass"]
