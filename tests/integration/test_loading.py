"""The real loading path: folders written by save_pretrained, and every wrong folder in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from core_bench.errors import UserError
from core_bench.heads import HeadShape
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.schema import Media, Sample


@pytest.fixture(scope="session")
def folder(tiny_model: Any, tiny_processor: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in several shards."""
    path = tmp_path_factory.mktemp("checkpoint")
    tiny_model.save_pretrained(path, max_shard_size="2MB")
    tiny_processor.save_pretrained(path)
    assert len(list(path.glob("*.safetensors"))) > 1
    return path


def copy_of(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def one_line(error: BaseException) -> bool:
    return "\n" not in str(error)


def test_a_saved_folder_loads_to_the_same_model(folder: Path, tiny_model: Any, tiny_processor: Any) -> None:
    loaded, memory = Qwen3VL.load(folder), Qwen3VL(tiny_model, tiny_processor)
    assert not loaded.model.training
    assert loaded.model.dtype == torch.float32
    weights = tiny_model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in loaded.model.state_dict().items())
    path = folder / "picture.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8)).save(path)
    media = (Media(kind="image", path=str(path)),)
    sample = Sample(task="t", id="1", cluster="c", media=media, prompt="Why?", question="Why?", target="")
    one, two = loaded.prepare(sample), memory.prepare(sample)
    assert (one.token_map, one.spans) == (two.token_map, two.spans)
    assert torch.equal(one.inputs["pixel_values"], two.inputs["pixel_values"])
    assert loaded.generate(one, 3) == memory.generate(two, 3)


def test_parts_and_head_grid(folder: Path) -> None:
    wrapper = Qwen3VL.load(str(folder), dtype="bfloat16")
    text = wrapper.model.config.text_config
    assert wrapper.shape == HeadShape(text.num_hidden_layers, text.num_attention_heads, text.num_key_value_heads)
    assert wrapper.model.dtype == torch.bfloat16
    assert wrapper.language_model is wrapper.model.model.language_model
    assert wrapper.vision_tower is wrapper.model.model.visual
    assert wrapper.lm_head is wrapper.model.lm_head


def test_content_hash_follows_content_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    copy = copy_of(folder, tmp_path)
    first = Qwen3VL.load(folder).checkpoint_hash
    assert len(first) == 16
    (copy / "heads.tsv").write_text("not part of the checkpoint")
    assert Qwen3VL.load(copy).checkpoint_hash == first
    shard = min(copy.glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    changed = Qwen3VL.load(copy).checkpoint_hash
    assert changed != first
    config = (
        json.loads((copy / "preprocessor_config.json").read_text())
        if (copy / "preprocessor_config.json").exists()
        else {}
    )
    (copy / "preprocessor_config.json").write_text(json.dumps(config | {"resample": 2}))
    assert Qwen3VL.load(copy).checkpoint_hash != changed


def test_sampling_settings_of_a_checkpoint_do_not_warn(folder: Path, tmp_path: Path, caplog: Any) -> None:
    copy = copy_of(folder, tmp_path)
    path = copy / "generation_config.json"
    settings = json.loads(path.read_text()) | {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20}
    path.write_text(json.dumps(settings))
    wrapper = Qwen3VL.load(copy)
    sample = Sample(task="t", id="1", cluster="c", media=(), prompt="Why?", question="Why?", target="")
    with caplog.at_level("WARNING"):
        answers = {wrapper.generate(wrapper.prepare(sample), 6) for _ in range(3)}
    assert len(answers) == 1
    assert not caplog.records


@pytest.mark.parametrize(
    ("remove", "message"),
    [
        ("config.json", "it has no config.json"),
        ("*.safetensors", r"expected weights \(\*\.safetensors\), the folder has none"),
        ("model-00001*", "its weights cannot be loaded"),
        ("tokenizer.json", "its processor cannot be loaded"),
        ("chat_template*", "expected a processor with a chat template"),
    ],
)
def test_an_incomplete_folder(folder: Path, tmp_path: Path, remove: str, message: str) -> None:
    copy = copy_of(folder, tmp_path)
    removed = list(copy.glob(remove))
    assert removed
    for path in removed:
        path.unlink()
    with pytest.raises(UserError, match=rf"--checkpoint .*copy: .*{message}") as caught:
        Qwen3VL.load(copy)
    assert one_line(caught.value)


def test_missing_weights_are_not_replaced_by_random_ones(tiny_model: Any, tiny_processor: Any, tmp_path: Path) -> None:
    state = {name: value for name, value in tiny_model.state_dict().items() if "layers.3.self_attn.q_proj" not in name}
    tiny_model.save_pretrained(tmp_path, state_dict=state)
    tiny_processor.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"1 weights are missing from it, first .*layers\.3\.self_attn\.q_proj"):
        Qwen3VL.load(tmp_path)


@pytest.mark.parametrize("broken", ["model-00001-of-*.safetensors", "config.json", "tokenizer.json"])
def test_a_broken_file(folder: Path, tmp_path: Path, broken: str) -> None:
    copy = copy_of(folder, tmp_path)
    path = next(copy.glob(broken))
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match=r"--checkpoint .*copy: ") as caught:
        Qwen3VL.load(copy)
    assert one_line(caught.value)


def test_another_family(folder: Path, tmp_path: Path) -> None:
    copy = copy_of(folder, tmp_path)
    (copy / "config.json").write_text(json.dumps({"model_type": "llava_onevision"}))
    with pytest.raises(UserError, match=r"expected a model of the family qwen3vl, .* say --model llava_onevision$"):
        Qwen3VL.load(copy)


@pytest.mark.parametrize("checkpoint", ["/no/such/folder", "./nowhere", "a/b/c", __file__])
def test_a_path_that_is_no_folder(checkpoint: str) -> None:
    with pytest.raises(UserError, match=r"--checkpoint .*: (no such folder|expected a folder or a hub id)"):
        Qwen3VL.load(checkpoint)


def test_a_hub_id_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        UserError, match=r"--checkpoint nobody/nothing: no local folder, and the .* Hub .*main"
    ) as caught:
        Qwen3VL.load("nobody/nothing")
    assert one_line(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "--dtype: expected one of float32, bfloat16, float16, got 'int8'"),
        ({"device": "toaster"}, "--device: expected cpu, cuda or cuda:N, got 'toaster'"),
    ],
)
def test_options(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Qwen3VL.load(folder, **options)


def test_a_device_that_is_not_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="torch sees none here"):
        Qwen3VL.load(folder, device="cuda:0")
