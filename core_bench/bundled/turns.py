"""Questions and answers about generated media, as the tasks put them: the text that training batches are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core_bench import instructions
from core_bench.answers import letter_of
from core_bench.bundled import words
from core_bench.bundled.clip import Track
from core_bench.bundled.scene import Object

LETTERS = tuple(letter_of(number) for number in range(4))


@dataclass(frozen=True)
class Turn:
    """One question with its answer; `prime` opens the answer. `color` is that of the asked `shape`, None if it is
    absent. `options` in the order of LETTERS. `kind` names the sort of answer for the log."""

    kind: str
    text: str
    answer: str
    shape: str
    color: str | None
    prime: str = ""
    options: tuple[str, ...] = ()
    moment: tuple[int, int] | None = None  # [first, end) in seconds


def color_question(rng: np.random.Generator, shape: str) -> str:
    """The question which color an object has, in one of its wordings."""
    return str(rng.choice(words.COLOR_QUESTIONS)).format(phrase=words.phrase(shape))


def color_turn(rng: np.random.Generator, thing: Object | Track) -> Turn:
    """RefCOCOg and MMDocIR: the color in one word."""
    text = f"{color_question(rng, thing.shape)}\n{instructions.ONE_WORD}"
    return Turn("color", text, thing.color, thing.shape, thing.color)


def document_turn(rng: np.random.Generator, shape: str, color: str | None) -> Turn:
    """MMLongBench-Doc: the color, or "Not answerable" for None."""
    text = instructions.MMLONGBENCH_DOC.format(question=color_question(rng, shape))
    kind = "absent" if color is None else "document"
    return Turn(kind, text, color or instructions.NOT_ANSWERABLE, shape, color)


def options_for(rng: np.random.Generator, color: str, others: Sequence[str]) -> list[str]:
    """Four distinct colors in random order: the right one and three of `others`, filled up from all colors."""
    wrong = sorted(set(others) - {color})
    wrong = [str(name) for name in rng.permutation(wrong)]
    spare = [name for name in words.COLORS if name != color and name not in wrong]
    wrong += [str(name) for name in rng.permutation(spare)]
    return [str(name) for name in rng.permutation([color, *wrong[: len(LETTERS) - 1]])]


def choice_turn(rng: np.random.Generator, thing: Object | Track, others: Sequence[str], mlvu: bool) -> Turn:
    """Multiple choice as in MLVU or Video-MME; `others` are the colors of the other things in sight."""
    options = options_for(rng, thing.color, others)
    question = color_question(rng, thing.shape)
    letter = LETTERS[options.index(thing.color)]
    if mlvu:
        text = instructions.MLVU.format(question=question, options=instructions.lettered_brackets(options))
        return Turn("mlvu", text, letter, thing.shape, thing.color, instructions.MLVU_PRIME, tuple(options))
    text = instructions.VIDEOMME.format(question=question, options=instructions.lettered_dots(options))
    return Turn("videomme", text, letter, thing.shape, thing.color, options=tuple(options))


def moment_turn(rng: np.random.Generator, track: Track) -> Turn:
    """VidSTG: the seconds in which an object is seen, "3-7" for [3, 7)."""
    template = str(rng.choice((*words.CAPTIONS, *words.MOMENT_QUESTIONS)))
    text = instructions.VIDSTG.format(query=template.format(phrase=words.phrase(track.shape)))
    moment = (track.first, track.end)
    return Turn("moment", text, f"{track.first}-{track.end}", track.shape, track.color, moment=moment)
