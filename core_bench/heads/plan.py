"""What every attention head of a model may see, as one frozen value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from core_bench.errors import UserError

Head = tuple[int, int]
Mode = Literal["full", "stream", "off", "blind"]
Hold = Literal["prefill", "always"]
OffKind = Literal["zero", "blind"]


@dataclass(frozen=True)
class HeadShape:
    """The grid of heads: `n_layers` x `n_heads` query heads, `n_kv_heads` key/value heads in each layer (GQA)."""

    n_layers: int
    n_heads: int
    n_kv_heads: int

    def __post_init__(self) -> None:
        if min(self.n_layers, self.n_heads, self.n_kv_heads) < 1:
            raise UserError(f"HeadShape: expected positive counts, got {self}")
        if self.n_heads % self.n_kv_heads:
            raise UserError(
                f"HeadShape: {self.n_heads} query heads cannot share {self.n_kv_heads} key/value heads evenly"
            )

    def __str__(self) -> str:
        return f"{self.n_layers} layers x {self.n_heads} heads"

    @property
    def size(self) -> int:
        return self.n_layers * self.n_heads

    def all_heads(self) -> frozenset[Head]:
        return frozenset((layer, head) for layer in range(self.n_layers) for head in range(self.n_heads))

    def kv_head(self, head: int) -> int:
        """The key/value head that query head `head` reads: h // (H / H_kv)."""
        return head // (self.n_heads // self.n_kv_heads)

    def check(self, heads: Iterable[Head], what: str = "heads") -> frozenset[Head]:
        """`heads` as a set of plain ints; UserError for one outside the grid."""
        checked = frozenset((int(layer), int(head)) for layer, head in heads)
        for layer, head in sorted(checked):
            if not (0 <= layer < self.n_layers and 0 <= head < self.n_heads):
                raise UserError(f"{what}: head ({layer}, {head}) lies outside the model's {self}")
        return checked


@dataclass(frozen=True)
class HeadPlan:
    """A mode for each head: the four sets are disjoint and hold every head of `shape` once.

    full: all keys up to the query. stream: key j of query i iff i - j < window (the query counts) or j is one of the
    first `sink` real tokens. off: output exactly zero before o_proj. blind: visual keys removed, the rest
    renormalised. `window` and `sink` are in tokens and idle without streaming heads. `hold`: only while the prompt is
    read, or also while decoding. `stock` marks the plan that leaves the model's own attention alone; a plan with
    every head full and stock False still runs through this package's attention, which is how the two are compared.
    """

    shape: HeadShape
    full: frozenset[Head]
    stream: frozenset[Head] = frozenset()
    off: frozenset[Head] = frozenset()
    blind: frozenset[Head] = frozenset()
    window: int = 1
    sink: int = 0
    hold: Hold = "prefill"
    stock: bool = False

    def __post_init__(self) -> None:
        if self.window < 1:
            raise UserError(f"window: expected at least 1 token (the query itself counts), got {self.window}")
        if self.sink < 0:
            raise UserError(f"sink: expected 0 or more tokens, got {self.sink}")
        if self.hold not in get_args(Hold):
            raise UserError(f"hold: expected prefill or always, got {self.hold!r}")
        sets = {name: self.shape.check(getattr(self, name), name) for name in get_args(Mode)}
        for name, heads in sets.items():
            object.__setattr__(self, name, heads)  # callers may hand any iterable; plans must hash
        union = frozenset().union(*sets.values())
        if sum(map(len, sets.values())) != len(union):
            raise UserError("HeadPlan: a head stands in two of full, stream, off, blind")
        if missing := self.shape.all_heads() - union:
            raise UserError(f"HeadPlan: no mode for head {min(missing)} ({len(missing)} heads without one)")
        if self.stock and len(self.full) != self.shape.size:
            raise UserError("HeadPlan: a stock plan leaves every head full")

    @classmethod
    def empty(cls, shape: HeadShape) -> HeadPlan:
        """The plan that changes nothing: logits are bit-identical to the model's own."""
        return cls(shape, full=shape.all_heads(), stock=True)

    @classmethod
    def hybrid(cls, shape: HeadShape, full: Iterable[Head], window: int, sink: int, hold: Hold = "prefill") -> HeadPlan:
        """`full` heads see everything, all others stream."""
        kept = shape.check(full, "full heads")
        return cls(shape, full=kept, stream=shape.all_heads() - kept, window=window, sink=sink, hold=hold)

    @classmethod
    def ablation(
        cls, shape: HeadShape, heads: Iterable[Head], kind: OffKind = "zero", hold: Hold = "always"
    ) -> HeadPlan:
        """`heads` give zeros (kind "zero") or lose the visual keys (kind "blind"); all others stay full."""
        cut = shape.check(heads, "ablated heads")
        rest = shape.all_heads() - cut
        if kind == "zero":
            return cls(shape, full=rest, off=cut, hold=hold)
        if kind == "blind":
            return cls(shape, full=rest, blind=cut, hold=hold)
        raise UserError(f"ablation kind: expected zero or blind, got {kind!r}")

    @property
    def is_empty(self) -> bool:
        """Whether the model's stock attention does the work."""
        return self.stock

    def mode(self, layer: int, head: int) -> Mode:
        for name in get_args(Mode):
            if (layer, head) in getattr(self, name):
                mode: Mode = name
                return mode
        raise UserError(f"head ({layer}, {head}) lies outside the model's {self.shape}")

    def layer_modes(self, layer: int) -> tuple[Mode, ...]:
        """Modes of one layer's query heads, in head order."""
        return tuple(self.mode(layer, head) for head in range(self.shape.n_heads))

    @property
    def query_head_density(self) -> float:
        """Share of query heads that are full."""
        return len(self.full) / self.shape.size

    @property
    def kv_head_density(self) -> float:
        """Share of (layer, KV head) pairs whose keys and values are needed at full length while the plan holds.

        One full head keeps the KV head of its whole GQA group; so does a blind one, which reads all text. With hold
        "prefill" decoding reads all of them again, so this is the share that prefill reads, not the share of cache
        that must be kept.
        """
        needed = {(layer, self.shape.kv_head(head)) for layer, head in self.full | self.blind}
        return len(needed) / (self.shape.n_layers * self.shape.n_kv_heads)

    def to_record(self) -> dict[str, Any]:
        """The plan as `record.json` holds it; {} for the stock plan, null window and sink where nothing streams.

        Raises UserError for a plan with both off and blind heads: a record names one kind.
        """
        if self.stock:
            return {}
        if self.off and self.blind:
            raise UserError("HeadPlan: a record holds one kind of ablation, this plan has off and blind heads")
        kind = "blind" if self.blind else "zero" if self.off else None
        return {
            "full": [list(head) for head in sorted(self.full)],
            "off": [list(head) for head in sorted(self.off | self.blind)],
            "off_kind": kind,
            "hold": self.hold,
            "window": self.window if self.stream else None,
            "sink": self.sink if self.stream else None,
            "query_head_density": self.query_head_density,
            "kv_head_density": self.kv_head_density,
        }
