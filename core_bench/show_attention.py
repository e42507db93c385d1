"""Where chosen heads look while a prompt is read: softmax mass on every single token, and its sums by kind of token.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys (prompt tokens), D head size, R rows (query
tokens), S shown heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core_bench.attention import MassProbe, apply
from core_bench.heads import Head, HeadPlan
from core_bench.schema import Prepared, TokenMap

if TYPE_CHECKING:
    from core_bench.model_wrappers.base import ModelWrapper

FloatArray = NDArray[np.float64]


class KeyMassProbe(MassProbe):
    """Collects the softmax mass of `heads` on every token, averaged over the query tokens `rows`.

    What MassProbe sums up over sets of keys, unsummed and for these heads alone. `mass_SM` is float32
    [heads, prompt tokens] on the CPU, after one forward (batch of one) under `apply(model, plan, probe=probe)`.
    """

    def __init__(self, rows: Sequence[int], heads: Sequence[Head]) -> None:
        super().__init__(rows, sets=[rows])
        self.heads = tuple(heads)
        self._mass_by_head: dict[Head, Tensor] = {}

    @property
    def mass_SM(self) -> Tensor:
        missing = [head for head in self.heads if head not in self._mass_by_head]
        if missing:
            raise RuntimeError(f"KeyMassProbe: head {missing[0]} was not seen while the probe was applied")
        return torch.stack([self._mass_by_head[head] for head in self.heads]).cpu()

    def begin(self, batch: int, length: int, n_layers: int) -> None:
        super().begin(batch, length, n_layers)
        self._mass_by_head = {}

    @torch.no_grad()
    def observe(
        self,
        layer: int,
        q_BHND: Tensor,
        k_BKMD: Tensor,
        *,
        start: int = 0,
        kv_range_B2: Sequence[tuple[int, int]],
        scale: float | None,
    ) -> None:
        """Takes one layer's queries and keys as its attention sees them; extra memory O(R x M) for each shown head.

        The whole prompt at once: `start` is 0.
        """
        if start:
            raise ValueError("KeyMassProbe: expected a prompt that is read at once, got one in chunks")
        group = q_BHND.shape[1] // k_BKMD.shape[1]
        start, end = kv_range_B2[0]
        factor = q_BHND.shape[-1] ** -0.5 if scale is None else scale
        rows_R = torch.tensor(self.rows, device=q_BHND.device)
        keys_M = torch.arange(k_BKMD.shape[2], device=q_BHND.device)
        hidden_RM = (keys_M > rows_R[:, None]) | (keys_M < start) | (keys_M >= end)
        for head in (head for layer_, head in self.heads if layer_ == layer):
            scores_RM = q_BHND[0, head, rows_R].float() @ k_BKMD[0, head // group].float().T * factor
            mass_RM = torch.softmax(scores_RM.masked_fill(hidden_RM, -torch.inf), dim=-1)
            self._mass_by_head[(layer, head)] = mass_RM.mean(dim=0)


def key_mass(wrapper: ModelWrapper, prepared: Prepared, rows: Sequence[int], heads: Sequence[Head]) -> FloatArray:
    """Mass of each head on each token of the prompt, mean over the query tokens `rows`: float64 [heads, tokens], from
    float32. Every row sums to 1; summed over Omega it is the head's RAM on this sample. One forward."""
    probe = KeyMassProbe(rows, heads)
    with torch.inference_mode(), apply(wrapper.model, HeadPlan.empty(wrapper.shape), probe=probe):
        wrapper.model(**wrapper.device_inputs(prepared), use_cache=False, logits_to_keep=1)
    mass: FloatArray = probe.mass_SM.double().numpy()
    return mass


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How one head's mass divides: these five sum to 1. `brightest` is the largest mass on one visual cell."""

    omega: float
    other_cells: float
    markers: float
    first_token: float
    other_text: float
    brightest: float


def shares(mass_M: FloatArray, token_map: TokenMap, omega: Sequence[int]) -> Shares:
    """The mass of one head, by what the tokens are. `markers` counts newlines among the visual tokens too; position
    0, where attention collects that has nowhere to go, stands apart unless it is a visual cell."""
    roles = np.array(token_map.roles())
    cell_M, text_M = roles == "cell", roles == "text"
    first_M = np.arange(len(roles)) == 0
    first_M &= ~cell_M
    omega_M = np.isin(np.arange(len(roles)), np.asarray(omega, dtype=np.int64))
    return Shares(
        omega=float(mass_M[omega_M].sum()),
        other_cells=float(mass_M[cell_M & ~omega_M].sum()),
        markers=float(mass_M[~cell_M & ~text_M & ~first_M].sum()),
        first_token=float(mass_M[first_M].sum()),
        other_text=float(mass_M[text_M & ~first_M].sum()),
        brightest=float(mass_M[cell_M].max(initial=0.0)),
    )
