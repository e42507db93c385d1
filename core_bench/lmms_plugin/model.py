"""Our model families as models of lmms-eval, each under one head plan."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import torch
from lmms_eval.api.instance import Instance
from lmms_eval.api.model import lmms
from lmms_eval.utils import eval_logger

from core_bench.arms import Arm, baseline_arm, make_arms
from core_bench.attention import apply
from core_bench.checkpoints import load_wrapper, window_and_sink
from core_bench.errors import SampleError, UserError, one_line
from core_bench.evaluate import find_table, refuse_overlap
from core_bench.headtables import HeadMeta
from core_bench.lmms_plugin.arguments import run_config
from core_bench.lmms_plugin.messages import length_and_stops, sample_of
from core_bench.lmms_plugin.task import FAILED, CoreTask
from core_bench.progress import track
from core_bench.schema import Sample


class CoreModel(lmms):
    """A family's wrapper and one head plan, behind `generate_until`; arguments as in `run_config`."""

    is_simple = False
    FAMILY: ClassVar[str]

    def __init__(self, batch_size: int | str = 1, max_batch_size: int | None = None, **arguments: Any) -> None:
        super().__init__()
        if str(batch_size) != "1" or max_batch_size is not None:
            raise UserError(f"--batch_size: expected 1, prompts are read one by one; got {batch_size}")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UserError("core_bench models run in one process: start lmms-eval without accelerate or torchrun")
        self.run_config = run_config(self.FAMILY, arguments)
        CoreTask.data_dir = self.run_config.data_dir
        self.wrapper = load_wrapper(self.run_config)
        self.arm, self.heads = self._arm()

    def _arm(self) -> tuple[Arm, HeadMeta | None]:
        config, wrapper = self.run_config, self.wrapper
        if config.mode == "dense":
            return baseline_arm(config.mode, wrapper.shape), None
        scores, meta = find_table(config, wrapper)
        eval_logger.info(f"heads: {meta.where}{'' if meta.note is None else f' (note: {meta.note})'}")
        window, sink = window_and_sink(config, wrapper.checkpoint_hash)
        return make_arms(config, scores, wrapper.shape, window, sink)[1], meta

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """The answers, in order. A sample of our own tasks that cannot be answered gets a text that is not scored."""
        self._refuse_overlap(requests)
        return [self._answer(request) for request in track(requests, f"lmms-eval: {self.arm.name}")]

    def _answer(self, request: Instance) -> str:
        _, doc_to_messages, settings, doc_id, task_name, split = request.args
        length, stops = length_and_stops(settings)
        doc = self.task_dict[task_name][split][doc_id]
        task = _own_task(request)
        if task is None:
            with tempfile.TemporaryDirectory() as folder:
                messages = doc_to_messages(doc)
                answer = self._generate(
                    sample_of(messages, task=task_name, name=str(doc_id), folder=Path(folder)), length
                )
            for stop in stops:
                answer = answer.partition(stop)[0]
            return answer
        task.boxes = self.wrapper.BOXES
        try:
            return self._generate(task.sample(doc), length)  # its own score cuts the answer at `until`
        except (SampleError, torch.OutOfMemoryError) as error:
            eval_logger.warning(f"{task_name}, {doc['id']}: {one_line(error)}")
            return FAILED + one_line(error)

    def _generate(self, sample: Sample, max_new_tokens: int) -> str:
        config = self.run_config
        prepared = self.wrapper.prepare(sample, frames=config.frames, fps=config.fps, max_pixels=config.max_pixels)
        with apply(self.wrapper.model, self.arm.plan, impl=config.attention, chunk=config.prefill_chunk):
            return self.wrapper.generate(prepared, max_new_tokens)

    def _refuse_overlap(self, requests: list[Instance]) -> None:
        """Heads are found and tested on different samples, here as in our own runs."""
        if self.heads is None:
            return
        asked: dict[str, tuple[CoreTask, list[Sample]]] = {}
        for request in requests:
            if (task := _own_task(request)) is not None:
                name = task.spec.name
                sample = task.sample(self.task_dict[name][request.args[5]][request.args[3]])
                asked.setdefault(name, (task, []))[1].append(sample)
        refuse_overlap(self.run_config, self.heads, [(task.spec, list(samples)) for task, samples in asked.values()])

    def clean(self) -> None:
        """Nothing: lmms-eval calls this after an evaluation, and the same model may serve the next one."""

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise UserError("core_bench models generate answers: tasks of output_type generate_until only")

    def generate_until_multi_round(self, requests: list[Instance]) -> list[str]:
        raise UserError("core_bench models answer one message: tasks of output_type generate_until only")


def _own_task(request: Instance) -> CoreTask | None:
    """The task, if it is one of ours: then its samples say more than chat messages can."""
    owner = getattr(request.args[1], "__self__", None)
    return owner if isinstance(owner, CoreTask) else None


class CoreQwen3VL(CoreModel):
    FAMILY = "qwen3vl"


class CoreLlavaOneVision(CoreModel):
    FAMILY = "llava_onevision"


class CoreInternVL(CoreModel):
    FAMILY = "internvl"
