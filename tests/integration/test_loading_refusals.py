"""A checkpoint that cannot be right is refused in one line that names what is wrong, and what would be right."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from core_bench.bundled.architectures import internvl, llava_onevision
from core_bench.errors import UserError
from core_bench.model_wrappers.base import ModelWrapper
from core_bench.model_wrappers.internvl import InternVL
from core_bench.model_wrappers.llava_onevision import LlavaOneVision
from core_bench.model_wrappers.qwen3vl import Qwen3VL


@pytest.fixture(scope="module")
def sharded(tiny_model: Any, tiny_processor: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    tiny_model.save_pretrained(folder, max_shard_size="2MB")
    tiny_processor.save_pretrained(folder)
    return folder


@pytest.fixture
def copy(sharded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sharded, tmp_path / "copy"))


def refusal(folder: Path | str, family: type[ModelWrapper] = Qwen3VL) -> str:
    with pytest.raises(UserError) as caught:
        family.load(folder)
    message = str(caught.value)
    assert "\n" not in message
    start = f"--checkpoint {folder}: "
    assert message.startswith(start)
    return message.removeprefix(start)


def edit(path: Path, **changes: Any) -> None:
    """Change a JSON file; a dict changes what is below its name."""
    content = json.loads(path.read_text())
    for name, value in changes.items():
        content[name] = content.get(name, {}) | value if isinstance(value, dict) else value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("family", "written", "says"),
    [
        (Qwen3VL, "internvl", "expected a model of the family qwen3vl, this one is of another: say --model internvl"),
        (InternVL, "qwen3_vl_moe", "expected a model of the family internvl, .*: say --model qwen3vl"),
        (LlavaOneVision, "internvl", "expected a model of the family llava_onevision, .*: say --model internvl"),
    ],
)
def test_the_wrong_family_names_the_right_one(copy: Path, family: type[ModelWrapper], written: str, says: str) -> None:
    edit(copy / "config.json", model_type=written)
    message = refusal(copy, family)
    assert re.fullmatch(says, message), message


@pytest.mark.parametrize("written", ["qwen2_5_vl", "no_such_thing", None])
def test_an_architecture_that_no_family_reads(copy: Path, written: str | None) -> None:
    """Whether transformers knows it or not."""
    edit(copy / "config.json", model_type=written)
    message = refusal(copy)
    assert message.startswith(
        f"its config.json says model_type {written!r}, which no model family reads; those known: "
    )
    for known in ("qwen3vl (qwen3_vl, qwen3_vl_moe)", "llava_onevision (llava_onevision)", "internvl (internvl)"):
        assert known in message


def test_code_in_the_checkpoint_is_never_run(copy: Path) -> None:
    (copy / "modeling_evil.py").write_text("raise SystemExit('this code ran')")
    edit(copy / "config.json", model_type="evil", auto_map={"AutoConfig": "modeling_evil.EvilConfig"})
    assert "needs code from the checkpoint, never run here" in refusal(copy)


@pytest.mark.parametrize("family", [Qwen3VL, InternVL])
def test_internvl_in_its_own_format_names_the_other_one(copy: Path, family: type[ModelWrapper]) -> None:
    auto_map = {"AutoConfig": "configuration_internvl_chat.InternVLChatConfig"}
    edit(copy / "config.json", model_type="internvl_chat", auto_map=auto_map)
    message = refusal(copy, family)
    assert message.startswith("this is InternVL's own format")
    assert "such as OpenGVLab/InternVL3_5-8B-HF (--model internvl)" in message


def test_weights_that_are_not_all_there(copy: Path) -> None:
    shards = sorted(copy.glob("model-*.safetensors"))
    assert len(shards) > 2
    shards[1].unlink()
    says = f"its weights cannot be loaded: model.safetensors.index.json names {len(shards)} files, "
    assert refusal(copy) == f"{says}1 of them are not there, first {shards[1].name}"


def test_an_index_that_names_a_file_of_another_model(copy: Path) -> None:
    index = json.loads((copy / "model.safetensors.index.json").read_text())
    first = min(index["weight_map"])
    index["weight_map"][first] = "model-00099-of-00099.safetensors"
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    assert refusal(copy).endswith("1 of them are not there, first model-00099-of-00099.safetensors")


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', "{}"])
def test_an_index_that_is_none(copy: Path, text: str) -> None:
    (copy / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json is not a list of weights by file" in refusal(copy)


@pytest.mark.parametrize("left", [0, 7, 50, 100_000, -1])
def test_a_shard_cut_short(copy: Path, left: int) -> None:
    shard = sorted(copy.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:left])
    size = shard.stat().st_size
    assert f"its weights cannot be loaded: {shard.name} is broken or cut short at {size} bytes" in refusal(copy)


def test_weights_of_another_size(copy: Path) -> None:
    edit(copy / "config.json", text_config={"intermediate_size": 256})
    message = refusal(copy)
    assert message.startswith("its weights cannot be loaded: ")
    assert "gate_proj" in message or "size" in message


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"image_token_id": 7}, r"image_token_id is \d+, the model's config says image_token_id is 7"),
        ({"vision_end_token_id": 1}, r"vision_end_token_id is 4, the model's config says vision_end_token_id is 1"),
    ],
)
def test_a_processor_with_other_tokens(copy: Path, change: dict[str, int], says: str) -> None:
    edit(copy / "config.json", **change)
    message = refusal(copy)
    assert re.fullmatch(f"its processor does not fit its model: {says}", message), message


@pytest.mark.parametrize(
    ("kind", "size"),
    [("image_processor", "patch_size"), ("video_processor", "merge_size"), ("video_processor", "temporal_patch_size")],
)
def test_a_processor_with_other_patches(copy: Path, kind: str, size: str) -> None:
    path = copy / "processor_config.json"
    edit(path, **{kind: {size: 4}})
    assert refusal(copy).startswith(
        f"its processor does not fit its model: {kind}.{size} is 4, the model's config says "
    )


def test_a_tokenizer_with_more_tokens_than_the_model(copy: Path) -> None:
    path = copy / "tokenizer.json"
    content = json.loads(path.read_text())
    largest = max(token["id"] for token in content["added_tokens"])
    vocab = content["model"]["vocab"]
    vocab["zzzz"] = max(largest, *vocab.values()) + 400
    path.write_text(json.dumps(content))
    message = refusal(copy)
    assert f"the tokenizer has ids up to {vocab['zzzz']}, the model has embeddings for ids up to" in message


@pytest.mark.parametrize(("family", "built"), [(LlavaOneVision, llava_onevision), (InternVL, internvl)])
def test_other_families_refuse_a_processor_of_another_model_too(
    tmp_path: Path, family: type[ModelWrapper], built: Any
) -> None:
    built.build_model().save_pretrained(tmp_path)
    built.build_processor().save_pretrained(tmp_path)
    family.load(tmp_path)
    edit(tmp_path / "processor_config.json", image_processor={"size": {"height": 64, "width": 64}})
    assert "processor" in refusal(tmp_path, family)
