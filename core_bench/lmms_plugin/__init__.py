"""core_bench inside lmms-eval: its model families as `--model core_<family>`, and its tasks (docs/lmms-eval.md).

lmms-eval reads `manifests` through the entry point group `lmms_eval.models`. Nothing heavy is imported here: lmms-eval
calls it whenever it starts, whatever model it runs.
"""

from __future__ import annotations

from typing import Any

MODELS = {
    "core_qwen3vl": "CoreQwen3VL",
    "core_llava_onevision": "CoreLlavaOneVision",
    "core_internvl": "CoreInternVL",
}


def manifests() -> list[Any]:
    """What lmms-eval registers: a ModelManifest a family."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return [
        ModelManifest(model_id=name, chat_class_path=f"core_bench.lmms_plugin.model.{class_name}")
        for name, class_name in MODELS.items()
    ]
