"""Carries out a head plan on a Hugging Face model, by one attention and one mask function registered with transformers.

`apply` sets them on the language model only (the vision tower keeps its own attention) and always takes them away.

The mask function has to be registered too: without one, transformers hands the attention function None even for a
padded batch. Ours passes the 2-D padding mask on and remembers the call, so that wherever the plan does not hold the
model's stock function gets exactly the mask that transformers would have built for it: bit-identical logits.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface, causal_mask_function
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from core_bench.chunks import Part, chunked
from core_bench.heads import HeadPlan, HeadShape
from core_bench.kernels.hybrid_attention import check_impl, hybrid_attention
from core_bench.probes import AttentionTimer, MassProbe

__all__ = ["AttentionTimer", "MassProbe", "apply", "head_shape", "language_model", "visual_token_ids"]

NAME = "core_bench"
_VISUAL_ID_FIELDS = ("image_token_id", "video_token_id", "image_token_index", "video_token_index")


def language_model(model: PreTrainedModel) -> PreTrainedModel:
    """The decoder stack of a (multimodal) model, without vision tower and output head."""
    return model.get_decoder()


def head_shape(model: PreTrainedModel) -> HeadShape:
    """Layers, query heads and KV heads of the language model, from its config."""
    config = language_model(model).config
    return HeadShape(config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads)


def visual_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    """The ids that stand for visual tokens in `input_ids`, from the model's config."""
    ids = {getattr(model.config, field, None) for field in _VISUAL_ID_FIELDS}
    return tuple(sorted(i for i in ids if isinstance(i, int)))


@contextmanager
def apply(
    model: PreTrainedModel,
    plan: HeadPlan,
    *,
    impl: str = "auto",
    probe: MassProbe | AttentionTimer | None = None,
    input_ids: Tensor | None = None,
    chunk: int | None = None,
) -> Iterator[None]:
    """Within the block, the language model's heads see what `plan` allows; afterwards the model is as before.

    The empty plan leaves the model's own attention in place. A layer that the plan does not change, and decode steps
    under hold "prefill", run the model's own attention function on its own mask. A decode step is a forward of one
    token with a filled cache. `impl` names the implementation of hybrid attention. A MassProbe needs the empty plan
    and collects while the prompt is read; an AttentionTimer goes with any plan. `input_ids` serves callers that enter
    the language model directly, so that blind heads can still tell visual tokens; otherwise they are read from the
    model's call. `chunk` reads prompts that many tokens at a time: less memory, the same result to rounding.

    Raises ValueError: plan of another shape, unknown `impl`, a chunk below 1, a probe with a plan, a second `apply` on
    a model inside the first; and during the forward: a padding mask with holes, a 4-D mask, a fixed-size cache,
    sliding-window layers.
    """
    applied = _Applied(model, plan, impl, probe, input_ids)
    with applied.installed(), applied.in_chunks(chunk):
        yield


