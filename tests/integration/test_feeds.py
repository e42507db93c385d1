"""What training feeds each family, against its processor and against pixels: same ids, and cells where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from core_bench.bundled.architectures import FAMILIES, architecture
from core_bench.bundled.clip import FPS
from core_bench.bundled.feeds import Feed, Layout, Plan, make_feed
from core_bench.bundled.scene import CELL
from core_bench.bundled.warmstart import embeddings

PLANS = {
    "picture": Plan("picture", 1, 1, 9, 15, (4, 8)),
    "large picture": Plan("picture", 1, 1, 17, 16, (4, 8)),
    "document": Plan("document", 1, 3, 5, 6, (4, 8)),
    "clip": Plan("clip", 1, 4, 3, 4, (4, 8)),
}


class Family:
    """An untrained model whose patches do not mix, with its processor and feed."""

    def __init__(self, name: str) -> None:
        built = architecture(name)
        self.tokenizer = built.build_tokenizer()
        self.processor = built.build_processor(self.tokenizer)
        self.model = built.build_model(0, self.tokenizer)
        self.feed: Feed = make_feed(name, self.processor)
        with torch.no_grad():
            for part, module in self.model.named_modules():
                if "language_model" not in part and part.endswith(("attn.proj", "out_proj", "projection_layer")):
                    module.weight.zero_()
                    module.bias.zero_()

    def read(self, plan: Plan, layout: Layout, pixels: np.ndarray) -> torch.Tensor:
        """Embeddings [columns, width] of the media."""
        ids = torch.tensor([layout.ids])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **self.feed.inputs(plan, [pixels], ids)}
        with torch.no_grad():
            return embeddings(self.model, inputs)[0]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return Family(request.param)


def layout_of(feed: Feed, plan: Plan) -> Layout:
    if plan.kind == "clip":
        return feed.clip([second + 0.25 for second in range(plan.parts)], plan.rows, plan.cols)
    return feed.pictures(plan.parts, plan.rows, plan.cols)


def noise(plan: Plan) -> np.ndarray:
    shape = (plan.parts, plan.rows * CELL, plan.cols * CELL, 3)
    return np.random.default_rng(0).integers(100, 156, shape, dtype=np.uint8)


@pytest.mark.parametrize("name", PLANS)
def test_ids_are_those_of_the_processor(family: Family, name: str) -> None:
    plan = family.feed.fit(PLANS[name])
    layout, pixels = layout_of(family.feed, plan), torch.from_numpy(noise(plan)).permute(0, 3, 1, 2)
    kind = "video" if plan.kind == "clip" else "image"
    content = [{"type": kind}] * (1 if kind == "video" else plan.parts)
    message = {"role": "user", "content": [*content, {"type": "text", "text": "What color is it?"}]}
    text = family.processor.apply_chat_template([message], tokenize=False)
    frames = pixels.repeat_interleave(FPS, dim=0)
    if kind == "video":
        about = {"total_num_frames": len(frames), "fps": float(FPS), "frames_indices": list(range(len(frames)))}
        options = {"do_sample_frames": False, "video_metadata": [about]}
        real = family.processor(text=[text], videos=[frames], videos_kwargs=options, return_tensors="pt")
    else:
        real = family.processor(text=[text], images=[list(pixels)], return_tensors="pt")
    before, after = (
        family.tokenizer.encode(part, add_special_tokens=False)
        for part in ("<|im_start|>user\n", "What color is it?<|im_end|>\n")
    )
    found = real["input_ids"][0].tolist()
    if kind == "video" and found != [*before, *layout.ids, *after]:  # other releases write Qwen3-VL's clips so
        layout = family.feed.clip([second + 0.25 for second in range(plan.parts)], plan.rows, plan.cols, wrapped=False)
    assert found == [*before, *layout.ids, *after]
    assert family.feed.length(plan) == pytest.approx(len(layout.ids), rel=0.15)


@pytest.mark.parametrize("name", PLANS)
def test_a_cell_is_where_its_pixels_are(family: Family, name: str) -> None:
    plan = family.feed.fit(PLANS[name])
    layout, pixels = layout_of(family.feed, plan), noise(plan)
    before = family.read(plan, layout, pixels)
    rng = np.random.default_rng(1)
    for _ in range(6):
        part, row, col = (int(rng.integers(n)) for n in (plan.parts, plan.rows, plan.cols))
        changed = pixels.copy()
        inner = slice(row * CELL + 8, row * CELL + 24), slice(col * CELL + 8, col * CELL + 24)
        changed[part][inner] = 255 - changed[part][inner] // 4
        moved = (family.read(plan, layout, changed) - before).abs().amax(1)
        assert set((moved > 1e-6).nonzero().flatten().tolist()) == set(layout.at(part, row, col))


def test_sizes_are_fitted_once(family: Family) -> None:
    for plan in PLANS.values():
        fitted: Any = family.feed.fit(plan)
        assert family.feed.fit(fitted) == fitted
        assert fitted.parts >= plan.parts
