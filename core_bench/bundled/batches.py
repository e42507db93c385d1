"""Training batches: pictures, documents or clips with several question-and-answer turns each, loss on every answer.

Several questions on one medium give several times the training signal of one. What differs between families is in
`core_bench.bundled.feeds`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from core_bench import instructions
from core_bench.bundled import words
from core_bench.bundled.clip import Clip, draw_duration, make_clip
from core_bench.bundled.feeds import Feed, Layout, Plan
from core_bench.bundled.pages import make_document
from core_bench.bundled.scene import CELL, make_scene
from core_bench.bundled.turns import LETTERS, Turn, choice_turn, color_turn, document_turn, moment_turn
from core_bench.schema import Box

LOOKS = ("option", "first", "last")  # what an answer is read off: the right option, an object's first and last second
_WRAPPED_RATE = 0.75  # share of clips in the form of the newest processor
_SYSTEM_RATE = 0.25  # share of clip conversations that open with MLVU's system message


@dataclass(frozen=True)
class Sights:
    """Queries at (row, column), int64 [m, 2], and the columns that each should look at, int64 [m, p], -1 for none."""

    queries: torch.Tensor
    columns: torch.Tensor

    @classmethod
    def of(cls, found: Sequence[tuple[int, int, tuple[int, ...]]]) -> Sights:
        """From (row, column, columns to look at)."""
        widest = max((len(columns) for _, _, columns in found), default=0)
        padded = [[*columns, *([-1] * (widest - len(columns)))] for _, _, columns in found]
        queries = torch.tensor([(row, column) for row, column, _ in found], dtype=torch.long).reshape(len(found), 2)
        return cls(queries, torch.tensor(padded, dtype=torch.long).reshape(len(found), widest))


@dataclass(frozen=True)
class Batch:
    """Model inputs plus, for every supervised position, (row, column, target id).

    `aux` has helping targets, by name: the color at the `shape` word of a question, the letter at an `option`, at the
    visual tokens of an object the last digit of the second (`time`) and whether it is its first one (`begins`), where
    the letter of an option is said its color (`choice`), and where a moment is said the `asked` shape. `looks`: by name
    of LOOKS, columns of answers and where they stand. `finds`: the words that ask for something, and where it is to be
    seen. `idle`: (row, column) of tokens of questions behind the word that asks. `kinds[i]` is the kind of turn i,
    whose first supervised position is `firsts[i]`. `shifts`: (row, first column, distance) of the conversations whose
    questions are moved away from the media. `visual`: whether a token is a visual one.
    """

    inputs: dict[str, torch.Tensor]
    answers: torch.Tensor  # int64 [n, 3]
    aux: dict[str, torch.Tensor]  # int64 [m, 3] each
    looks: dict[str, Sights]
    finds: Sights
    idle: torch.Tensor  # int64 [m, 2]
    kinds: tuple[str, ...]
    firsts: tuple[int, ...]
    shifts: tuple[tuple[int, int, int], ...]
    visual: torch.Tensor  # bool [rows, columns]


class Turns:
    """Token ids of texts and of the special tokens, cached."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.encode = lru_cache(maxsize=65536)(self._encode)
        self.shape_ids = {shape: self._single(" " + shape) for shape in words.SHAPES}
        self.color_ids = {color: self._single(color) for color in words.COLORS}
        self.letter_ids = {letter: self._single(letter) for letter in LETTERS}
        self.digit_ids = [self._single(digit) for digit in "0123456789"]
        self.yes_id, self.no_id = self._single("yes"), self._single("no")
        self.pad_id = int(tokenizer.pad_token_id)

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _single(self, text: str) -> int:
        ids = self._encode(text)
        if len(ids) != 1:
            raise ValueError(f"{text!r} should be one token of the bundled tokenizer, is {len(ids)}")
        return ids[0]


@dataclass(frozen=True)
class Conversation:
    """Media as pictures uint8 [parts, H, W, 3] with their token ids, and the turns about them."""

    pixels: np.ndarray
    media_ids: list[int]
    turns: list[Turn]
    system: str | None = None
    marks: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)  # (index into media_ids, target id)
    # Shape -> second of a clip (0 elsewhere) -> indices into media_ids of the tokens that show it.
    places: Mapping[str, Mapping[int, tuple[int, ...]]] = field(default_factory=dict)


