#!/usr/bin/env bash
# The study in miniature, on the bundled model and all default tasks: find the heads, silence them, keep only them, time
# it, hold the claims against it, publish. How many samples a task has, its generated splits say.
# Usage: scripts/demo.sh PYTHON [FAMILY]. Writes runs/demo/ (of another family than qwen3vl: runs/demo-FAMILY/) and
# runs/leaderboard/; a second call prints the finished tables again.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
family=${2:-qwen3vl}
out=runs/demo
[ "$family" = qwen3vl ] || out=runs/demo-$family
heads=$out/detect/heads.tsv
summary=()

stage() { # stage NAME COMMAND...: run it, remember how long it took
    local name=$1 started=$SECONDS
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    "$@"
    summary+=("$(printf '%-18s %4d s' "$name" $((SECONDS - started)))")
}

stage detect "$python" -m core_bench --model "$family" --mode detect --out "$out/detect"
stage ablate "$python" -m core_bench --model "$family" --mode ablate --heads "$heads" --out "$out/ablate"
# Beside the top heads, as many bottom ones: that it must be these heads, not merely some, is part of the claim.
stage hybrid "$python" -m core_bench --model "$family" --mode hybrid --keep 5%,10%,bottom:5% --heads "$heads" --out "$out/hybrid"
stage speed "$python" -m core_bench speed --model "$family" --what prefill --tokens 4096,16384 --heads "$heads" --json "$out/speed.json"
stage claims "$python" -m core_bench.bundled.claims "$out"
stage "leaderboard add" "$python" -m core_bench leaderboard add "$out/detect" "$out/ablate" "$out/hybrid" --dir runs/leaderboard
stage "leaderboard build" "$python" -m core_bench leaderboard build --dir runs/leaderboard

printf '\n== time per stage\n'
printf '%s\n' "${summary[@]}"
printf '%-18s %4d s\n' total "$SECONDS"
