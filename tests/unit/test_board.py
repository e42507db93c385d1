"""The leaderboard: what it takes in, what it refuses, and that its pages are deterministic and safe."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core_bench.board import add, build
from core_bench.board.rows import sections
from core_bench.board.runs import load_run
from core_bench.cli import main
from core_bench.errors import UserError
from core_bench.heads import HeadPlan, HeadShape, pool_scores
from core_bench.ram import SampleRam, accumulate
from core_bench.results import RunFolder, build_record, ram_record, run_id

SHAPE = HeadShape(2, 4, 2)
TASK = "core_demo_tiny"
HYBRID = HeadPlan.hybrid(SHAPE, [(0, 1)], window=16, sink=4).to_record()


def row(number: int, arm: str, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "task": TASK, "id": str(number), "cluster": str(number), "arm": arm, "draw": None, "prediction": "red",
        "target": "red", "scores": {"accuracy": 1.0}, "failure": None, "tokens": {"prompt": 90, "visual": 64},
        "times": {"language_ms": (10.0 if arm == "dense" else 4.0) + number},
    }  # fmt: skip
    return base | changes


def make(out: Path, label: str, mode: str, rows: list[dict[str, Any]], plans: dict[str, Any], **changes: Any) -> Path:
    """A run's folder as the evaluation leaves it; its id is that of settings with this label, see `named`."""
    settings = {"limit": None, "label": label, **changes.pop("settings", {})}
    run = {
        "id": run_id("qwen3vl", mode, settings), "model": "qwen3vl", "checkpoint": "bundled",
        "checkpoint_hash": "sha256:0123456789abcdef",
        "mode": mode, "seed": 0, "command": "c", "settings": settings,
    }  # fmt: skip
    complete, ram = changes.pop("complete", True), changes.pop("ram", None)
    environment = {
        "versions": {"torch": "2.14.1", "transformers": "5.24.0", "numpy": "2"}, "commit": None, "device": "cpu",
        "threads": 2, "dtype": "float32", "attention": "sdpa",
    }  # fmt: skip
    with RunFolder.open(out, {}) as folder:
        for line in rows:
            folder.append(line)
        folder.write_record(
            build_record(
                run=run | changes, environment=environment, rows=folder.rows, plans={TASK: plans}, complete=complete,
                headline={TASK: "accuracy"}, baseline="none" if mode == "ablate" else "dense", ram=ram,
            )
        )  # fmt: skip
    return out


def named(mode: str, label: str, **settings: Any) -> str:
    """The id of a run that `make` made."""
    return run_id("qwen3vl", mode, {"limit": None, "label": label, **settings})


HYBRID_1, ABLATE_1, DETECT_1 = (named(mode, f"{mode}-1") for mode in ("hybrid", "ablate", "detect"))


def make_hybrid(out: Path, label: str = "hybrid-1", **changes: Any) -> Path:
    rows = [row(i, "dense") for i in range(4)] + [row(i, "hybrid:10%", unparsed=i == 0) for i in range(4)]
    return make(out, label, "hybrid", rows, {"dense": {}, "hybrid:10%": HYBRID}, **changes)


def make_ablate(out: Path, label: str = "ablate-1") -> Path:
    cut = HeadPlan.ablation(SHAPE, [(0, 1)]).to_record()
    rows = [row(i, "none") for i in range(4)]
    rows += [row(i, "top:10%", scores={"accuracy": float(i == 0)}) for i in range(4)]
    rows += [row(i, "random:10%", draw=d, scores={"accuracy": float(i > d)}) for i in range(4) for d in range(2)]
    return make(out, label, "ablate", rows, {"none": {}, "top:10%": cut, "random:10%": {"draws": [cut, cut]}})


