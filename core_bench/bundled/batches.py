"""Training batches: one picture and up to six question-and-answer turns about it, loss on every answer.

Several questions on one picture give several times the training signal of one. Pixels are cut into patches here as
the real image processor does (tested to equal it), ten times faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from core_bench.bundled import words
from core_bench.bundled.scene import CELL, Scene, make_scene

PATCH, MERGE, TEMPORAL = 16, 2, 2
IGNORE = -100


@dataclass(frozen=True)
class Batch:
    """Model inputs plus, for every supervised position, (row, column, target id); `aux` is the same for the shape
    words."""

    inputs: dict[str, torch.Tensor]
    answers: torch.Tensor  # int64 [n, 3]
    aux: torch.Tensor  # int64 [m, 3]


def patchify(pixels: np.ndarray) -> torch.Tensor:
    """uint8 [H, W, 3] to normalised float32 patches [H/16 * W/16, 3*2*16*16], in the processor's 2x2-block order."""
    height, width, channels = pixels.shape
    x = torch.from_numpy(pixels).permute(2, 0, 1).float() / 127.5 - 1.0
    block = (channels, height // CELL, MERGE, PATCH, width // CELL, MERGE, PATCH)
    x = x.reshape(block).permute(1, 4, 2, 5, 0, 3, 6)
    x = x.unsqueeze(5).expand(-1, -1, -1, -1, -1, TEMPORAL, -1, -1)
    return x.reshape(height * width // PATCH**2, channels * TEMPORAL * PATCH * PATCH)


class Turns:
    """Token ids of the turns of a conversation, cached."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.encode = lru_cache(maxsize=65536)(self._encode)
        self.shape_ids = {shape: self._single(" " + shape) for shape in words.SHAPES}
        self.color_ids = {color: self._single(color) for color in words.COLORS}
        self.pad_id, self.image_id = (self._single(t) for t in ("<|endoftext|>", "<|image_pad|>"))

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _single(self, text: str) -> int:
        ids = self._encode(text)
        if len(ids) != 1:
            raise ValueError(f"{text!r} should be one token of the bundled tokenizer, is {len(ids)}")
        return ids[0]

    def opening(self, n_visual: int) -> list[int]:
        """Everything before the first question."""
        ids = self.encode("<|im_start|>user\n<|vision_start|>")
        return [*ids, *([self.image_id] * n_visual), *self.encode("<|vision_end|>")]

    def question(self, template: str, shape: str, suffix: str) -> list[int]:
        """The question and everything up to the answer."""
        text = template.format(phrase=words.phrase(shape)) + suffix
        return self.encode(text + "<|im_end|>\n<|im_start|>assistant\n")


def build_row(scene: Scene, turns: Turns, rng: np.random.Generator, max_turns: int) -> tuple[list[int], list, list]:
    """One conversation: ids, [(column, target id)] of the answers, the same of the shape words."""
    height, width = scene.pixels.shape[:2]
    ids = turns.opening(height * width // CELL**2)
    answers, aux = [], []
    order = rng.permutation(len(scene.objects))[:max_turns]
    for number, index in enumerate(order):
        thing = scene.objects[index]
        template = words.COLOR_QUESTIONS[rng.integers(len(words.COLOR_QUESTIONS))]
        suffix = "\n" + words.ONE_WORD if rng.random() < 0.5 else ""
        if number:
            ids += turns.encode("<|im_start|>user\n")
        question = turns.question(template, thing.shape, suffix)
        color = turns.color_ids[thing.color]
        aux.append((len(ids) + question.index(turns.shape_ids[thing.shape]), color))
        ids += question
        answers.append((len(ids) - 1, color))
        closing = turns.encode("<|im_end|>\n")
        answers.append((len(ids), closing[0]))
        ids += [color, *closing]
    return ids, answers, aux


def make_batch(
    turns: Turns,
    rng: np.random.Generator,
    *,
    size: int,
    rows: int,
    cols: int,
    objects: tuple[int, int],
    max_turns: int = 6,
) -> Batch:
    """`size` conversations on pictures of rows x cols cells with a number of objects in the closed range `objects`."""
    scenes = [make_scene(rng, rows, cols, int(rng.integers(objects[0], objects[1] + 1))) for _ in range(size)]
    built = [build_row(scene, turns, rng, max_turns) for scene in scenes]
    length = max(len(ids) for ids, _, _ in built)
    input_ids = torch.full((size, length), turns.pad_id)
    mask = torch.zeros(size, length, dtype=torch.long)
    for row, (ids, _, _) in enumerate(built):
        input_ids[row, : len(ids)] = torch.tensor(ids)
        mask[row, : len(ids)] = 1
    inputs = {
        "input_ids": input_ids,
        "attention_mask": mask,
        "mm_token_type_ids": (input_ids == turns.image_id).int(),
        "pixel_values": torch.cat([patchify(scene.pixels) for scene in scenes]),
        "image_grid_thw": torch.tensor([[1, rows * MERGE, cols * MERGE]] * size),
    }
    answers = [(row, *pair) for row, (_, pairs, _) in enumerate(built) for pair in pairs]
    aux = [(row, *pair) for row, (_, _, pairs) in enumerate(built) for pair in pairs]
    return Batch(inputs, torch.tensor(answers), torch.tensor(aux))
