"""The report: what it takes and refuses, its numbers against planted ones, and that it is the same, safe and whole."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core_bench.cli import main
from core_bench.heads import HeadPlan, HeadScores, HeadShape, pool_scores
from core_bench.ram import SampleRam, accumulate
from core_bench.report.build import figures_of
from core_bench.report.figure import Figure
from core_bench.report.heads import POOLED, Q, task_heads
from core_bench.report.hybrid import pareto
from core_bench.report.inputs import read_inputs
from core_bench.report.speedfile import SpeedRow
from core_bench.results import RunFolder, build_record, ram_record, run_id
from core_bench.stats import break_even

SHAPE = HeadShape(4, 5, 5)
HASH = "sha256:0123456789abcdef"
NASTY = 'a<b>&"x"</title><script>alert(1)</script> $\\frac$ ${y}$'
TASKS = ("core_a_tiny", "core_b_tiny")
N = 24


def make(
    out: Path, mode: str, rows: list[dict[str, Any]], plans: dict[str, dict[str, Any]], ram: Any = None, **changes: Any
) -> Path:
    """A run's folder as the evaluation leaves it."""
    settings = {"limit": None, "label": out.name, **changes.pop("settings", {})}
    run = {
        "id": run_id("qwen3vl", mode, settings), "model": "qwen3vl", "checkpoint": NASTY, "checkpoint_hash": HASH,
        "mode": mode, "seed": 0, "command": f"c {NASTY}", "settings": settings,
    }  # fmt: skip
    environment = {
        "versions": {"torch": "2"}, "commit": None, "device": "cpu", "threads": 2, "dtype": "float32",
        "attention": "sdpa",
    }  # fmt: skip
    with RunFolder.open(out, {}) as folder:
        for row in rows:
            folder.append(row)
        folder.write_record(
            build_record(
                run=run | changes, environment=environment, rows=folder.rows, plans=plans, complete=True, ram=ram,
                headline=dict.fromkeys(plans, "accuracy"), baseline="none" if mode == "ablate" else "dense",
            )
        )  # fmt: skip
    return out


def row(task: str, number: int, arm: str, **changes: Any) -> dict[str, Any]:
    return {
        "task": task, "id": str(number), "cluster": str(number), "arm": arm, "draw": None, "failure": None,
        "scores": {"accuracy": 1.0}, "tokens": {"prompt": 90, "visual": 64},
    } | changes  # fmt: skip


def planted_ram(task: str) -> np.ndarray:
    """Heads (2, 0), (2, 1) and (3, 4) are far above chance, 0.05, in the first task (0, 0) too; others lie at it."""
    ram = np.full((4, 5), 0.05)
    ram[2, 0], ram[2, 1], ram[3, 4] = 0.6, 0.5, 0.4
    if task == TASKS[0]:
        ram[0, 0] = 0.3
    return ram


def make_detect(out: Path, tasks: tuple[str, ...] = TASKS, **changes: Any) -> Path:
    rows, tables = [], {}
    for task in tasks:
        rng = np.random.default_rng(len(task) + ord(task[5]))
        noise = rng.normal(scale=0.01, size=(N, 4, 5))
        seen = [SampleRam(planted_ram(task) + one, np.full((4, 5), 0.04), 0.05) for one in noise]
        for i, one in enumerate(seen):
            rows.append(
                row(task, i, "detect", scores={}, ram=one.ram.tolist(), placebo=one.placebo.tolist(), chance=0.05)  # type: ignore[union-attr]
            )
        tables[task] = accumulate(seen, [str(i) for i in range(N)])
    pooled = pool_scores(list(tables.values()))
    make(out, "detect", rows, {task: {} for task in tasks}, ram_record(tables, pooled, rows), **changes)
    for task, table in tables.items():
        table.write_tsv(out / f"heads.{task}.tsv")
    pooled.write_tsv(out / "heads.tsv")
    ids = [str(i) for i in range(N)]
    side = {
        "checkpoint": NASTY, "checkpoint_hash": HASH,
        "samples": {task: {"ids": ids, "clusters": ids} for task in tasks},
    }  # fmt: skip
    (out / "heads.json").write_text(json.dumps(side))
    return out