def make_detect(out: Path, label: str = "detect-1") -> Path:
    ram = np.array([[0.1, 0.9, 0.2, 0.0], [0.1, 0.1, 0.1, 0.1]])
    seen = [SampleRam(ram * scale, np.full((2, 4), 0.01), 0.05) for scale in (0.9, 1.1)]
    rows = [
        row(i, "detect", scores={}, ram=one.ram.tolist(), placebo=[[0.01] * 4] * 2, chance=one.chance)
        for i, one in enumerate(seen)
    ]
    table = accumulate(seen, ["0", "1"])
    make(out, label, "detect", rows, {}, ram=ram_record({TASK: table}, pool_scores([table])))
    for name in ("heads.tsv", f"heads.{TASK}.tsv"):
        table.write_tsv(out / name)
    sidecar = {"checkpoint_hash": "sha256:0123456789abcdef", "samples": {TASK: {"ids": ["0", "1"]}}}
    (out / "heads.json").write_text(json.dumps(sidecar))
    return out


def pages(board: Path) -> tuple[str, str]:
    assert build(str(board)) == 0
    return (board / "LEADERBOARD.md").read_text(), (board / "index.html").read_text()


class Page(HTMLParser):
    """Cells of every table row, and every tag and address."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.ids: set[str | None] = set()
        self.data: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        self.ids |= {value for name, value in attrs if name == "id"}
        if tag == "a" and ("class", "point") in attrs:
            self.data.append(dict(attrs))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1] and self.tags[-1] in ("td", "a"):
            self.rows[-1][-1] += data


def test_runs_are_added_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board = tmp_path / "board"
    outs = [make_hybrid(tmp_path / "a"), make_ablate(tmp_path / "b"), make_detect(tmp_path / "c")]
    assert add([str(out) for out in outs], str(board)) == 0
    assert capsys.readouterr().out.splitlines() == [f"{run}: added" for run in (HYBRID_1, ABLATE_1, DETECT_1)]
    copied = {path.name for path in (board / "results" / DETECT_1).iterdir()}
    assert copied == {
        "record.json",
        "samples.jsonl",
        "heads.tsv",
        f"heads.{TASK}.tsv",
        "heads.json",
    }  # neither lock nor settings
    markdown, page = pages(board)
    hybrid = next(line for line in markdown.splitlines() if f"results/{HYBRID_1}/" in line)
    cells = [cell.strip() for cell in hybrid.strip("|").split(" | ")]
    assert cells[:3] == ["qwen3vl", "bundled (0123456789)", TASK.replace("_", "\\_")]
    for part in ("accuracy", "10%", "1 (12.5%/25.0%)", "16 / 4", "cpu", "float32", "torch 2.14.1, transformers 5.24.0"):
        assert part in cells
    assert any(cell.endswith("], 1 unparsed") for cell in cells)
    assert any(cell.startswith(f"{11.5 / 5.5:.2f}x [") for cell in cells)
    ablated = next(line for line in markdown.splitlines() if f"results/{ABLATE_1}/" in line)
    for part in ("1 (zero)", "25.0 [", "(-75.0)", "2 draws 50.0 to 75.0"):
        assert part in ablated
    detected = next(line for line in markdown.splitlines() if f"results/{DETECT_1}/" in line)
    for part in ("(0, 1)", "0.9000 ± 0.0900", "0.0500", "0.8900", "1 of 8"):
        assert part in detected
    parsed = Page(page)
    assert {row[-1].strip() for row in parsed.rows if row and row[0] == "qwen3vl"} == {HYBRID_1, ABLATE_1, DETECT_1}
    for address in parsed.addresses:  # self-contained: nothing is loaded, every link leads into the folder or the page
        assert address == "data:," or address.removeprefix("#") in parsed.ids or (board / address).is_file()


def test_random_heads_kept_full_show_density_and_window(tmp_path: Path) -> None:
    draws = [HeadPlan.hybrid(SHAPE, heads, window=16, sink=4).to_record() for heads in ([(0, 0)], [(1, 1)])]
    rows = [row(i, "dense") for i in range(4)]
    rows += [row(i, "hybrid:random:1", draw=d) for i in range(4) for d in range(2)]
    out = make(tmp_path / "a", "random-1", "hybrid", rows, {"dense": {}, "hybrid:random:1": {"draws": draws}})
    add([str(out)], str(tmp_path / "board"))
    line = next(
        line for line in pages(tmp_path / "board")[0].splitlines() if f"results/{named('hybrid', 'random-1')}/" in line
    )
    cells = [cell.strip() for cell in line.strip("|").split(" | ")]
    for part in ("random:1", "1 (12.5%/25.0%)", "16 / 4"):
        assert part in cells


def test_a_record_that_says_null_where_it_may_leave_out_is_shown(tmp_path: Path) -> None:
    out = make_hybrid(tmp_path / "a")
    edit(out, "ram", value=None)
    edit(out, "tasks", TASK, "controls", value=None)
    add([str(out)], str(tmp_path / "board"))
    assert f"results/{HYBRID_1}/" in pages(tmp_path / "board")[0]


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    outs = [str(make_hybrid(tmp_path / "a")), str(make_ablate(tmp_path / "b")), str(make_hybrid(tmp_path / "c", "a-2"))]
    add(outs, str(first))
    add(outs[::-1], str(second))
    assert pages(first) == pages(second) == pages(first)


def test_an_empty_folder_gives_pages_without_runs(tmp_path: Path) -> None:
    markdown, page = pages(tmp_path / "new")
    assert markdown.count("No runs yet.") == page.count("No runs yet.") == 3
    assert "<form" not in page


def test_partial_runs_stand_beneath_the_tables(tmp_path: Path) -> None:
    board = tmp_path / "board"
    limited = make_hybrid(tmp_path / "a", "limited", settings={"limit": 4})
    unfinished = make_hybrid(tmp_path / "b", "unfinished", complete=False)
    add([str(limited), str(unfinished)], str(board))
    markdown, page = pages(board)
    assert markdown.count("No runs yet.") == 3
    run = named("hybrid", "limited", limit=4)
    assert f"- [{run}](results/{run}/): qwen3vl, hybrid" in markdown
    assert "partial: limit 4" in markdown
    assert "partial: unfinished" in markdown
    assert run in page


def test_overlap_and_notes_are_shown(tmp_path: Path) -> None:
    heads = {"where": "x", "note": "heads of another checkpoint"}
    out = make_hybrid(tmp_path / "a", settings={"allow_overlap": True}, heads=heads)
    add([str(out)], str(tmp_path / "board"))
    markdown, _ = pages(tmp_path / "board")
    assert "(--allow-overlap); heads of another checkpoint |" in markdown


def test_a_newer_run_supersedes_and_the_older_stays_in_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = tmp_path / "board"
    out, newer, newest = (make_hybrid(tmp_path / name, seed=seed) for seed, name in enumerate("abc"))
    add([str(out)], str(board))
    add([str(out)], str(board))
    assert capsys.readouterr().out == f"{HYBRID_1}: added\n{HYBRID_1}: was there already\n"
    for one in (newer, newest):
        add([str(one)], str(board))
    history = sorted((board / "history" / HYBRID_1).iterdir())
    assert {load_run(path)["run"]["seed"] for path in history} == {0, 1}
    assert load_run(board / "results" / HYBRID_1)["run"]["seed"] == 2
    markdown, page = pages(board)
    assert markdown.count(f"({HYBRID_1.join(('results/', '/'))})") == 1
    for path in history:
        assert f"history/{HYBRID_1}/{path.name}/record.json" in Page(page).addresses
    with pytest.raises(UserError, match=f"a newer run {HYBRID_1} has superseded it"):
        add([str(out)], str(board))
    with pytest.raises(UserError, match=f"{HYBRID_1} is that of"):
        add([str(out), str(newer)], str(tmp_path / "other"))


def test_a_kill_between_the_two_moves_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = tmp_path / "board"
    out, newer = make_hybrid(tmp_path / "a"), make_hybrid(tmp_path / "b", seed=1)
    add([str(out)], str(board))
    moved: list[Path] = []
    rename = Path.rename

    def killed(self: Path, target: Path) -> Path:
        if moved:
            raise KeyboardInterrupt
        moved.append(self)
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            add([str(newer)], str(board))
    add([str(newer)], str(board))
    assert load_run(board / "results" / HYBRID_1)["run"]["seed"] == 1
    assert [load_run(path)["run"]["seed"] for path in (board / "history" / HYBRID_1).iterdir()] == [0]


def test_check_names_every_bad_run_in_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = make_hybrid(tmp_path / "good"), make_ablate(tmp_path / "bad")
    edit(bad, "tasks", TASK, "n", value=400)
    before = sorted(tmp_path.rglob("*"))
    words = ["leaderboard", "check", str(bad), str(good / "record.json"), str(tmp_path / "none")]
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == f"{good / 'record.json'}: ok, {HYBRID_1}\n"
    first, second = said.err.splitlines()
    assert f"{bad / 'record.json'}: tasks.{TASK}.n: does not follow" in first
    assert "found no record.json" in second
    assert main(["leaderboard", "check", str(good)]) == 0
    assert sorted(tmp_path.rglob("*")) == before


def edit(out: Path, *path: str, value: Any) -> None:
    record = json.loads((out / "record.json").read_text())
    place = record
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (out / "record.json").write_text(json.dumps(record))


ACCURACY = ("tasks", TASK, "arms", "hybrid:10%", "metrics", "accuracy", "value")
SPEEDUP = ("tasks", TASK, "arms", "hybrid:10%", "prefill", "speedup", "value")
OTHER = HeadPlan.hybrid(HeadShape(36, 32, 8), [(35, 31)], window=16, sink=4).to_record()


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (ACCURACY, 0.99, "does not follow from the samples"),
        (("tasks", TASK, "n"), 5, "does not follow from the samples"),
        (SPEEDUP, 2.5, "does not follow from the samples"),
        (("tasks", TASK, "arms", "hybrid:10%", "plan"), OTHER, "plan"),
        (("schema_version",), 2, "schema_version: "),
        (ACCURACY, float("nan"), "NaN"),
        (("run", "id"), "../../outside", "run.id: "),
        (("run", "checkpoint_hash"), None, "run.checkpoint_hash: "),
    ],
)
def test_a_tampered_record_is_refused_in_one_line(
    tmp_path: Path, path: tuple[str, ...], value: Any, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_hybrid(tmp_path / "a")
    edit(out, *path, value=value)
    for command in (["check", str(out)], ["add", str(out), "--dir", str(tmp_path / "board")]):
        assert main(["leaderboard", *command]) == 2
        said = capsys.readouterr()
        assert said.err.count("\n") == 1
        assert "record.json" in said.err
        assert why in said.err
    assert not (tmp_path / "board").exists()


def change_rows(out: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    lines = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    (out / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def without_one_answer(out: Path) -> None:
    change_rows(out, lambda rows: [one for one in rows if (one["id"], one["arm"]) != ("3", "hybrid:10%")])


def without_one_sample(out: Path) -> None:
    change_rows(out, lambda rows: [one for one in rows if one["id"] != "3"])


def with_a_score_of_nan(out: Path) -> None:
    change_rows(out, lambda rows: [one | {"scores": {"accuracy": float("nan")}} for one in rows])


def with_markup_in_the_model(out: Path) -> None:
    edit(out, "run", "model", value=MARKUP)


def with_markup_in_model_and_id(out: Path) -> None:
    with_markup_in_the_model(out)
    settings = json.loads((out / "record.json").read_text())["run"]["settings"]
    edit(out, "run", "id", value=run_id(MARKUP, "hybrid", settings))


MARKUP = "<img src=x onerror=alert(1)>"


@pytest.mark.parametrize(
    ("tamper", "why"),
    [
        (without_one_answer, "arm hybrid:10% has no row of sample '3'"),
        (without_one_sample, "does not follow from the samples"),
        (with_a_score_of_nan, "NaN"),
        (with_markup_in_the_model, "run.id: expected "),
        (with_markup_in_model_and_id, "run.id: "),
    ],
)
def test_tampered_samples_and_names_are_refused_in_one_line(
    tmp_path: Path, tamper: Callable[[Path], None], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_hybrid(tmp_path / "a")
    tamper(out)
    for command in (["check", str(out)], ["add", str(out), "--dir", str(tmp_path / "board")]):
        assert main(["leaderboard", *command]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert str(out) in line
        assert why in line
    assert not (tmp_path / "board").exists()


def test_two_runs_of_one_id_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = make_hybrid(tmp_path / "a"), make_hybrid(tmp_path / "b", seed=1)
    assert main(["leaderboard", "add", str(one), str(other), "--dir", str(tmp_path / "board")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"{other}: the run id {HYBRID_1} is that of {one} too" in line
    assert not (tmp_path / "board").exists()


@pytest.mark.parametrize("name", ["../../../outside", f"{MARKUP}/../x"])
def test_a_path_or_markup_for_a_task_stays_text(tmp_path: Path, name: str) -> None:
    """Neither can reach a file name or a tag: the run is taken, and shown as what it says."""
    out = make_detect(tmp_path / "runs" / "a")
    for path in (out / "record.json", out / "samples.jsonl", out / "heads.json"):
        path.write_text(path.read_text().replace(TASK, name))
    (out / f"heads.{TASK}.tsv").unlink()
    edit(out, "run", "complete", value=False)
    before = set(tmp_path.rglob("*"))
    board = tmp_path / "runs" / "board"
    add([str(out)], str(board))
    markdown, page = pages(board)
    assert all(board in (path, *path.parents) for path in set(tmp_path.rglob("*")) - before)
    assert "<img" not in markdown + page
    assert not [address for address in Page(page).addresses if ".." in address]


def test_bundled_models_and_the_study_stand_apart(tmp_path: Path) -> None:
    board = tmp_path / "board"
    add([str(make_hybrid(tmp_path / "a")), str(make_hybrid(tmp_path / "b", "real", checkpoint="org/name"))], str(board))
    markdown, page = pages(board)
    order = ["## Hybrid attention\n", "org/name", "## Hybrid attention: bundled models", "bundled (", "## As reported"]
    assert sorted(order, key=markdown.index) == order
    assert page.count("<figure") == 2
    assert page.index("<h2>Accuracy against prefill speed</h2>") < page.index("prefill speed: bundled models</h2>")


def test_the_plot_has_a_mark_for_every_timed_arm_and_says_what_it_is(tmp_path: Path) -> None:
    board = tmp_path / "board"
    add([str(make_hybrid(tmp_path / "a")), str(make_ablate(tmp_path / "b"))], str(board))
    page = pages(board)[1]
    (mark,) = Page(page).data
    assert (mark["data-model"], mark["data-task"], mark["href"]) == ("qwen3vl", TASK, f"#run-{HYBRID_1}")
    assert f"hybrid:10%: 100.0%, dense 100.0%, {11.5 / 5.5:.2f}x" in page


def test_a_run_tells_how_to_repeat_it(tmp_path: Path) -> None:
    board = tmp_path / "board"
    add([str(make_hybrid(tmp_path / "a")), str(make_ablate(tmp_path / "b"))], str(board))
    page = pages(board)[1]
    for part in ("<dt>command</dt><dd>c</dd>", "full (0, 1), others window 16, sink 4, holds in prefill"):
        assert part in page
    assert "draw 0: zero (0, 1), holds in prefill and decoding; draw 1:" in page


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("run", "mode"), "guess", "run.mode: "),
        (("run", "id"), "../../etc", "run.id: "),
        (("run", "id"), ".hidden", "run.id: "),
        (("run", "extra"), 1, "run.extra: "),
        (("run", "settings", "limit"), 9, "run.id: expected qwen3vl-hybrid-"),
        (("run", "id"), "hybrid-1", f"run.id: expected {HYBRID_1} for these settings, got hybrid-1"),
        (("environment", "threads"), "2", "environment.threads: "),
        (ACCURACY, "high", ".".join(ACCURACY)),
        (ACCURACY, 0.5, "does not follow from the samples"),
        (("tasks", TASK, "n"), 400, f"tasks.{TASK}.n: does not follow"),
    ],
)
def test_an_invalid_record_is_refused_and_nothing_is_copied(
    tmp_path: Path, path: tuple[str, ...], value: Any, field: str
) -> None:
    good, bad = make_ablate(tmp_path / "good"), make_hybrid(tmp_path / "bad")
    edit(bad, *path, value=value)
    with pytest.raises(UserError) as error:
        add([str(good), str(bad)], str(tmp_path / "board"))
    assert "record.json: " in str(error.value)
    assert field in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "board").exists()


@pytest.mark.parametrize("name", ["record.json", "samples.jsonl", "heads.tsv", "heads.json", f"heads.{TASK}.tsv"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    out = make_detect(tmp_path / "a")
    (out / name).unlink()
    with pytest.raises(UserError, match=f"found no {name}"):
        add([str(out)], str(tmp_path / "board"))


@pytest.mark.parametrize("name", ["heads.tsv", f"heads.{TASK}.tsv"])
@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("0\t1\t0.9", "0\t1\t0.8", "ram.0.1: not as in record.json"),
        ("\t2\n", "\t200\n", "n: not as in record.json"),
        ("0.05", "nan", "chance of head (0, 0) is not a finite number"),
        ("1\t3\t", "2\t3\t", "expected one row for each of 3 layers x 4 heads, got 8 rows"),
        ("layer", "layers", ":1: expected the tab-separated columns"),
        ("0\t1\t0.9", "0\tone\t0.9", ":3: "),
    ],
)
def test_a_head_table_that_is_not_the_record_s_is_refused(
    tmp_path: Path, name: str, old: str, new: str, why: str
) -> None:
    out = make_detect(tmp_path / "a")
    text = (out / name).read_text()
    assert old in text
    (out / name).write_text(text.replace(old, new))
    refused(out, name, why)


def refused(out: Path, *parts: str) -> None:
    """By both commands' way of reading a run: one line with these parts, and nothing is copied."""
    with pytest.raises(UserError) as error:
        add([str(out)], str(out.parent / "board"))
    message = str(error.value)
    for part in parts:
        assert part in message
    assert "\n" not in message
    assert not (out.parent / "board").exists()


