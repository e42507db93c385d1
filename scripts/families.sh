#!/usr/bin/env bash
# scripts/demo.sh for every family that has a bundled checkpoint, then the claims of all of them in one table.
# Usage: scripts/families.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
folders=()
for family in $("$python" -c 'from core_bench.checkpoints import manifest; print(*sorted(manifest(), reverse=True))'); do
    scripts/demo.sh "$python" "$family"
    folder=runs/demo
    [ "$family" = qwen3vl ] || folder=runs/demo-$family
    folders+=("$folder")
done
"$python" -m core_bench.bundled.claims "${folders[@]}"
