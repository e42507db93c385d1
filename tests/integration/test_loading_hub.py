"""Checkpoints in the hub's own cache, offline: pinned revisions, shards, and the shapes of the released models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    InternVLForConditionalGeneration,
    LlavaOnevisionForConditionalGeneration,
    Qwen3VLForConditionalGeneration,
)

from core_bench import cli
from core_bench.bundled.architectures import internvl, llava_onevision, qwen3vl
from core_bench.errors import UserError
from core_bench.heads import HeadShape
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.registry import model_class

NAME, COMMIT, OLDER = "someone/some-model", "0123456789abcdef" * 2 + "01234567", "fedcba9876543210" * 2 + "fedcba98"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, without a network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def snapshot(hub: Path, commit: str = COMMIT, ref: str | None = "main") -> Path:
    """The folder of one revision in the hub's layout; `ref` is the branch that points to it."""
    repository = hub / f"models--{NAME.replace('/', '--')}"
    if ref is not None:
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / ref).write_text(commit)
    folder = repository / "snapshots" / commit
    folder.mkdir(parents=True)
    return folder


def save(model: Any, processor: Any, folder: Path, shard: str = "2MB") -> None:
    model.save_pretrained(folder, max_shard_size=shard)
    processor.save_pretrained(folder)
    assert len(list(folder.glob("model-*.safetensors"))) > 1


def test_the_revision_is_pinned_to_its_commit(hub: Path, tiny_model: Any, tiny_processor: Any, tmp_path: Path) -> None:
    save(tiny_model, tiny_processor, snapshot(hub))
    save(qwen3vl.build_model(seed=1), tiny_processor, snapshot(hub, OLDER, ref=None))
    newest, main, pinned, older = (Qwen3VL.load(NAME, revision=r) for r in (None, "main", COMMIT, OLDER))
    assert [wrapper.revision for wrapper in (newest, main, pinned, older)] == [COMMIT, COMMIT, COMMIT, OLDER]
    assert newest.checkpoint_hash == pinned.checkpoint_hash != older.checkpoint_hash
    save(tiny_model, tiny_processor, tmp_path / "local")
    local = Qwen3VL.load(tmp_path / "local")
    assert local.checkpoint_hash == newest.checkpoint_hash
    assert local.revision is None
    for name, weight in local.model.state_dict().items():
        assert torch.equal(weight, newest.model.state_dict()[name])


