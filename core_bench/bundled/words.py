"""Words of the generated tasks: what can be drawn, and how a question about it is put."""

from __future__ import annotations

SHAPES = (
    "circle", "square", "triangle", "diamond", "cross", "plus", "star", "ring",
    "heart", "arrow", "moon", "bar", "column", "frame", "hourglass", "house",
)  # fmt: skip

COLORS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (50, 80, 220),
    "yellow": (235, 215, 50),
    "purple": (150, 60, 190),
    "orange": (245, 140, 30),
    "white": (250, 250, 250),
    "black": (10, 10, 10),
}

COLOR_QUESTIONS = (
    "What color is {phrase}?",
    "Which color does {phrase} have?",
    "Tell me the color of {phrase}.",
    "Look at {phrase}: what is its color?",
)

# Descriptions of a moment, as in VidSTG: lower case, without a full stop.
CAPTIONS = ("{phrase} is on the screen", "a person looks at {phrase}", "{phrase} is shown in the video")
MOMENT_QUESTIONS = (
    "what color is {phrase} on the screen?",
    "who looks at {phrase}?",
    "where is {phrase} in the video?",
)

# Running text of generated documents; names neither shapes nor colors.
DOCUMENT_WORDS = (
    "annual", "report", "figures", "total", "of", "the", "results", "and", "in", "this", "section", "table", "value",
    "average", "per", "year", "with", "growth", "data", "method", "sample", "share", "costs", "review", "summary",
)  # fmt: skip


def phrase(shape: str) -> str:
    """The referring expression of an object."""
    return f"the {shape}"
