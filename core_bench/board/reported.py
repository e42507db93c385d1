"""What the study reports, to stand beside measured figures and never among them."""

from __future__ import annotations

REPORTED_TITLE = (
    "As reported by the study (arXiv 2606.05843) for other, far larger models; none of it is measured here:"
)
REPORTED = (
    ("few heads find the evidence", "the bottom heads scatter"),
    ("larger models", "Qwen3-VL 4B to 32B: from scattered heads to a bottleneck in deep layers (32B: 44-56)"),
    ("architecture", "Qwen3-VL sparse, LLaVA-OneVision moderate, InternVL3.5 dense"),
    ("stability between data sets", "Spearman 0.79-0.92; about 30 heads shared by all four"),
    ("top 5% off", "about 45% -> about 27% accuracy (Qwen3-VL-4B); bottom heads: almost no change"),
    ("prefill speed-up", "up to 2.3x on long context (MLVU, Video-MME)"),
    (
        "accuracy of hybrid",
        "LLaVA-OneVision, 19.1% of heads full: slightly above dense; Qwen3-VL-32B, 4.9%: negligible loss",
    ),
)
