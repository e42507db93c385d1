#!/usr/bin/env bash
# Measures the committed records anew, of every family that has a bundled checkpoint: its runs and its prefill, then one
# layer's attention, which no weights change; puts them in the place of the old ones, and draws and writes what is made
# from them. Stopped, the same command goes on; a family that is done is not measured again: `rm -r runs/records` begins
# anew. A claim that does not hold is told, published and makes the exit code 1.
# Usage: scripts/records.sh PYTHON. LIMIT=N tries it all on N samples a task in runs/records-N: no other file changes.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
root=runs/records${LIMIT:+-$LIMIT}
board=${LIMIT:+$root/leaderboard}
board=${board:-leaderboard}
lengths=${LIMIT:+256,512}
per_family=15 attention_minutes=5 publish_minutes=2 # on two cores; less where nothing else runs
families=($("$python" -c 'from core_bench.checkpoints import manifest; print(*sorted(manifest(), reverse=True))'))

is_done() { [ -f "$root/$1/measured" ]; }
[ -f "$root/attention.json" ] && attention_minutes=0

printf '%s: planned time, minutes on two cores%s\n' "$root" "${LIMIT:+, were it not for LIMIT}"
total=$((attention_minutes + publish_minutes))
for family in "${families[@]}"; do
    minutes=$per_family
    is_done "$family" && minutes=0
    total=$((total + minutes))
    printf '  %-18s %3d\n' "$family" "$minutes"
done
printf '  %-18s %3d\n  %-18s %3d\n  %-18s %3d\n' attention "$attention_minutes" publish "$publish_minutes" total "$total"

missed=()
for family in "${families[@]}"; do
    is_done "$family" && continue
    out=$root/$family started=$SECONDS
    rm -f "$out/speed.json" # the last thing that demo.sh measures
    # The longest prompts must be timed on a slow machine too.
    DEMO_OUT=$out DEMO_BOARD=$root/demo DEMO_TOKENS=$lengths DEMO_BUDGET=90 scripts/demo.sh "$python" "$family" || {
        code=$?
        [ "$code" = 1 ] && [ -f "$out/speed.json" ] || exit "$code"
        missed+=("$family")
    }
    touch "$out/measured"
    printf '%s: measured in %d s\n' "$family" $((SECONDS - started))
done
if [ ! -f "$root/attention.json" ]; then
    # As scripts/kernels.sh measures it for docs/kernels.md.
    "$python" -m core_bench speed --what attention --shape 8/2x64 --keep 1 --window 512 --sink 64 --device cpu \
        ${lengths:+--tokens "$lengths"} --json "$root/attention.json"
fi
"$python" -m core_bench.bundled.records "${families[@]/#/$root/}" --attention "$root/attention.json" --dir "$board"
code=0
scripts/report.sh "$python" "$board" || code=$?
printf 'total: %d s\n' "$SECONDS"
if [ ${#missed[@]} != 0 ]; then
    printf 'not every claim holds of: %s\n' "${missed[*]}" >&2
    [ "$code" != 0 ] || code=1
fi
exit "$code"
