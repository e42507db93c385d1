"""The Triton kernel without a GPU: in the interpreter, compiled for GPUs that are not there, and absent.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SHARED_KIB = {80: 163, 89: 99, 90: 227}  # shared memory a block may have
SPILLS = {(80, 192): 112, (89, 192): 32}  # bytes of registers that do not fit; everywhere else all do
POINTERS = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32"}


def fresh(repo_root: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=repo_root, env=os.environ | env, capture_output=True, text=True, timeout=400
    )


def test_kernel_in_the_interpreter(repo_root: Path) -> None:
    pytest.importorskip("triton")
    inner = "tests/unit/triton_interpreted.py"
    result = fresh(repo_root, "-m", "pytest", "-q", "-p", "no:cacheprovider", inner, TRITON_INTERPRET="1")
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert re.search(r"[1-9] passed", result.stdout)


def test_the_op_works_without_triton(repo_root: Path) -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from core_bench.kernels.hybrid_attention import available, hybrid_attention, why_not\n"
        "q, k, v = torch.randn(3, 1, 2, 8, 16)\n"
        "hybrid_attention(q, k, v, ['full', 'stream'], window=2, sink=1)\n"
        "assert 'sdpa' in available('cpu') and 'triton' not in available('cpu')\n"
        "assert 'cannot be imported' in why_not('triton', 'cpu')\n"
    )
    result = fresh(repo_root, "-c", code)
    assert result.returncode == 0, result.stderr


def test_asked_for_on_the_cpu_it_says_what_it_needs() -> None:
    pytest.importorskip("triton")
    from core_bench.kernels.hybrid_attention import hybrid_attention

    q = torch.randn(1, 1, 4, 16)
    with pytest.raises(RuntimeError, match="needs a CUDA device"):
        hybrid_attention(q, q, q, ["full"], window=1, sink=0, impl="triton")


def compiled(capability: int, D: int, dtype: torch.dtype, modes: tuple[str, ...], N: int = 4096) -> Any:
    """The kernel as a launch on that GPU would compile it (16-byte aligned inputs in their usual layout)."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from core_bench.kernels.hybrid_attention.call import Call
    from core_bench.kernels.hybrid_attention.impl.triton import arguments, config_for
    from core_bench.kernels.hybrid_attention.impl.triton_kernel import hybrid_attention_kernel as kernel

    q, k = (torch.empty(1, heads, 4096, D, dtype=dtype, device="meta") for heads in (len(modes), len(modes) // 2))
    config = config_for(divmod(capability, 10), "any", D, q.element_size(), N)
    blind = torch.empty(1, 4096, dtype=torch.bool, device="meta") if "blind" in modes else None
    call = arguments(
        Call(
            q_BHND=q, k_BKMD=k, v_BKMD=k, modes=modes, window=1024, sink=64, q_offset=0, kv_range_B2=((0, 4096),),
            blind_keys_BM=blind, scale=1.0,
        ), q, config,
    )  # fmt: skip
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for at, parameter in enumerate(kernel.params):
        name, value = parameter.name, call[parameter.name]
        if parameter.is_constexpr or (name.startswith("stride") and value == 1):
            signature[name], constants[(at,)] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS.get(value.dtype, "*u8")
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        if isinstance(value, torch.Tensor) or (name.startswith("stride") and value % 16 == 0):
            attributes[(at,)] = [["tt.divisibility", 16]]
    return triton.compile(
        ASTSource(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": config.warps, "num_stages": config.stages},
    )


def spilled_bytes(ptx: str, folder: Path) -> int:
    """What ptxas says, the one that Triton brings along."""
    import triton

    found = re.search(r"\.target (\w+)", ptx)
    assert found is not None
    source = folder / "kernel.ptx"
    source.write_text(ptx)
    ptxas = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    command = [str(ptxas), "-v", f"-arch={found[1]}", str(source), "-o", str(folder / "kernel.cubin")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    stores, loads = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)[0]
    return int(stores) + int(loads)


HALF = [(80, 128), (90, 128), (90, 80)]
MORE = [(c, d) for c in (80, 89, 90) for d in (32, 64, 72, 80, 96, 128, 160, 192, 256) if (c, d) not in HALF]


@pytest.mark.parametrize(("capability", "D"), [*HALF, *(pytest.param(c, d, marks=pytest.mark.slow) for c, d in MORE)])
def test_compiles_for_gpus_within_their_memory_and_registers(capability: int, D: int, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    binary = compiled(capability, D, torch.bfloat16, ("full", "stream") * 4)
    assert binary.metadata.shared <= SHARED_KIB[capability] * 1024
    assert spilled_bytes(binary.asm["ptx"], tmp_path) <= SPILLS.get((capability, D), 0)
    products = "wgmma.mma_async" if capability == 90 else "mma.sync"
    assert products in binary.asm["ptx"]  # on the tensor cores


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    ("D", "dtype", "modes", "N", "most"),
    [
        (64, torch.float32, ("full", "stream"), 4096, 64),
        (128, torch.float32, ("full", "stream"), 4096, 64),
        (256, torch.float32, ("full", "stream"), 4096, 64),
        (128, torch.bfloat16, ("blind", "stream"), 4096, 256),
        (128, torch.float16, ("full", "stream"), 1, 0),
    ],
)
def test_compiles_for_other_calls(
    capability: int, D: int, dtype: torch.dtype, modes: tuple[str, ...], N: int, most: int, tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    binary = compiled(capability, D, dtype, modes, N)
    assert binary.metadata.shared <= SHARED_KIB[capability] * 1024
    assert spilled_bytes(binary.asm["ptx"], tmp_path) <= most