def make_ablate(out: Path, **changes: Any) -> Path:
    """Of 24 samples 18 are lost without the top head, 6 of them unparsed; random heads lose 0 and 2."""
    plans: dict[str, Any] = {"none": {}}
    rows = [row("core_a_tiny", i, "none") for i in range(N)]
    for arm, head in (("top:5%", (2, 0)), ("bottom:5%", (0, 0))):
        plans[arm] = HeadPlan.ablation(SHAPE, [head]).to_record()
        lost = 18 if arm == "top:5%" else 0
        rows += [
            row("core_a_tiny", i, arm, scores={"accuracy": float(i >= lost)}, unparsed=i < lost and i < 6)
            for i in range(N)
        ]
    draws = [HeadPlan.ablation(SHAPE, [(2, head)]).to_record() for head in (2, 3)]
    plans["random:5%"] = {"draws": draws}
    rows += [
        row("core_a_tiny", i, "random:5%", draw=draw, scores={"accuracy": float(i >= 2 * draw)})
        for i in range(N)
        for draw in range(2)
    ]
    return make(out, "ablate", rows, {"core_a_tiny": plans}, **changes)


def make_hybrid(out: Path, **changes: Any) -> Path:
    plans: dict[str, Any] = {"dense": {}}
    rows = [row("core_a_tiny", i, "dense", times={"language_ms": 10.0 + i % 3}) for i in range(N)]
    for arm, heads, wrong, ms in (
        ("hybrid:5%", 1, 1, 4.0),
        ("hybrid:10%", 2, 0, 5.0),
        ("hybrid:bottom:5%", 1, 12, 4.5),
    ):
        plans[arm] = HeadPlan.hybrid(SHAPE, [(2, h) for h in range(heads)], window=16, sink=4).to_record()
        rows += [
            row("core_a_tiny", i, arm, scores={"accuracy": float(i >= wrong)}, times={"language_ms": ms + i % 3})
            for i in range(N)
        ]
    return make(out, "hybrid", rows, {"core_a_tiny": plans}, **changes)


def make_speed(path: Path, **changes: Any) -> Path:
    rows = [
        {
            "what": "attention", "device": "cpu", "dtype": "float32", "impl": "auto", "heads": "10% (1 of 8)",
            "tokens": tokens, "window": 64, "sink": 4, "dense_ms": 10.0, "ms": ms, "speedup": 10.0 / ms, "ideal": 4.0,
            "spread": 0.1, "rounds": 9, "chosen": "sdpa",
        }
        for tokens, ms in ((256, 8.0), (512, 20.0), (1024, 8.0), (4096, 4.0))
    ]  # fmt: skip
    rows[0] |= changes
    path.write_text(json.dumps({"environment": {"device": "cpu"}, "run": {"shape": "8/2x64"}, "rows": rows}))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """One of everything."""
    folder = tmp_path_factory.mktemp("runs")
    made = [make_detect(folder / "d"), make_ablate(folder / "a"), make_hybrid(folder / "h")]
    return [*map(str, made), str(make_speed(folder / "speed.json"))]


@pytest.fixture(scope="module")
def figures(runs: list[str]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures_of(read_inputs(runs))}