def test_tables_of_nothing_and_sidecars_of_other_samples_are_refused(tmp_path: Path) -> None:
    out, other = make_detect(tmp_path / "a"), make_hybrid(tmp_path / "b")
    shutil.copy(out / "heads.tsv", other / "heads.tsv")
    refused(other, "heads.tsv: a head table that record.json does not have")
    shutil.copy(out / "heads.tsv", out / "heads.core_more.tsv")
    refused(out, "heads.core_more.tsv: a head table that record.json does not have")
    (out / "heads.core_more.tsv").unlink()
    good = json.loads((out / "heads.json").read_text())
    for text, why in (
        ("{", "expected an object"),
        ("[]", "expected an object"),
        ("[" * 100_000, "expected an object"),
        (json.dumps(good | {"samples": {TASK: ["0"]}}), "expected an object"),
        (json.dumps(good | {"samples": {TASK: {"ids": ["0"]}}}), "samples: not those measured"),
        (json.dumps(good | {"checkpoint_hash": "other"}), "checkpoint_hash: not as in record.json"),
    ):
        (out / "heads.json").write_text(text)
        refused(out, "heads.json: ", why)


def test_an_unfinished_detection_needs_no_table(tmp_path: Path) -> None:
    out = make_detect(tmp_path / "a")
    for path in out.glob("heads*"):
        path.unlink()
    edit(out, "run", "complete", value=False)
    assert add([str(out)], str(tmp_path / "board")) == 0
    assert "partial: unfinished" in pages(tmp_path / "board")[0]


