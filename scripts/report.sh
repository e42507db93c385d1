#!/usr/bin/env bash
# All that is made from committed records: the leaderboard's pages, the report of all runs (runs/report/report.html), and
# from the committed leaderboard the pictures and the tables of claims in README.md and docs/. The same records give the
# same bytes. Usage: scripts/report.sh PYTHON [BOARD]; another board than leaderboard/ gets its report beside it.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."
python=$1
board=${2:-leaderboard}
reports=runs
[ "$board" = leaderboard ] || reports=$(dirname "$board")

"$python" -m core_bench leaderboard build --dir "$board"
"$python" -m core_bench report "$board"/results/*/ "$board"/speed/*.json --out "$reports/report"
[ "$board" = leaderboard ] || exit 0

"$python" -m core_bench report "$board"/results/qwen3vl-*/ --out "$reports/report-qwen3vl"
mkdir -p docs/figures
cp "$reports"/report-qwen3vl/figures/{map,ablation,hybrid}.png docs/figures/
code=0
"$python" -m core_bench.bundled.claims --board "$board" qwen3vl --write README.md || code=$?
"$python" -m core_bench.bundled.claims --board "$board" --write docs/bundled-models.md || code=$?
exit "$code"