def test_what_the_cache_lacks_is_named(hub: Path, tiny_model: Any, tiny_processor: Any) -> None:
    folder = snapshot(hub)
    save(tiny_model, tiny_processor, folder)
    with pytest.raises(UserError, match=rf"--checkpoint {NAME}: .* did not give it \(revision v9\): "):
        Qwen3VL.load(NAME, revision="v9")
    shard = sorted(folder.glob("model-*.safetensors"))[-1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    with pytest.raises(UserError, match=f"{shard.name} is broken or cut short at {len(whole) - 100} bytes"):
        Qwen3VL.load(NAME)
    shard.unlink()
    with pytest.raises(UserError, match=f"1 of them are not there, first {shard.name}"):
        Qwen3VL.load(NAME)


def qwen3vl_4b() -> tuple[Any, Any]:
    """Qwen3-VL-4B: 32 query heads over 8 KV heads that are together wider than the model; DeepStack."""
    processor = qwen3vl.build_processor()
    config = qwen3vl.build_config(processor.tokenizer)
    narrow(config.text_config, heads=32, kv_heads=8, hidden=320, head_dim=16)
    vision = config.vision_config
    vision.num_heads, vision.hidden_size, vision.out_hidden_size = 16, 128, 320
    vision.num_position_embeddings, vision.deepstack_visual_indexes = 48**2, [0, 1]
    return Qwen3VLForConditionalGeneration(config), processor


def llava_onevision_7b() -> tuple[Any, Any]:
    """LLaVA-OneVision-7B: 28 query heads over 4 KV heads; tiles of 384 pixels in 27 x 27 patches of 14; 36 canvases."""
    processor = llava_onevision.build_processor()
    config = llava_onevision.build_config(processor.tokenizer)
    narrow(config.text_config, heads=28, kv_heads=4, hidden=448)
    vision = config.vision_config
    vision.image_size, vision.patch_size, vision.hidden_size, vision.num_attention_heads = 384, 14, 144, 16
    canvases = [[384 * down, 384 * across] for down in range(1, 7) for across in range(1, 7)]
    config.image_grid_pinpoints = processor.image_processor.image_grid_pinpoints = canvases
    processor.num_image_tokens = 27**2
    sized(processor, 384)
    return LlavaOnevisionForConditionalGeneration(config), processor


def internvl3_5_8b() -> tuple[Any, Any]:
    """InternVL3.5-8B: 32 query heads over 8 KV heads; tiles of 448 pixels in 256 tokens, at most 12."""
    processor = internvl.build_processor()
    config = internvl.build_config(processor.tokenizer)
    narrow(config.text_config, heads=32, kv_heads=8, hidden=512, head_dim=16)
    vision = config.vision_config
    vision.image_size, vision.patch_size, vision.hidden_size, vision.num_attention_heads = [448] * 2, [14] * 2, 128, 16
    config.image_seq_length = processor.image_seq_length = 256
    processor.image_processor.max_patches = 12
    sized(processor, 448)
    return InternVLForConditionalGeneration(config), processor


def narrow(text: Any, *, heads: int, kv_heads: int, hidden: int, head_dim: int | None = None) -> None:
    """Two layers of these many heads, each an eighth as wide as the released model's."""
    text.num_hidden_layers, text.layer_types = 2, ["full_attention"] * 2
    text.num_attention_heads, text.num_key_value_heads, text.hidden_size = heads, kv_heads, hidden
    if head_dim is not None:
        text.head_dim = head_dim


def sized(processor: Any, side: int) -> None:
    for part in (processor.image_processor, processor.video_processor):
        part.size = {"height": side, "width": side}


RELEASED: dict[str, tuple[str, Callable[[], tuple[Any, Any]], HeadShape]] = {
    "Qwen3-VL-4B": ("qwen3vl", qwen3vl_4b, HeadShape(2, 32, 8)),
    "LLaVA-OneVision-7B": ("llava_onevision", llava_onevision_7b, HeadShape(2, 28, 4)),
    "InternVL3.5-8B": ("internvl", internvl3_5_8b, HeadShape(2, 32, 8)),
}


@pytest.mark.slow
@pytest.mark.parametrize("released", list(RELEASED))
def test_shapes_of_released_models_run_all_modes(
    hub: Path, cache: Path, task: Path, tmp_path: Path, released: str, capsys: pytest.CaptureFixture[str]
) -> None:
    family, build, shape = RELEASED[released]
    torch.manual_seed(0)
    model, processor = build()
    save(model.eval(), processor, snapshot(hub), shard="4MB")
    loaded = model_class(family).load(NAME)
    assert loaded.shape == shape
    weights = model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in loaded.model.state_dict().items())
    del loaded, model

    heads = ["--heads", tmp_path / "detect" / "heads.tsv"]
    modes: dict[str, list[Any]] = {
        "dense": [],
        "detect": [],
        "ablate": [*heads, "--ablate", "top:10%,random:10%"],
        "hybrid": [*heads, "--keep", "10%", "--window", "16", "--sink", "4"],
    }
    for mode, flags in modes.items():
        words = ["--model", family, "--checkpoint", NAME, "--device", "cpu", "--mode", mode, "--tasks", task]
        code = cli.main([str(word) for word in (*words, "--out", tmp_path / mode, *flags)])
        assert code == 0, (mode, capsys.readouterr().err)
        record = json.loads((tmp_path / mode / "record.json").read_text())
        assert record["run"]["complete"]
        assert (record["run"]["checkpoint"], record["run"]["revision"]) == (NAME, COMMIT)
        assert record["environment"]["processing"]
        assert record["tasks"]["pictures"]["n_failed"] == 0
    shutil.rmtree(hub)
