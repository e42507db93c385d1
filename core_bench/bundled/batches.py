"""Training batches: pictures, documents or clips with several question-and-answer turns each, loss on every answer.

Several questions on one medium give several times the training signal of one. Pixels are cut into patches here as
the real processors do (tested to equal them), ten times faster.
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
from core_bench.bundled.pages import make_document
from core_bench.bundled.scene import CELL, make_scene
from core_bench.bundled.turns import LETTERS, Turn, choice_turn, color_turn, document_turn, moment_turn

PATCH, MERGE, TEMPORAL = 16, 2, 2
LOOKS = ("option", "first", "last")  # what an answer is read off: the right option, an object's first and last second
_WRAPPED_RATE = 0.75  # share of clips in the form of the newest processor
_SYSTEM_RATE = 0.25  # share of clip conversations that open with MLVU's system message


@dataclass(frozen=True)
class Plan:
    """What one step trains on.

    `kind`: "picture", "document" or "clip"; `parts`: pictures, pages or seconds of one conversation; `objects`: their
    number, a closed range; `one_second`: whether clips are seen second by second, so that moments can be asked for.
    Shares of the turns: `choice` are multiple choice, `moment` about moments, `absent` (of a document's) about a shape
    that it does not show. `reach`: question and media are moved apart by up to so many positions, in half of the
    conversations.
    """

    kind: str
    size: int
    parts: int
    rows: int
    cols: int
    objects: tuple[int, int]
    max_turns: int = 6
    choice: float = 0.0
    moment: float = 0.0
    one_second: bool = True
    reach: int = 0
    absent: float = 0.2


@dataclass(frozen=True)
class Batch:
    """Model inputs plus, for every supervised position, (row, column, target id).

    `aux` has helping targets, by name: the color at the `shape` word of a question, the letter at an `option`, at the
    visual tokens of an object the last digit of the second (`time`) and whether it is its first one (`begins`), where
    the letter of an option is said its color (`choice`), and where a moment is said the `asked` shape. `looks`: by name
    of LOOKS, (row, column of an answer, column where it stands). `idle`: (row, column) of tokens of questions behind
    the word that asks. `kinds[i]` is the kind of turn i, whose first supervised position is `firsts[i]`. `shifts`:
    (row, first column, distance) of the conversations whose questions are moved away from the media.
    """

    inputs: dict[str, torch.Tensor]
    answers: torch.Tensor  # int64 [n, 3]
    aux: dict[str, torch.Tensor]  # int64 [m, 3] each
    looks: dict[str, torch.Tensor]  # int64 [m, 3] each
    idle: torch.Tensor  # int64 [m, 2]
    kinds: tuple[str, ...]
    firsts: tuple[int, ...]
    shifts: tuple[tuple[int, int, int], ...]


def patchify(pixels: np.ndarray) -> torch.Tensor:
    """uint8 [H, W, 3] to normalised float32 patches [H/16 * W/16, 3*2*16*16], in the processor's 2x2-block order."""
    height, width, channels = pixels.shape
    x = torch.from_numpy(pixels).permute(2, 0, 1).float() / 127.5 - 1.0
    block = (channels, height // CELL, MERGE, PATCH, width // CELL, MERGE, PATCH)
    x = x.reshape(block).permute(1, 4, 2, 5, 0, 3, 6)
    x = x.unsqueeze(5).expand(-1, -1, -1, -1, -1, TEMPORAL, -1, -1)
    return x.reshape(height * width // PATCH**2, channels * TEMPORAL * PATCH * PATCH)


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
        names = ("<|endoftext|>", "<|image_pad|>", "<|video_pad|>")
        self.pad_id, self.image_id, self.video_id = (self._single(name) for name in names)

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _single(self, text: str) -> int:
        ids = self._encode(text)
        if len(ids) != 1:
            raise ValueError(f"{text!r} should be one token of the bundled tokenizer, is {len(ids)}")
        return ids[0]

    def pictures(self, parts: int, n_visual: int) -> list[int]:
        """`parts` pictures or pages of `n_visual` tokens each."""
        one = [*self.encode("<|vision_start|>"), *([self.image_id] * n_visual), *self.encode("<|vision_end|>")]
        return one * parts

    def clip(self, stamps: Sequence[float], n_visual: int, wrapped: bool = True) -> tuple[list[int], list[int]]:
        """One group of `n_visual` tokens for each time stamp (seconds), as the processor writes them, and where the
        visual tokens of each start.

        `wrapped`: the processor of transformers 5.24 leaves the template's own vision marks around the groups, older
        ones replace them.
        """
        ids, starts = list(self.encode("<|vision_start|>")) if wrapped else [], []
        for stamp in stamps:
            ids += self.encode(f"<{stamp:.1f} seconds><|vision_start|>")
            starts.append(len(ids))
            ids += [*([self.video_id] * n_visual), *self.encode("<|vision_end|>")]
        return (ids + self.encode("<|vision_end|>") if wrapped else ids), starts


@dataclass(frozen=True)
class Conversation:
    """Media as pictures uint8 [parts, H, W, 3] with their token ids, and the turns about them."""

    pixels: np.ndarray
    media_ids: list[int]
    turns: list[Turn]
    system: str | None = None
    marks: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)  # (index into media_ids, target id)
    places: Mapping[tuple[str, int], int] = field(default_factory=dict)  # (shape, second) -> index into media_ids


def _picture(turns: Turns, rng: np.random.Generator, plan: Plan, n_objects: int) -> Conversation:
    scene = make_scene(rng, plan.rows, plan.cols, n_objects)
    asked = []
    for index in rng.permutation(n_objects)[: plan.max_turns]:
        thing = scene.objects[index]
        others = [other.color for other in scene.objects if other is not thing]
        if rng.random() < plan.choice:
            asked.append(choice_turn(rng, thing, others, mlvu=bool(rng.random() < 0.5)))
        else:
            asked.append(color_turn(rng, thing))
    return Conversation(scene.pixels[None], turns.pictures(1, plan.rows * plan.cols), asked)


def _document(turns: Turns, rng: np.random.Generator, plan: Plan, n_objects: int) -> Conversation:
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
    return Conversation(pixels, turns.pictures(plan.parts, plan.rows * plan.cols), asked)


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


def _clip(turns: Turns, rng: np.random.Generator, plan: Plan, n_objects: int) -> Conversation:
    clip = make_clip(
        rng, plan.rows, plan.cols, plan.parts, _durations(rng, plan.parts, plan.rows * plan.cols, n_objects)
    )
    spacing = 1.0 if plan.one_second else float(rng.choice((0.5, 1.0, 1.5, 2.0, 4.0, 7.5)))
    stamps = [spacing * (second + 0.25) for second in range(plan.parts)]
    asked = [_clip_turn(rng, plan, clip, int(index)) for index in rng.permutation(len(clip.tracks))[: plan.max_turns]]
    system = instructions.MLVU_SYSTEM if rng.random() < _SYSTEM_RATE else None
    wrapped = bool(rng.random() < _WRAPPED_RATE)
    media_ids, starts = turns.clip(stamps, plan.rows * plan.cols, wrapped)
    places: dict[tuple[str, int], int] = {}
    times, begins = [], []
    for track in clip.tracks:
        for second, (x0, y0, _, _) in enumerate(track.boxes, start=track.first):
            at = starts[second] + int(y0 // CELL) * plan.cols + int(x0 // CELL)
            places[track.shape, second] = at
            times.append((at, turns.digit_ids[int(stamps[second]) % 10]))
            begins.append((at, turns.yes_id if second == track.first else turns.no_id))
    marks = {"time": tuple(times), "begins": tuple(begins)}
    return Conversation(clip.pixels, media_ids, asked, system, marks, places)


def _clip_turn(rng: np.random.Generator, plan: Plan, clip: Clip, index: int) -> Turn:
    track, drawn = clip.tracks[index], rng.random()
    if plan.one_second and drawn < plan.moment:
        return moment_turn(rng, track)
    if drawn < plan.moment + plan.choice:
        others = [other.color for other in clip.tracks if other is not track]
        return choice_turn(rng, track, others, mlvu=bool(rng.random() < 0.5))
    return color_turn(rng, track)


_MAKERS = {"picture": _picture, "document": _document, "clip": _clip}


def converse(turns: Turns, rng: np.random.Generator, plan: Plan) -> Conversation:
    """One conversation of a batch."""
    n_objects = int(rng.integers(plan.objects[0], plan.objects[1] + 1))
    return _MAKERS[plan.kind](turns, rng, plan, n_objects)


@dataclass
class Row:
    """A conversation as token ids; `answers` and each of `aux` are (column, target id), `looks` (column, looked at)."""

    ids: list[int]
    answers: list[tuple[int, int]]
    aux: dict[str, list[tuple[int, int]]]
    looks: dict[str, list[tuple[int, int]]]
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
    row = Row(ids, [], aux, {name: [] for name in LOOKS}, [], [], [], len(ids))
    for number, turn in enumerate(talk.turns):
        if number:
            ids += turns.encode("<|im_start|>user\n")
        question = turns.encode(f"{turn.text}<|im_end|>\n<|im_start|>assistant\n{turn.prime}")
        asked = question.index(turns.shape_ids[turn.shape])
        row.idle += [len(ids) + asked + 1, len(ids) + (asked + len(question)) // 2]
        if turn.color is not None:
            row.aux["shape"].append((len(ids) + asked, turns.color_ids[turn.color]))
            for letter, option in zip(LETTERS, turn.options, strict=False):
                at = len(ids) + question.index(turns.color_ids[option], asked)
                row.aux["option"].append((at, turns.letter_ids[letter]))
                if letter == turn.answer:
                    row.looks["option"].append((len(ids) + len(question) - 1, at))
        ids += question
        target = turns.encode(f"{turn.answer}<|im_end|>\n")
        row.kinds.append(turn.kind)
        row.firsts.append(len(row.answers))
        if turn.options and turn.color is not None:
            row.aux["choice"].append((len(ids) - 1, turns.color_ids[turn.color]))
        if turn.moment is not None:
            for name, second, digits in _digits(turn.moment):
                at = before + talk.places[turn.shape, second]
                row.looks[name] += [(len(ids) - 1 + digit, at) for digit in digits]
                row.aux["asked"] += [(len(ids) - 1 + digit, turns.shape_ids[turn.shape]) for digit in digits]
        row.answers += [(len(ids) - 1 + at, token) for at, token in enumerate(target[:-1])]
        ids += target
    return row


def _digits(moment: tuple[int, int]) -> list[tuple[str, int, range]]:
    """For the start and the end of "12-15": where to look (LOOKS), the second to look at, the digits' places."""
    first, end = moment
    dash = len(str(first))
    return [("first", first, range(dash)), ("last", end - 1, range(dash + 1, dash + 1 + len(str(end))))]


def make_batch(turns: Turns, rng: np.random.Generator, plan: Plan) -> Batch:
    """`plan.size` conversations."""
    talks = [converse(turns, rng, plan) for _ in range(plan.size)]
    rows = [write_row(turns, talk) for talk in talks]
    length = max(len(row.ids) for row in rows)
    input_ids = torch.full((plan.size, length), turns.pad_id)
    mask = torch.zeros(plan.size, length, dtype=torch.long)
    for number, row in enumerate(rows):
        input_ids[number, : len(row.ids)] = torch.tensor(row.ids)
        mask[number, : len(row.ids)] = 1
    inputs = {
        "input_ids": input_ids,
        "attention_mask": mask,
        "mm_token_type_ids": ((input_ids == turns.image_id) + 2 * (input_ids == turns.video_id)).int(),
        **_pixels(plan, talks),
    }
    answers: list[tuple[int, int, int]] = []
    aux: dict[str, list[tuple[int, int, int]]] = {}
    looks: dict[str, list[tuple[int, int, int]]] = {}
    shifts: list[tuple[int, int, int]] = []
    idle: list[tuple[int, int]] = []
    kinds, firsts = [], []  # type: list[str], list[int]
    for number, row in enumerate(rows):
        firsts += [len(answers) + first for first in row.firsts]
        kinds += row.kinds
        answers += [(number, column, target) for column, target in row.answers]
        idle += [(number, column) for column in row.idle]
        for found, of_row in ((aux, row.aux), (looks, row.looks)):
            for name, pairs in of_row.items():
                found.setdefault(name, []).extend((number, column, other) for column, other in pairs)
        if plan.reach and rng.random() < 0.5:
            shifts.append((number, row.media_end, int(rng.integers(1, plan.reach))))
    helping, guiding = ({name: torch.tensor(m) for name, m in marks.items() if m} for marks in (aux, looks))
    return Batch(
        inputs, torch.tensor(answers), helping, guiding, torch.tensor(idle), tuple(kinds), tuple(firsts), tuple(shifts)
    )


def _pixels(plan: Plan, talks: Sequence[Conversation]) -> dict[str, torch.Tensor]:
    patches = torch.cat([patchify(picture) for talk in talks for picture in talk.pixels])
    height, width = plan.rows * MERGE, plan.cols * MERGE
    if plan.kind == "clip":
        grid = torch.tensor([[plan.parts, height, width]] * plan.size)
        return {"pixel_values_videos": patches, "video_grid_thw": grid}
    pictures = plan.size * (plan.parts if plan.kind == "document" else 1)
    return {"pixel_values": patches, "image_grid_thw": torch.tensor([[1, height, width]] * pictures)}