class _Applied:
    """One plan on one model, and what the forward that runs at the moment has told about itself."""

    def __init__(
        self,
        model: PreTrainedModel,
        plan: HeadPlan,
        impl: str,
        probe: MassProbe | AttentionTimer | None,
        input_ids: Tensor | None,
    ) -> None:
        check_impl(impl, model.device)
        if isinstance(probe, MassProbe) and not plan.is_empty:
            raise ValueError("probe: a MassProbe measures the unchanged model and needs HeadPlan.empty(...)")
        shape = head_shape(model)
        if plan.shape != shape:
            raise ValueError(f"plan: made for {plan.shape}, but the model has {shape}")
        self.model, self.plan, self.impl, self.probe = model, plan, impl, probe
        self.config = language_model(model).config
        self.stock_name: str = self.config._attn_implementation
        self.layers = _attention_modules(model, shape.n_layers)
        self.modes = [plan.layer_modes(layer) for layer in range(shape.n_layers)]
        changed = {layer for layer, modes in enumerate(self.modes) if set(modes) != {"full"}}
        # A plan that only says "full" is there to compare our path with the stock one: it takes our path everywhere.
        self.own_layers: set[int] = set() if plan.is_empty else changed or set(range(shape.n_layers))
        self.visual_ids = visual_token_ids(model)
        self.needs_visual = any("blind" in modes for modes in self.modes)
        if self.needs_visual and not self.visual_ids:
            raise ValueError("plan: has blind heads, but the model's config names no image or video token")
        self.input_ids = input_ids
        self.visual_BM: Tensor | None = None
        self.part: Part | None = None
        self.call: dict[str, Any] = {}
        self.stock_mask: Tensor | None = None
        self.stock_mask_built = False
        self.ranges: tuple[tuple[int, int], ...] | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        if id(self.config) in _APPLIED:
            raise ValueError("apply: this model (or one that shares its config) already runs inside another apply")
        with ExitStack() as undo:
            _APPLIED[id(self.config)] = self
            undo.callback(_APPLIED.pop, id(self.config))
            if self.own_layers or self.probe is not None:
                self.config._attn_implementation = NAME
                undo.callback(setattr, self.config, "_attn_implementation", self.stock_name)
            if self.needs_visual:
                undo.callback(self.model.register_forward_pre_hook(self._see_ids, with_kwargs=True).remove)
            yield

    def in_chunks(self, size: int | None) -> AbstractContextManager[None]:
        return nullcontext() if size is None else chunked(language_model(self.model), size, self._see_part)

    def _see_part(self, part: Part | None) -> None:
        self.part = part

    def _see_ids(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.input_ids = args[0] if args else kwargs.get("input_ids")

    def begin(self, call: dict[str, Any]) -> Tensor | None:
        """A forward begins, with the arguments by which transformers asks for a mask. Returns None or the 2-D mask."""
        if call["mask_function"] is not causal_mask_function:
            raise ValueError(
                "apply: only plain causal attention can carry a plan (no sliding layers, no packed sequences)"
            )
        self.call = call
        self.stock_mask, self.stock_mask_built, self.ranges = None, False, None
        if self.needs_visual:
            self._extend_visual(call["batch_size"], call["q_length"], int(call["q_offset"]))
        if isinstance(self.probe, MassProbe) and self.is_first and int(call["q_offset"]) == 0:
            length = call["q_length"] if self.part is None else self.part.length
            self.probe.begin(call["batch_size"], length, len(self.layers))
        mask_BM: Tensor | None = call["attention_mask"]
        return mask_BM if mask_BM is not None and not mask_BM.all() else None

    @property
    def is_first(self) -> bool:
        """Whether the forward reads a prompt, or a part of one, before which nothing was cached."""
        return int(self.call["q_offset"]) == (0 if self.part is None else self.part.start)

    @property
    def is_decode(self) -> bool:
        return self.part is None and not self.is_first and self.call["q_length"] == 1

    def _extend_visual(self, batch: int, n_queries: int, offset: int) -> None:
        ids = self.input_ids
        if ids is not None and self.part is not None and ids.shape[1] == self.part.length:
            ids = ids[:, self.part.start : self.part.stop]
        if ids is None or tuple(ids.shape) != (batch, n_queries):
            shape = None if ids is None else tuple(ids.shape)
            raise ValueError(f"apply: blind heads need input_ids of shape {(batch, n_queries)}, got {shape}")
        new = torch.isin(ids, torch.tensor(self.visual_ids, device=ids.device))
        seen = new[:, :0] if offset == 0 else self.visual_BM
        if seen is None or seen.shape[1] < offset:
            raise ValueError("apply: blind heads need to see the prompt; enter apply before the cache is filled")
        self.visual_BM = torch.cat([seen[:, :offset], new], dim=1)

    def kv_range_B2(self) -> tuple[tuple[int, int], ...]:
        """[first real token, one past the last) of each row, once a forward."""
        if self.ranges is None:
            self.ranges = _ranges(self.call["attention_mask"], self.call["batch_size"], self.call["kv_length"])
        return self.ranges

    def mask_for_stock(self, device: torch.device) -> Tensor | None:
        """What transformers would have handed the stock function, once a forward."""
        if not self.stock_mask_built:
            known = self.stock_name in ALL_MASK_ATTENTION_FUNCTIONS
            self.stock_mask = ALL_MASK_ATTENTION_FUNCTIONS[self.stock_name](**self.call) if known else None
            self.stock_mask_built = True
        return self.stock_mask if self.stock_mask is None else self.stock_mask.to(device)

    def attend(
        self, module: nn.Module, q_BHND: Tensor, k_BKMD: Tensor, v_BKMD: Tensor, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """One layer, by the plan where it holds, else by the stock function: [B, N, H, D] and the stock's weights."""
        layer: int = module.layer_idx  # type: ignore[assignment]
        timed = isinstance(self.probe, AttentionTimer)
        with self.probe.measure(q_BHND.device) if timed else nullcontext():  # type: ignore[union-attr]
            if layer in self.own_layers and (self.plan.hold == "always" or not self.is_decode):
                return self._own(layer, q_BHND, k_BKMD, v_BKMD, kwargs.get("scaling")), None
            mask = self.mask_for_stock(q_BHND.device)
            result = _stock_function(self.stock_name, module)(module, q_BHND, k_BKMD, v_BKMD, mask, **kwargs)
        if isinstance(self.probe, MassProbe) and self.is_first:
            self._check_lengths(q_BHND, k_BKMD)
            start = 0 if self.part is None else self.part.start
            ranges, scale = self.kv_range_B2(), kwargs.get("scaling")
            self.probe.observe(layer, q_BHND, k_BKMD, start=start, kv_range_B2=ranges, scale=scale)
        return result

    def _own(self, layer: int, q_BHND: Tensor, k_BKMD: Tensor, v_BKMD: Tensor, scale: float | None) -> Tensor:
        self._check_lengths(q_BHND, k_BKMD)
        out_BHND = hybrid_attention(
            q_BHND,
            k_BKMD,
            v_BKMD,
            self.modes[layer],
            window=self.plan.window,
            sink=self.plan.sink,
            kv_range_B2=self.kv_range_B2(),
            blind_keys_BM=None if self.visual_BM is None else self.visual_BM.to(q_BHND.device),
            scale=scale,
            impl=self.impl,
        )
        return out_BHND.transpose(1, 2).contiguous()

    def _check_lengths(self, q_BHND: Tensor, k_BKMD: Tensor) -> None:
        if k_BKMD.shape[2] != int(self.call["q_offset"]) + q_BHND.shape[2]:
            raise ValueError("apply: expected a cache that grows (DynamicCache), got one of a fixed size")


_APPLIED: dict[int, _Applied] = {}  # by id of the language model's config, while `apply` holds that config


def _attention_modules(model: PreTrainedModel, n_layers: int) -> dict[int, nn.Module]:
    """The language model's attention modules by layer index."""
    lm = language_model(model)
    found = {m.layer_idx: m for m in lm.modules() if hasattr(m, "layer_idx") and hasattr(m, "num_key_value_groups")}
    if sorted(found) != list(range(n_layers)) or any(m.config is not lm.config for m in found.values()):
        raise ValueError(f"model: expected {n_layers} attention layers on one config in {type(lm).__name__}")
    return found


def _stock_function(name: str, module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention function that the model would have used; "eager" lives beside the module's class."""
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return ALL_ATTENTION_FUNCTIONS.get_interface(name, eager)


def _ranges(mask_BM: Tensor | None, batch: int, n_keys: int) -> tuple[tuple[int, int], ...]:
    """[start, end) of each row's real tokens in a 2-D mask (empty if there is none); ValueError for holes."""
    if mask_BM is None:
        return ((0, n_keys),) * batch
    mask_BM = mask_BM[:, :n_keys].bool()
    count_B = mask_BM.sum(1)
    first_B = torch.where(count_B > 0, mask_BM.int().argmax(1), n_keys)
    last_B = mask_BM.shape[1] - 1 - mask_BM.flip(1).int().argmax(1)
    if bool(((count_B > 0) & (last_B - first_B + 1 != count_B)).any()):
        raise ValueError("attention_mask: expected one run of real tokens a row, got a mask with holes")
    return tuple((start, start + count) for start, count in zip(first_B.tolist(), count_B.tolist(), strict=True))


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """The function registered with AttentionInterface."""
    applied = _APPLIED.get(id(module.config))
    if applied is None or applied.layers[module.layer_idx] is not module:  # type: ignore[index]
        raise RuntimeError("core_bench attention runs only inside core_bench.attention.apply on this very model")
    if attention_mask is not None and attention_mask.ndim != 2:
        raise ValueError(f"attention_mask: expected a 2-D padding mask, got {attention_mask.ndim} dimensions")
    return applied.attend(module, query, key, value, **kwargs)


def _mask(**call: Any) -> Tensor | None:
    """The function registered with AttentionMaskInterface."""
    return _APPLIED[id(call["config"])].begin(call)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