def test_a_row_left_out_is_refused(tmp_path: Path) -> None:
    rows = [row(i, "dense") for i in range(4)] + [row(i, "hybrid:10%") for i in range(3)]
    out = make(tmp_path / "a", "cut", "hybrid", rows, {"dense": {}, "hybrid:10%": HYBRID})
    refused(out, "record.json: ", "arm hybrid:10% has no row of sample '3'")


WRONG: tuple[Any, ...] = (None, True, -1, 10**400, 1e308, "x", "\ud800", [], {}, [[]], {"x": {}})


def places(value: Any, *above: Any) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    if above:
        yield above
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, *above, key)


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
@pytest.mark.parametrize("make_run", [make_hybrid, make_ablate, make_detect])
def test_no_damage_gives_a_traceback(tmp_path: Path, make_run: Any) -> None:
    """Every field of the record and of a row replaced by what it should not be: refused in one line, or shown."""
    out = make_run(tmp_path / "a")
    record = json.loads((out / "record.json").read_text())
    lines = (out / "samples.jsonl").read_text().splitlines()
    rng = np.random.default_rng(0)
    damages = [("record.json", path) for path in places(record)]
    damages += [("samples.jsonl", path) for path in places(json.loads(lines[-1]))]
    assert len(damages) > 50
    for name, path in damages:
        for wrong in (WRONG[i] for i in rng.choice(len(WRONG), size=2, replace=False)):
            broken = copy.deepcopy(record if name == "record.json" else json.loads(lines[-1]))
            place = broken
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = wrong
            text = json.dumps(broken)
            (out / "record.json").write_text(text if name == "record.json" else json.dumps(record))
            (out / "samples.jsonl").write_text(
                "\n".join(lines if name == "record.json" else [*lines[:-1], text]) + "\n"
            )
            message = ""
            try:
                sections([load_run(out)])
            except UserError as error:
                message = str(error)
            assert "\n" not in message, (path, wrong)


