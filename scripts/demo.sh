#!/usr/bin/env bash
# The study in miniature, on the bundled model and all default tasks: find the heads, silence them, keep only them, time
# it, hold the claims against it, publish. How many samples a task has, its generated splits say.
# Usage: scripts/demo.sh PYTHON [FAMILY]. Writes runs/demo/ (of another family than qwen3vl: runs/demo-FAMILY/) and
# runs/leaderboard/; a second call prints the finished tables again.
# DEMO_OUT and DEMO_BOARD are other folders for these, DEMO_TOKENS and DEMO_BUDGET those of `speed`, LIMIT=N takes N samples
# a task.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
family=${2:-qwen3vl}
out=runs/demo
[ "$family" = qwen3vl ] || out=runs/demo-$family
out=${DEMO_OUT:-$out}
board=${DEMO_BOARD:-runs/leaderboard}
heads=$out/detect/heads.tsv
few=(${LIMIT:+--limit "$LIMIT"})
summary=()

stage() { # stage NAME COMMAND...: run it, remember how long it took
    local name=$1 started=$SECONDS
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    "$@"
    summary+=("$(printf '%-18s %4d s' "$name" $((SECONDS - started)))")
}

stage detect "$python" -m core_bench --model "$family" --mode detect ${few[@]+"${few[@]}"} --out "$out/detect"
stage ablate "$python" -m core_bench --model "$family" --mode ablate --heads "$heads" ${few[@]+"${few[@]}"} --out "$out/ablate"
# Beside the top heads, as many bottom ones: that it must be these heads, not merely some, is part of the claim.
stage hybrid "$python" -m core_bench --model "$family" --mode hybrid --keep 5%,10%,bottom:5% --heads "$heads" ${few[@]+"${few[@]}"} --out "$out/hybrid"
stage speed "$python" -m core_bench speed --model "$family" --what prefill --tokens "${DEMO_TOKENS:-4096,16384}" --budget "${DEMO_BUDGET:-20}" --heads "$heads" --json "$out/speed.json"
stage claims "$python" -m core_bench.bundled.claims "$out"
stage "leaderboard add" "$python" -m core_bench leaderboard add "$out/detect" "$out/ablate" "$out/hybrid" --dir "$board"
stage "leaderboard build" "$python" -m core_bench leaderboard build --dir "$board"

printf '\n== time per stage\n'
printf '%s\n' "${summary[@]}"
printf '%-18s %4d s\n' total "$SECONDS"
