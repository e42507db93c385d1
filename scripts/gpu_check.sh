#!/usr/bin/env bash
# What only a GPU can tell, in at most ten minutes: is the kernel right there, which configuration is best, and the rows
# of docs/kernels.md: one layer's attention, language prefill at real sizes, measuring RAM.
# Usage: scripts/gpu_check.sh [PYTHON] [OUT]. Writes OUT/{tune,attention,prefill,ram}.json and OUT/gpu_check.json, which
# holds their rows and how each step ended. DRY_RUN=1 walks through the same steps on the CPU at toy sizes.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${1:-python}
out=${2:-runs/gpu_check}
mkdir -p "$out"
rm -f "$out"/{tune,attention,prefill,ram,gpu_check}.json "$out/steps.tsv"

step() { # step NAME SECONDS COMMAND...: a step that fails or hangs does not take the others with it
    local name=$1 limit=$2 started=$SECONDS status=0
    shift 2
    printf '\n== %s: %s\n' "$name" "$*"
    timeout "$limit" "$@" || status=$?
    printf '%s\t%d\t%d\n' "$name" "$status" $((SECONDS - started)) >>"$out/steps.tsv"
}

plan=(--keep 10% --window 1024 --sink 64)
if [ "${DRY_RUN:-0}" = 1 ]; then
    speed=("$python" -m core_bench speed --device cpu --dtype float32 --keep 10% --window 64 --sink 4)
    step tests 120 "$python" -m pytest -q tests/gpu
    step tune 60 "$python" scripts/tune_triton.py --dry-run --json "$out/tune.json"
    step attention 120 "${speed[@]}" --what attention --shape 4/2x32 --tokens 256,512 --attention auto,sdpa --json "$out/attention.json"
    step prefill 240 "${speed[@]}" --what prefill --checkpoint random:Qwen3-VL-4B:1 --tokens 256 --json "$out/prefill.json"
    step ram 120 "${speed[@]}" --what ram --tokens 512 --json "$out/ram.json"
else
    speed=("$python" -m core_bench speed --device cuda --dtype bfloat16 "${plan[@]}" --budget 5)
    step tests 150 "$python" -m pytest -q -x -m gpu tests/gpu
    step tune 110 "$python" scripts/tune_triton.py --seconds 80 --json "$out/tune.json"
    step attention 110 "${speed[@]}" --what attention --shape 32/8x128 --tokens 1024,4096,8192,32768,131072 --attention auto,triton --json "$out/attention.json"
    step prefill 140 "${speed[@]}" --budget 30 --what prefill --checkpoint random:Qwen3-VL-4B --tokens 32768,131072 --json "$out/prefill.json"
    step ram 60 "${speed[@]}" --what ram --checkpoint random:Qwen3-VL-4B --tokens 8192 --json "$out/ram.json"
fi

"$python" - "$out" <<'PYTHON'
"""Gathers the steps' files into one, and prints what each step came to."""
import json
import sys
from pathlib import Path

out = Path(sys.argv[1])
found = {"steps": [], "files": {}}
for line in (out / "steps.tsv").read_text().splitlines():
    name, status, seconds = line.split("\t")
    found["steps"].append({"name": name, "status": int(status), "seconds": int(seconds)})
    print(f"{name:<12}{'ok' if status == '0' else f'FAILED ({status})':<14}{seconds:>5} s")
    if (out / f"{name}.json").exists():
        found["files"][name] = json.loads((out / f"{name}.json").read_text())
(out / "gpu_check.json").write_text(json.dumps(found, indent=2) + "\n")
for row in (row for name in ("attention", "prefill", "ram") for row in found["files"].get(name, {}).get("rows", [])):
    shown = {key: row.get(key) for key in ("what", "device", "impl", "chosen", "heads", "tokens", "dense_ms", "ms", "speedup", "ideal", "share_of_ideal")}
    print("  ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in shown.items() if value is not None))
print(f"written: {out / 'gpu_check.json'}")
sys.exit(any(step["status"] for step in found["steps"]))
PYTHON
