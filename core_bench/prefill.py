"""Times the language model's share of prefill under a head plan, on inputs captured from the model's own full forward.

The language model is called with exactly the arguments that the full model gave it (embeddings with the visual features
in them, 3-D positions, DeepStack features, padding mask), so none of them can be forgotten or stale; `verify` shows
that the logits are bit-identical to those of the full forward. Only the last token's logits are computed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from core_bench.attention import apply, language_model
from core_bench.chunks import CACHE_NAMES
from core_bench.heads import HeadPlan
from core_bench.probes import AttentionTimer, MassProbe, synchronize

_VISION_TOWERS = ("visual", "vision_tower", "vision_model", "vision_encoder", "image_tower")

Call = tuple[tuple[Any, ...], dict[str, Any]]


class _Captured(Exception):
    """Ends the forward at the language model's door: what follows is what will be timed."""


class LanguagePrefill:
    """One prompt, ready to be read by the language model again and again under different plans.

    `inputs` are the model's keyword arguments, on its device. Times are in milliseconds, synchronised on CUDA.
    """

    def __init__(
        self, model: PreTrainedModel, inputs: Mapping[str, Any], *, impl: str = "auto", chunk: int | None = None
    ) -> None:
        self.model, self.impl, self.chunk = model, impl, chunk
        self.inputs = dict(inputs)
        self.device = model.device
        self._vision_calls: list[tuple[nn.Module, Call]] = []
        self._call = self._capture()

    def _capture(self) -> Call:
        """The language model's call in one full forward, without its cache; notes the vision tower's calls too."""
        found: list[Call] = []

        def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
            kept = {name: value for name, value in kwargs.items() if name not in CACHE_NAMES}
            found.append((args, kept | {"use_cache": True}))
            raise _Captured

        def note(tower: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._vision_calls.append((tower, (args, kwargs)))

        handles = [language_model(self.model).register_forward_pre_hook(stop, with_kwargs=True)]
        handles += [tower.register_forward_pre_hook(note, with_kwargs=True) for tower in _vision_towers(self.model)]
        try:
            with torch.inference_mode():
                self.model(**self.inputs, logits_to_keep=1)
        except _Captured:
            pass
        finally:
            for handle in handles:
                handle.remove()
        return found[0]

    @torch.inference_mode()
    def logits(self, plan: HeadPlan) -> Tensor:
        """Logits [batch, vocabulary] of the last token, from language model and output head alone."""
        with self._applied(plan):
            return self._forward()

    def time_ms(self, plan: HeadPlan, probe: MassProbe | None = None) -> float:
        """One timed pass as generation would make it: a fresh cache, filled; last-token logits. A probe goes along."""
        with torch.inference_mode(), self._applied(plan, probe):
            return _timed_ms(self._forward, self.device)

    def attention_share(self, plan: HeadPlan) -> float:
        """Share of one pass that is spent inside the attention function, summed over layers."""
        timer = AttentionTimer()
        with torch.inference_mode(), self._applied(plan, timer):
            whole_ms = _timed_ms(self._forward, self.device)
        return timer.seconds * 1e3 / whole_ms

    @cached_property
    def vision_ms(self) -> float:
        """One pass of the vision tower over the prompt's pictures; 0.0 for a prompt without any."""

        def encode() -> None:
            for tower, (args, kwargs) in self._vision_calls:
                tower(*args, **kwargs)

        with torch.inference_mode():
            return _timed_ms(encode, self.device) if self._vision_calls else 0.0

    def verify(self, plan: HeadPlan) -> None:
        """Raises RuntimeError unless `logits(plan)` is bit-identical to the full model's last-token logits."""
        with torch.inference_mode(), apply(self.model, plan, impl=self.impl, chunk=self.chunk):
            full = self.model(**self.inputs, logits_to_keep=1).logits[:, -1]
        alone = self.logits(plan)
        # NaN beside NaN: a broken model is told where its answer is asked for.
        if not torch.allclose(full, alone, rtol=0, atol=0, equal_nan=True):
            off = float((full.float() - alone.float()).abs().max())
            raise RuntimeError(f"language prefill: logits differ from the full forward by up to {off:.3g}")

    def _applied(self, plan: HeadPlan, probe: MassProbe | AttentionTimer | None = None) -> Any:
        ids = self.inputs.get("input_ids")
        return apply(self.model, plan, impl=self.impl, probe=probe, input_ids=ids, chunk=self.chunk)

    def _forward(self) -> Tensor:
        args, kwargs = self._call
        hidden = language_model(self.model)(*args, **kwargs)[0]
        logits: Tensor = self.model.get_output_embeddings()(hidden[:, -1:, :])
        return logits[:, -1]


def time_interleaved(
    prefill: LanguagePrefill, plans: Mapping[str, HeadPlan], rounds: int | Iterable[int]
) -> dict[str, list[float]]:
    """Milliseconds of each arm, one pass an arm and round, so that a slow spell of the machine hits all arms alike.

    The caller warms up (`verify` does). Every second round runs the arms in reverse order.
    """
    times: dict[str, list[float]] = {arm: [] for arm in plans}
    for number in range(rounds) if isinstance(rounds, int) else rounds:
        for arm in list(plans)[:: 1 if number % 2 == 0 else -1]:
            times[arm].append(prefill.time_ms(plans[arm]))
    return times


def visible_pairs(plan: HeadPlan, n: int, visual: Collection[int] | None = None) -> tuple[int, int]:
    """(query, key) pairs that a prompt of `n` tokens makes visible, over all heads: dense causal, and under the plan.

    Exact: a streaming query i sees min(i + 1, window + sink) keys. Blind heads need `visual`, the positions of the
    visual tokens; ValueError without.
    """
    causal = n * (n + 1) // 2
    reach = min(n, plan.window + plan.sink)
    streaming = reach * (reach + 1) // 2 + (n - reach) * reach
    blind = 0
    if plan.blind:
        if visual is None:
            raise ValueError(
                "visual: expected the positions of visual tokens because the plan has blind heads, got None"
            )
        blind = causal - sum(n - j for j in set(visual))
    kept = len(plan.full) * causal + len(plan.stream) * streaming + len(plan.blind) * blind
    return plan.shape.size * causal, kept


def ideal_speedup(plan: HeadPlan, n: int, visual: Collection[int] | None = None) -> float:
    """Ideal speed-up of attention: dense pairs over the plan's pairs; inf where the plan leaves none."""
    dense, kept = visible_pairs(plan, n, visual)
    return dense / kept if kept else math.inf


def amdahl_bound(attention_share: float, attention_speedup: float) -> float:
    """Speed-up of the whole when a share of its time gets `attention_speedup` times faster (Amdahl 1967)."""
    if not 0 <= attention_share <= 1:
        raise ValueError(f"attention_share: expected a share in [0, 1], got {attention_share}")
    rest = 1 - attention_share + attention_share / attention_speedup
    return 1 / rest if rest else math.inf


def _vision_towers(model: PreTrainedModel) -> list[nn.Module]:
    """The vision tower, under any of the names that transformers gives it; none for a text model."""
    return [module for name, module in model.base_model.named_children() if name in _VISION_TOWERS]


def _timed_ms(work: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    begin = time.perf_counter()
    work()
    synchronize(device)
    return (time.perf_counter() - begin) * 1e3