@pytest.mark.parametrize("name", ["record.json", "samples.jsonl"])
@pytest.mark.parametrize(
    "text", ["", "[]\n", "null\n", "\x00\n", "[" * 100_000 + "\n", '{"run": ' * 9_000 + "\n", "\udcff\n"]
)
def test_damaged_files_end_in_one_line_and_exit_code_2(
    tmp_path: Path, name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_hybrid(tmp_path / "a")
    (out / name).write_bytes(text.encode(errors="surrogateescape"))
    assert main(["leaderboard", "add", str(out), "--dir", str(tmp_path / "board")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(out) in error


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": {"prompt": 10**400, "visual": 1}},
        {"scores": {"accuracy": 10**400}},
        {"scores": {"accuracy": 1.7e308}},
        {"times": {"language_ms": 1.7e308}},
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
def test_numbers_too_large_to_add_up_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    out = make_hybrid(tmp_path / "a")
    lines = [json.loads(line) | change for line in (out / "samples.jsonl").read_text().splitlines()]
    (out / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    refused(out, str(out))


def test_a_board_with_something_else_in_the_way_is_refused(tmp_path: Path) -> None:
    out, results = make_hybrid(tmp_path / "a"), tmp_path / "board" / "results"
    results.mkdir(parents=True)
    (results / HYBRID_1).write_text("")
    with pytest.raises(UserError, match=f"{HYBRID_1}: cannot be read"):
        add([str(out)], str(tmp_path / "board"))
    (results / HYBRID_1).unlink()
    (results / HYBRID_1 / "folder").mkdir(parents=True)
    with pytest.raises(UserError, match=f"{HYBRID_1}/folder: cannot be read"):
        add([str(out)], str(tmp_path / "board"))


def test_the_runs_that_ship_are_taken() -> None:
    shipped = sorted((Path(__file__).resolve().parents[2] / "leaderboard" / "results").glob("[!.]*/"))
    assert shipped
    for folder in shipped:
        assert load_run(folder)["run"]["id"] == folder.name


def test_a_run_under_another_name_is_refused(tmp_path: Path) -> None:
    board = tmp_path / "board"
    add([str(make_hybrid(tmp_path / "a"))], str(board))
    (board / "results" / HYBRID_1).rename(board / "results" / "better")
    with pytest.raises(UserError, match=rf"expected the run better, .* run\.id {HYBRID_1}"):
        build(str(board))


def test_a_kill_while_copying_is_no_run(tmp_path: Path) -> None:
    board = tmp_path / "board"
    out = make_hybrid(tmp_path / "a")
    shutil.copytree(out, board / "results" / f".{HYBRID_1}.tmp")
    (board / "results" / f".{HYBRID_1}.tmp" / "record.json").write_text("{")
    assert pages(board)[0].count("No runs yet.") == 3
    add([str(out)], str(board))
    assert [path.name for path in (board / "results").iterdir()] == [HYBRID_1]


def test_names_cannot_break_out_of_their_cells(tmp_path: Path) -> None:
    evil = '<script>alert(1)</script> | x\n| [a](javascript:b) `c` & "d"'
    heads = {"where": "x", "note": evil}
    out = make_hybrid(tmp_path / "a", checkpoint=evil, heads=heads)
    limited = make_hybrid(tmp_path / "b", "part", heads=heads, settings={"limit": 1})
    add([str(out), str(limited)], str(tmp_path / "board"))
    markdown, page = pages(tmp_path / "board")
    assert "<script" not in markdown
    assert "](javascript" not in markdown.replace("\\]", "")
    assert "\\](javascript:b)" in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in rows[:3]} == {19}
    parsed = Page(page)
    assert parsed.tags.count("script") == 1
    assert evil not in page
    cells = next(row for row in parsed.rows if row and row[0] != "")
    assert (cells[1], cells[-2]) == (f"{evil} (0123456789)", evil)


def test_a_path_of_one_machine_is_not_published(tmp_path: Path) -> None:
    add([str(make_hybrid(tmp_path / "a", checkpoint="/home/someone/models/tiny"))], str(tmp_path / "board"))
    markdown, page = pages(tmp_path / "board")
    assert "someone" not in markdown + page
    assert "tiny (0123456789)" in markdown


def test_records_with_bare_plans_do_not_crash_the_pages(tmp_path: Path) -> None:
    rows = [row(i, arm) for i in range(3) for arm in ("dense", "hybrid:10%")]
    out = make(tmp_path / "a", "bare", "hybrid", rows, {"dense": {}, "hybrid:10%": {"hold": "prefill"}})
    dense = make(tmp_path / "b", "dense", "dense", [row(0, "dense")], {"dense": {}})
    rows = [row(0, "none"), row(0, "top:5%")]
    empty = make(tmp_path / "c", "empty", "ablate", rows, {"none": {}, "top:5%": {}, "random:5%": {"draws": []}})
    add([str(out), str(dense), str(empty)], str(tmp_path / "board"))
    markdown, _ = pages(tmp_path / "board")
    assert "0 (?/?)" in markdown
    assert f"results/{named('dense', 'dense')}/" in markdown


def test_the_board_works_in_an_empty_folder_without_torch(tmp_path: Path) -> None:
    out = make_hybrid(tmp_path / "run")
    work = tmp_path / "work"
    work.mkdir()
    code = (
        "import sys; from core_bench.board import add, build; import core_bench.results, core_bench.headtables\n"
        f"add([{str(out)!r}], 'mine'); build('mine')\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=work, env={"PYTHONPATH": root}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (work / "mine").iterdir()) == ["LEADERBOARD.md", "index.html", "results"]
