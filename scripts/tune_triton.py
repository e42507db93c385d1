"""Tries launch configurations of the Triton kernel on the GPU at hand and prints the lines for its table `TUNED`.

Usage: python scripts/tune_triton.py [--head-sizes 64,128] [--tokens 32768] [--seconds 90] [--json FILE] [--dry-run]

Timed: 32 query heads on 8 KV heads, 3 of them full, window 1024, sink 64, bfloat16. `--dry-run` needs no GPU: it lists
what would be tried.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor
from triton.runtime import driver
from triton.runtime.errors import OutOfResources

from core_bench.kernels.hybrid_attention.call import Call
from core_bench.kernels.hybrid_attention.impl.triton import Config, config_for, hybrid_attention_triton, split

HEADS, KV_HEADS, WINDOW, SINK, REPEATS = 32, 8, 1024, 64, 7
MODES = tuple("full" if head % 12 == 5 else "stream" for head in range(HEADS))


def candidates(head_size: int, shared_bytes: int) -> list[Config]:
    """The default first, then what may fit: the query tile and the pipeline's key and value tiles in shared memory."""
    width = sum(split(head_size))
    found = [
        Config(m, n, warps, stages)
        for m, n, warps, stages in itertools.product((128, 64), (64, 128, 32), (8, 4), (3, 2, 4))
        if 2 * width * (m + 2 * n * stages) <= shared_bytes and m * max(n, width) // (32 * warps) <= 128
    ]
    default = config_for(torch_capability(), "", head_size, 2, 4096)
    return [default, *(config for config in found if config != default)]


def torch_capability() -> tuple[int, int]:
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)


def milliseconds(qkv: tuple[Tensor, Tensor, Tensor], config: Config) -> float:
    """Median of a few launches, after one that compiles."""
    q, k, v = qkv
    call = Call(
        q_BHND=q, k_BKMD=k, v_BKMD=v, modes=MODES, window=WINDOW, sink=SINK, q_offset=0,
        kv_range_B2=((0, q.shape[2]),), blind_keys_BM=None, scale=q.shape[3] ** -0.5,
    )  # fmt: skip
    times = []
    for _ in range(REPEATS + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        hybrid_attention_triton(call, config)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[1:])


def tune(head_size: int, tokens: int, tries: list[Config], until: float) -> list[dict[str, object]]:
    """Every try with its time, fastest first; stops when the clock passes `until`."""
    sizes = ((1, tokens, heads, head_size) for heads in (HEADS, KV_HEADS, KV_HEADS))
    q, k, v = (torch.randn(size, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for size in sizes)
    rows: list[dict[str, object]] = []
    for config in tries:
        if time.monotonic() > until:
            break
        try:
            ms = milliseconds((q, k, v), config)
        except OutOfResources as error:
            print(f"head size {head_size}: {config} does not fit ({error})", flush=True)
            continue
        print(f"head size {head_size}: {config} {ms:.3f} ms", flush=True)
        rows.append({"head_size": head_size, "ms": ms, **asdict(config)})
    return sorted(rows, key=lambda row: float(str(row["ms"])))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-sizes", default="128,64")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--seconds", type=float, default=90, help="for all head sizes together")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    flags = parser.parse_args()
    head_sizes = [int(size) for size in flags.head_sizes.split(",")]
    if not torch.cuda.is_available() and not flags.dry_run:
        print("tune_triton: needs a CUDA device (or --dry-run)", file=sys.stderr)
        return 2
    cuda = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    shared = driver.active.utils.get_device_properties(0)["max_shared_mem"] if cuda else 227 * 1024
    rows: list[dict[str, object]] = []
    begin = time.monotonic()
    for number, size in enumerate(head_sizes, 1):
        tries = candidates(size, shared)
        if flags.dry_run or cuda is None:
            print(f"head size {size}: would try {len(tries)} configurations, first {tries[0]}")
            continue
        own = tune(size, flags.tokens, tries, begin + flags.seconds * number / len(head_sizes))
        rows += own
        if own:
            best = ", ".join(str(own[0][name]) for name in ("block_m", "block_n", "warps", "stages"))
            print(f'    ("{cuda.name}", {size}): Config({best}),')
    if flags.json:
        name = cuda.name if cuda else None
        flags.json.write_text(json.dumps({"device": name, "tokens": flags.tokens, "rows": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
