#!/usr/bin/env bash
# Prints the CPU rows of docs/kernels.md: attention against the best dense and FlexAttention, prefill, RAM.
# On a quiet machine of two cores about six minutes. Usage: scripts/kernels.sh [OUT]   (default OUT: runs/kernels)
set -euo pipefail
cd "$(dirname "$0")/.."
out="${1:-runs/kernels}"
python="${PYTHON:-.venv/bin/python}"
mkdir -p "$out"

heads=(--shape 8/2x64 --keep 1 --window 512 --sink 64 --device cpu)
"$python" -m core_bench speed --what attention "${heads[@]}" --json "$out/attention.json"
echo
"$python" -m core_bench speed --what attention "${heads[@]}" --tokens 4096,16384 --attention auto,flex --json "$out/flex.json"
echo
"$python" -m core_bench speed --what prefill --device cpu --json "$out/prefill.json"
echo
"$python" -m core_bench speed --what ram --device cpu --json "$out/ram.json"