@pytest.fixture(scope="module")
def report(runs: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "out"
    assert main(["report", *runs, "--out", str(out)]) == 0
    return out


def rows_of(figure: Figure, **wanted: Any) -> list[dict[str, Any]]:
    rows = [dict(zip(figure.table.header, cells, strict=True)) for cells in figure.table.rows]
    return [one for one in rows if all(one[key] == value for key, value in wanted.items())]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["report", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


# --- the files --------------------------------------------------------------------------------------------------------


def test_everything_is_written_and_told(report: Path) -> None:
    names = ["ablation", "hybrid", "layers", "map", "sparsity", "speed", "stability"]
    found = sorted(path.name for path in (report / "figures").iterdir())
    assert found == sorted(f"{name}.{ending}" for name in names for ending in ("csv", "png", "svg"))
    for name in names:
        picture = (report / "figures" / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) < 150_000, "a page in git must stay small"
        assert len(list(csv.reader((report / "figures" / f"{name}.csv").open()))) > 1


def test_the_same_runs_give_the_same_bytes(runs: list[str], report: Path, tmp_path: Path) -> None:
    """Whatever matplotlib's settings were before; and figures of runs no longer given go away."""
    import matplotlib

    with matplotlib.rc_context({"xtick.labelsize": 20, "svg.hashsalt": "other", "axes.grid": False}):
        assert main(["report", *runs, "--out", str(tmp_path / "again")]) == 0
        assert matplotlib.rcParams["xtick.labelsize"] == 20
    files = sorted(path.relative_to(report) for path in report.rglob("*") if path.is_file())
    assert files
    for name in files:
        assert (report / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name
    assert main(["report", runs[3], "--out", str(tmp_path / "again")]) == 0
    assert {path.stem for path in (tmp_path / "again" / "figures").iterdir()} == {"speed"}


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        self.ids += [value or "" for name, value in attrs if name == "id"]


def test_the_page_holds_all_and_asks_for_nothing(report: Path) -> None:
    text = (report / "report.html").read_text()
    page = Page(text)
    assert page.tags.count("img") == 7
    assert "script" not in page.tags
    for address in page.addresses:
        if address.startswith("#"):
            assert address[1:] in page.ids
        elif not address.startswith("data:"):
            assert (report / address).is_file()
    assert "prefers-color-scheme" in text or "color-scheme: light dark" in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_figures_carry_no_time_and_no_markup(report: Path) -> None:
    for path in (report / "figures").glob("*.svg"):
        text = path.read_text()
        assert "<dc:date>" not in text
        assert "<script" not in text
    for path in (report / "figures").glob("*.png"):
        assert b"tEXt" not in path.read_bytes()
        assert b"tIME" not in path.read_bytes()


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_the_planted_heads_are_above_chance(runs: list[str], figures: dict[str, Figure]) -> None:
    [detection] = read_inputs(runs).detections
    for one in task_heads(detection):
        assert one.above_by is not None
        assert one.above_bh is not None
        also = {(0, 0)} if one.task == TASKS[0] else set()
        assert {tuple(head) for head in np.argwhere(one.above_by <= Q).tolist()} == {(2, 0), (2, 1), (3, 4)} | also
        assert np.all(one.above_bh <= one.above_by)
    [cell] = rows_of(figures["map"], task=POOLED, layer=2, head=0)
    assert cell["ram"] == pytest.approx(0.6, abs=0.01)
    assert cell["sink_corrected"] == pytest.approx(0.56, abs=0.01)
    assert (cell["chance"], cell["samples"], cell["clusters"]) == (pytest.approx(0.05), 2 * N, N)


def test_sparsity_and_depth_are_the_planted_ones(figures: dict[str, Figure]) -> None:
    curve = {one["rank"]: one for one in rows_of(figures["sparsity"], task="core_a_tiny")}
    whole = 0.6 + 0.5 + 0.4 + 0.3 + 16 * 0.05
    assert curve[3]["share_of_ram"] == pytest.approx(1.5 / whole, abs=0.01)
    assert curve[3]["share_of_heads"] == pytest.approx(3 / 20)
    assert curve[20]["share_of_ram"] == pytest.approx(1)
    layers = {one["layer"]: one for one in rows_of(figures["layers"], task="core_a_tiny")}
    assert layers[2]["share_of_ram"] == pytest.approx(1.25 / whole, abs=0.01)
    assert layers[2]["low"] < layers[2]["share_of_ram"] < layers[2]["high"]
    assert layers[2]["depth"] == 2.5 / 4


def test_stability_says_what_the_record_says(runs: list[str], figures: dict[str, Figure]) -> None:
    said = json.loads((Path(runs[0]) / "record.json").read_text())["ram"]["stability"]
    [pair] = rows_of(figures["stability"], what="spearman of tasks")
    assert pair["value"] == pytest.approx(said["pairs"][0]["value"])
    assert (pair["low"], pair["high"]) == pytest.approx(tuple(said["pairs"][0]["ci95"]))
    sizes = [one["samples_each"] for one in rows_of(figures["stability"], what="spearman of samples", of="core_a_tiny")]
    assert sizes == [1, 2, 4, 8, 12]
    top = rows_of(figures["stability"], what="shared top 10%", of="core_a_tiny")
    assert [one["value"] for one in top] == [1.0] * 5  # the two leading heads stand out in every sample


def test_ablation_shows_what_was_lost(figures: dict[str, Figure]) -> None:
    [top] = rows_of(figures["ablation"], arm="top:5%")
    assert (top["heads_off"], top["share_off"]) == (1, pytest.approx(1 / 20))
    assert (top["value"], top["delta"]) == (pytest.approx(6 / 24), pytest.approx(-18 / 24))
    assert (top["lost"], top["gained"]) == (18, 0)
    assert top["mcnemar_p"] == pytest.approx(2 / 2**18)
    assert top["unparsed"] == pytest.approx(6 / 24)
    assert top["unparsed_low"] < 6 / 24 < top["unparsed_high"]
    [random] = rows_of(figures["ablation"], arm="random:5%")
    assert random["value"] == pytest.approx(23 / 24)
    assert random["draws"] == "1 0.916667"
    assert random["mcnemar_p"] is None
    assert [one["arm"] for one in rows_of(figures["ablation"])] == ["none", "top:5%", "bottom:5%", "random:5%"]


def test_runs_of_one_sweep_are_one_curve(tmp_path: Path) -> None:
    a = make_ablate(tmp_path / "a", settings={"label": "same", "ablate": "top:5%"})
    b = make_ablate(tmp_path / "b", settings={"label": "same", "ablate": "top:10%"})
    other = make_ablate(tmp_path / "c", settings={"label": "other", "ablate": "top:10%"})
    assert len(read_inputs([str(a), str(b)]).ablations) == 1
    both = read_inputs([str(a), str(other)]).ablations
    assert len({trial.label for trial in both}) == 2
    assert len(read_inputs([str(a), str(b)]).ablations[0].rows) == len(both[0].rows)


def test_hybrid_has_dense_and_a_pareto_front(figures: dict[str, Figure]) -> None:
    found = {one["arm"]: one for one in rows_of(figures["hybrid"])}
    assert {arm for arm, one in found.items() if one["pareto"] == "yes"} == {"hybrid:5%", "hybrid:10%"}
    assert found["dense"]["speedup"] == 1.0
    assert found["hybrid:10%"]["speedup"] == pytest.approx(11 / 6)
    assert found["hybrid:10%"]["delta"] == 0
    assert (found["hybrid:bottom:5%"]["lost"], found["hybrid:5%"]["lost"]) == (12, 1)


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([(1.0, 0.9), (2.0, 0.9), (3.0, 0.5), (2.5, 0.4)], {1, 2}),
        ([(1.0, 1.0)], {0}),
        ([(1.0, 1.0), (1.0, 1.0)], {0, 1}),
        ([], set()),
    ],
)
def test_the_front_is_what_nothing_beats(points: list[tuple[float, float]], front: set[int]) -> None:
    assert pareto(points) == front


def test_break_even_counts_only_if_no_longer_prompt_is_slower(figures: dict[str, Figure]) -> None:
    """Faster at 256, slower at 512: 256 is not the break-even."""
    assert figures["speed"].shown is not None
    assert figures["speed"].shown.rows[0][2] == "1024 tokens"
    from core_bench.speedrows import break_even as of_speed

    made = [dict(zip(figures["speed"].table.header, cells, strict=True)) for cells in figures["speed"].table.rows]
    typed = [SpeedRow.model_validate({**one, "spread": 0.1}) for one in made]
    assert {("10% (1 of 8)", "auto"): break_even((row.tokens, row.speedup) for row in typed)} == of_speed(made)
    assert break_even((row.tokens, row.speedup) for row in typed[:2]) is None


def test_few_clusters_and_missing_samples_are_said(tmp_path: Path) -> None:
    """Of head tables alone there is a map with a bound, but nothing is invented about samples."""
    full = make_detect(tmp_path / "full")
    alone = tmp_path / "alone"
    alone.mkdir()
    for path in full.glob("heads*"):
        shutil.copy(path, alone)
    found = {figure.name: figure for figure in figures_of(read_inputs([str(alone)]))}
    assert rows_of(found["stability"], what="spearman of samples") == []
    [pair] = rows_of(found["stability"], what="spearman of tasks")
    assert pair["low"] is None
    assert any("no interval" in note for note in found["stability"].notes)
    [cell] = rows_of(found["map"], task="core_a_tiny", layer=2, head=0)
    assert cell["q_above_chance_by"] < Q
    assert cell["clusters"] == N
    (alone / "heads.json").unlink()
    again = {figure.name: figure for figure in figures_of(read_inputs([str(alone)]))}
    assert any("taken as independent" in note for note in again["map"].notes)
    few = make(
        tmp_path / "few", "ablate",
        [row("core_a_tiny", i, arm, cluster=str(i % 3)) for arm in ("none", "top:5%") for i in range(9)],
        {"core_a_tiny": {"none": {}, "top:5%": HeadPlan.ablation(SHAPE, [(2, 0)]).to_record()}},
    )  # fmt: skip
    [figure] = figures_of(read_inputs([str(few)]))
    assert any("only 3 clusters" in note for note in figure.notes)
    assert any("McNemar" in note for note in figure.notes)


def test_tasks_of_several_runs_of_a_checkpoint_stand_together(tmp_path: Path) -> None:
    parts = [make_detect(tmp_path / task, (task,)) for task in TASKS]
    [detection] = read_inputs([str(part) for part in parts]).detections
    assert sorted(detection.tables) == sorted(TASKS)
    other = make_detect(tmp_path / "last", ("core_a_tiny",), settings={"query": "last"})
    assert len(read_inputs([str(parts[0]), str(other)]).detections) == 2


# --- mistakes ---------------------------------------------------------------------------------------------------------


def break_table(run: Path) -> str:
    (run / "heads.tsv").write_text("layer\thead\n0\t0\n")
    return "heads.tsv"


def break_row(run: Path) -> str:
    path = run / "samples.jsonl"
    path.write_text(path.read_text() + "{}\n")
    return "samples.jsonl"


def lose_samples(run: Path) -> str:
    (run / "samples.jsonl").unlink()
    return "found no samples.jsonl"


def break_record(run: Path) -> str:
    (run / "record.json").write_text("{")
    return "not a valid record"


@pytest.mark.parametrize("damage", [break_table, break_row, lose_samples, break_record])
def test_a_damaged_run_is_one_line(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], str]
) -> None:
    shutil.copytree(runs[0], tmp_path / "run")
    said = damage(tmp_path / "run")
    assert said in refused(capsys, str(tmp_path / "run"), "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_what_is_no_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "broken.tsv").write_text("layer\thead\n")
    (tmp_path / "broken.json").write_text('{"rows": 1}')
    for name, said in (
        ("empty", "found neither"), ("notes.txt", "got 'notes.txt'"), ("gone", "there is no such run"),
        ("broken.tsv", "expected the tab-separated columns"), ("broken.json", "not a file of speed --json"),
        ("gone.json", "cannot be read"),
    ):  # fmt: skip
        assert said in refused(capsys, str(tmp_path / name), "--out", str(tmp_path / "out"))
    assert "RUN" in refused(capsys, "--out", str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"speedup": 3.0}, "not dense_ms / ms"), ({"tokens": -1}, "rows.0.tokens"), ({"ms": "4"}, "rows.0.ms")],
)
def test_a_broken_speed_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    path = make_speed(tmp_path / "speed.json", **changes)
    assert said in refused(capsys, str(path), "--out", str(tmp_path / "out"))