def _cell(layout: Layout, part: int, box: Box) -> tuple[int, ...]:
    """The tokens that show the cell in which a box lies."""
    return layout.at(part, int(box[1] // CELL), int(box[0] // CELL))


def _picture(turns: Turns, feed: Feed, rng: np.random.Generator, plan: Plan, n_objects: int) -> Conversation:
    scene = make_scene(rng, plan.rows, plan.cols, n_objects)
    asked = []
    for index in rng.permutation(n_objects)[: plan.max_turns]:
        thing = scene.objects[index]
        others = [other.color for other in scene.objects if other is not thing]
        if rng.random() < plan.choice:
            asked.append(choice_turn(rng, thing, others, mlvu=bool(rng.random() < 0.5)))
        else:
            asked.append(color_turn(rng, thing))
    layout = feed.pictures(1, plan.rows, plan.cols)
    places = {thing.shape: {0: _cell(layout, 0, thing.box)} for thing in scene.objects}
    return Conversation(scene.pixels[None], layout.ids, asked, places=places)


def _document(turns: Turns, feed: Feed, rng: np.random.Generator, plan: Plan, n_objects: int) -> Conversation:
    pages = make_document(rng, plan.parts, plan.rows, plan.cols, n_objects)
    things = [thing for page in pages for thing in page.objects]
    absent = sorted(set(words.SHAPES) - {thing.shape for thing in things})
    asked = []
    for index in rng.permutation(len(things))[: plan.max_turns]:
        if absent and rng.random() < plan.absent:
            asked.append(document_turn(rng, str(rng.choice(absent)), None))
        elif rng.random() < 0.6:
            asked.append(document_turn(rng, things[index].shape, things[index].color))
        else:
            asked.append(color_turn(rng, things[index]))
    pixels = np.stack([page.with_text() for page in pages])
    layout = feed.pictures(plan.parts, plan.rows, plan.cols)
    places = {thing.shape: {0: _cell(layout, n, thing.box)} for n, page in enumerate(pages) for thing in page.objects}
    return Conversation(pixels, layout.ids, asked, places=places)


def _durations(rng: np.random.Generator, seconds: int, cells: int, n_objects: int) -> list[int]:
    """Seconds that each object is to be seen: short and long ones, half of the cells in use at most on average."""
    room, lengths = cells * seconds / 2, []
    for _ in range(n_objects):
        length = draw_duration(rng, seconds)
        if length > room:
            break
        lengths.append(length)
        room -= length
    return lengths


def _clip(turns: Turns, feed: Feed, rng: np.random.Generator, plan: Plan, n_objects: int) -> Conversation:
    clip = make_clip(
        rng, plan.rows, plan.cols, plan.parts, _durations(rng, plan.parts, plan.rows * plan.cols, n_objects)
    )
    spacing = 1.0 if plan.one_second else float(rng.choice((0.5, 1.0, 1.5, 2.0, 4.0, 7.5)))
    stamps = [spacing * (second + 0.25) for second in range(plan.parts)]
    asked = [_clip_turn(rng, plan, clip, int(index)) for index in rng.permutation(len(clip.tracks))[: plan.max_turns]]
    system = instructions.MLVU_SYSTEM if rng.random() < _SYSTEM_RATE else None
    wrapped = bool(rng.random() < _WRAPPED_RATE)
    layout = feed.clip(stamps, plan.rows, plan.cols, wrapped)
    places: dict[str, dict[int, tuple[int, ...]]] = {}
    times, begins = [], []
    for track in clip.tracks:
        places[track.shape] = {}
        for second, box in enumerate(track.boxes, start=track.first):
            places[track.shape][second] = _cell(layout, second, box)
            for at in places[track.shape][second]:
                times.append((at, turns.digit_ids[int(stamps[second]) % 10]))
                begins.append((at, turns.yes_id if second == track.first else turns.no_id))
    marks = {"time": tuple(times), "begins": tuple(begins)}
    return Conversation(clip.pixels, layout.ids, asked, system, marks, places)


def _clip_turn(rng: np.random.Generator, plan: Plan, clip: Clip, index: int) -> Turn:
    track, drawn = clip.tracks[index], rng.random()
    if plan.one_second and drawn < plan.moment:
        return moment_turn(rng, track)
    if drawn < plan.moment + plan.choice:
        others = [other.color for other in clip.tracks if other is not track]
        return choice_turn(rng, track, others, mlvu=bool(rng.random() < 0.5))
    return color_turn(rng, track)


_MAKERS = {"picture": _picture, "document": _document, "clip": _clip}


def converse(turns: Turns, feed: Feed, rng: np.random.Generator, plan: Plan) -> Conversation:
    """One conversation of a batch."""
    n_objects = int(rng.integers(plan.objects[0], plan.objects[1] + 1))
    return _MAKERS[plan.kind](turns, feed, rng, plan, n_objects)


@dataclass
class Row:
    """A conversation as token ids; `answers` and each of `aux` are (column, target id), each of `looks` and `finds`
    (column, columns looked at)."""

    ids: list[int]
    answers: list[tuple[int, int]]
    aux: dict[str, list[tuple[int, int]]]
    looks: dict[str, list[tuple[int, tuple[int, ...]]]]
    finds: list[tuple[int, tuple[int, ...]]]
    idle: list[int]
    kinds: list[str]
    firsts: list[int]  # into `answers`
    media_end: int  # the first column after the media


def write_row(turns: Turns, talk: Conversation) -> Row:
    """The conversation as the processor and the chat template write it."""
    opening = f"<|im_start|>system\n{talk.system}<|im_end|>\n" if talk.system else ""
    ids = [*turns.encode(opening + "<|im_start|>user\n"), *talk.media_ids]
    before = len(ids) - len(talk.media_ids)
    aux: dict[str, list[tuple[int, int]]] = {"shape": [], "option": [], "choice": [], "asked": []}
    aux |= {name: [(before + at, target) for at, target in marks] for name, marks in talk.marks.items()}
    row = Row(ids, [], aux, {name: [] for name in LOOKS}, [], [], [], [], len(ids))
    for number, turn in enumerate(talk.turns):
        if number:
            ids += turns.encode("<|im_start|>user\n")
        question = turns.encode(f"{turn.text}<|im_end|>\n<|im_start|>assistant\n{turn.prime}")
        asked = question.index(turns.shape_ids[turn.shape])
        row.idle += [len(ids) + asked + 1, len(ids) + (asked + len(question)) // 2]
        if turn.color is not None:
            row.aux["shape"].append((len(ids) + asked, turns.color_ids[turn.color]))
            shown = [before + at for places in talk.places[turn.shape].values() for at in places]
            row.finds.append((len(ids) + asked, tuple(shown)))
            for letter, option in zip(LETTERS, turn.options, strict=False):
                at = len(ids) + question.index(turns.color_ids[option], asked)
                row.aux["option"].append((at, turns.letter_ids[letter]))
                if letter == turn.answer:
                    row.looks["option"].append((len(ids) + len(question) - 1, (at,)))
        ids += question
        target = turns.encode(f"{turn.answer}<|im_end|>\n")
        row.kinds.append(turn.kind)
        row.firsts.append(len(row.answers))
        if turn.options and turn.color is not None:
            row.aux["choice"].append((len(ids) - 1, turns.color_ids[turn.color]))
        if turn.moment is not None:
            for name, second, digits in _digits(turn.moment):
                shown = [before + at for at in talk.places[turn.shape][second]]
                row.looks[name] += [(len(ids) - 1 + digit, tuple(shown)) for digit in digits]
                row.aux["asked"] += [(len(ids) - 1 + digit, turns.shape_ids[turn.shape]) for digit in digits]
        row.answers += [(len(ids) - 1 + at, token) for at, token in enumerate(target[:-1])]
        ids += target
    return row


def _digits(moment: tuple[int, int]) -> list[tuple[str, int, range]]:
    """For the start and the end of "12-15": where to look (LOOKS), the second to look at, the digits' places."""
    first, end = moment
    dash = len(str(first))
    return [("first", first, range(dash)), ("last", end - 1, range(dash + 1, dash + 1 + len(str(end))))]


def make_batch(turns: Turns, feed: Feed, rng: np.random.Generator, plan: Plan) -> Batch:
    """`plan.size` conversations."""
    talks = [converse(turns, feed, rng, plan) for _ in range(plan.size)]
    rows = [write_row(turns, talk) for talk in talks]
    length = max(len(row.ids) for row in rows)
    input_ids = torch.full((plan.size, length), turns.pad_id)
    mask = torch.zeros(plan.size, length, dtype=torch.long)
    for number, row in enumerate(rows):
        input_ids[number, : len(row.ids)] = torch.tensor(row.ids)
        mask[number, : len(row.ids)] = 1
    inputs = {"input_ids": input_ids, "attention_mask": mask}
    inputs |= feed.inputs(plan, [talk.pixels for talk in talks], input_ids)
    answers: list[tuple[int, int, int]] = []
    aux: dict[str, list[tuple[int, int, int]]] = {}
    looks: dict[str, list[tuple[int, int, tuple[int, ...]]]] = {}
    finds: list[tuple[int, int, tuple[int, ...]]] = []
    shifts: list[tuple[int, int, int]] = []
    idle: list[tuple[int, int]] = []
    kinds, firsts = [], []  # type: list[str], list[int]
    for number, row in enumerate(rows):
        firsts += [len(answers) + first for first in row.firsts]
        kinds += row.kinds
        answers += [(number, column, target) for column, target in row.answers]
        idle += [(number, column) for column in row.idle]
        for name, pairs in row.aux.items():
            aux.setdefault(name, []).extend((number, column, target) for column, target in pairs)
        for name, sights in row.looks.items():
            looks.setdefault(name, []).extend((number, column, columns) for column, columns in sights)
        finds += [(number, column, columns) for column, columns in row.finds]
        if plan.reach and rng.random() < 0.5:
            shifts.append((number, row.media_end, int(rng.integers(1, plan.reach))))
    return Batch(
        inputs,
        torch.tensor(answers),
        {name: torch.tensor(marks) for name, marks in aux.items() if marks},
        {name: Sights.of(found) for name, found in looks.items() if found},
        Sights.of(finds),
        torch.tensor(idle),
        tuple(kinds),
        tuple(firsts),
        tuple(shifts),
        torch.isin(input_ids, torch.tensor(feed.visual_ids)),
    )