def test_runs_that_cannot_stand_together_are_refused(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--out", str(tmp_path / "out"))
    assert "the run id" in refused(capsys, runs[0], runs[0], *out)
    retrained = make_hybrid(tmp_path / "other", checkpoint_hash="sha256:ffff")
    assert "with other weights" in refused(capsys, runs[0], str(retrained), *out)
    timed = json.loads(Path(runs[3]).read_text())
    timed["run"] = {"checkpoint": NASTY, "checkpoint_hash": "sha256:ffff"}
    (tmp_path / "prefill.json").write_text(json.dumps(timed))
    assert "and prefill.json: both of checkpoint" in refused(capsys, runs[0], str(tmp_path / "prefill.json"), *out)
    again = make_detect(tmp_path / "again", ("core_a_tiny",))
    assert "another run given has it too" in refused(capsys, runs[0], str(again), *out)
    small = np.full((2, 2), 0.1)
    (tmp_path / "small").mkdir()
    HeadScores(small, small, small, small, 5).write_tsv(tmp_path / "small" / "heads.core_c.tsv")
    side = {"checkpoint": NASTY, "checkpoint_hash": HASH, "samples": {}}
    (tmp_path / "small" / "heads.json").write_text(json.dumps(side))
    assert "2 x 2 and 4 x 5" in refused(capsys, runs[0], str(tmp_path / "small"), *out)


def test_nothing_foreign_is_overwritten(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    assert "holds no report.html" in refused(capsys, runs[3], "--out", str(tmp_path / "mine"))
    assert "got a file" in refused(capsys, runs[3], "--out", str(tmp_path / "mine" / "thesis.txt"))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_run_with_nothing_to_draw_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dense = make(tmp_path / "dense", "dense", [row("core_a_tiny", 0, "dense")], {"core_a_tiny": {"dense": {}}})
    assert "nothing to draw" in refused(capsys, str(dense), "--out", str(tmp_path / "out"))


def in_a_fresh_interpreter(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


def test_without_matplotlib_it_says_what_to_install(repo_root: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\nfrom core_bench.cli import main; sys.exit(main(['report', 'x']))"
    )
    done = in_a_fresh_interpreter(code, repo_root)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["core_bench: error: report: needs matplotlib: pip install 'core-bench[plots]'"]


def test_its_help_loads_nothing_heavy_and_it_never_loads_torch(repo_root: Path) -> None:
    loaded = "print(*{name.partition('.')[0] for name in sys.modules})"
    code = f"import sys; from core_bench.cli import main\ntry: main(['report', '--help'])\nfinally: {loaded}"
    done = in_a_fresh_interpreter(code, repo_root)
    assert done.returncode == 0
    assert not {"numpy", "scipy", "matplotlib", "torch", "pydantic"} & set(done.stdout.splitlines()[-1].split())
    code = f"import sys, core_bench.report.build; {loaded}"
    assert not {"torch", "transformers"} & set(in_a_fresh_interpreter(code, repo_root).stdout.split())
