"""Run folder (lock, settings, rows, record), the record built from rows, and the printed tables."""

from __future__ import annotations

import copy
import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core_bench.errors import UserError
from core_bench.heads import HeadPlan, HeadShape, pool_scores
from core_bench.ram import SampleRam, accumulate
from core_bench.results import (
    RunFolder,
    build_record,
    ram_record,
    render_tables,
    run_id,
    short_digest,
    strip_times,
    verify_record,
)
from core_bench.runfolder import check_out, load_record, load_rows
from core_bench.stats import ci95

SHAPE = HeadShape(2, 4, 2)
TASK = "core_demo_tiny"
SETTINGS = {"model": "m", "window": 64, "arms": {"keep": ["10%"]}}
HYBRID = HeadPlan.hybrid(SHAPE, [(0, 1)], window=16, sink=4).to_record()


def row(number: int, arm: str = "dense", right: bool = True, draw: int | None = None, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "task": TASK, "id": f"s{number:02}", "cluster": f"c{number // 2}", "arm": arm, "draw": draw,
        "prediction": "red", "target": "red", "scores": {"zeta": 0.5, "accuracy": float(right)}, "failure": None,
        "unparsed": False, "tokens": {"prompt": 100 + number, "visual": 64}, "frames": [],
        "times": {"language_ms": (10.0 if arm == "dense" else 4.0) + number / 10, "vision_ms": 3.0, "generate_ms": 9.0},
    }  # fmt: skip
    return base | changes


def failed(number: int, arm: str) -> dict[str, Any]:
    return row(number, arm, scores={}, failure="missing.png: no such file", prediction=None, times=None, tokens=None)


def build(rows: list[dict[str, Any]], plans: dict[str, Any], baseline: str = "dense", **changes: Any) -> dict[str, Any]:
    mode = changes.pop("mode", "hybrid" if baseline == "dense" else "ablate")
    settings = {"limit": None, "seed": 0, **changes.pop("settings", {})}
    run = {
        "id": run_id("qwen3vl", mode, settings), "model": "qwen3vl", "checkpoint": "bundled",
        "checkpoint_hash": "sha256:0123456789abcdef", "mode": mode, "seed": 0, "command": "c", "settings": settings,
    }  # fmt: skip
    environment = {
        "versions": {"torch": "2"}, "commit": None, "device": "cpu", "threads": 2, "dtype": "float32",
        "attention": "sdpa",
    }  # fmt: skip
    arguments: dict[str, Any] = {
        "run": run, "environment": environment, "rows": rows, "plans": {TASK: plans}, "headline": {TASK: "accuracy"},
        "baseline": baseline, "complete": True,
    }  # fmt: skip
    return build_record(**(arguments | changes))


def hybrid_rows() -> list[dict[str, Any]]:
    rows = [row(i) for i in range(10)] + [row(i, "hybrid:10%", right=i != 3, unparsed=i == 3) for i in range(10)]
    return [*rows, failed(10, "dense"), failed(10, "hybrid:10%"), row(11), failed(11, "hybrid:10%")]


def hybrid_record() -> dict[str, Any]:
    controls = {TASK: {"chance": 0.125, "image_blind": {"value": 0.1, "stderr": 0.02, "ci95": [0.05, 0.15], "n": 10}}}
    return build(hybrid_rows(), {"dense": {}, "hybrid:10%": HYBRID}, controls=controls)


# ---- run folder


def test_a_new_folder_keeps_rows_and_resumes(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    with RunFolder.open(out, SETTINGS) as run:
        run.append(row(0))
        run.append(row(0, "random:5%", draw=1))
        assert not run.finished
    with RunFolder.open(out, copy.deepcopy(SETTINGS)) as run:
        assert run.rows == [row(0), row(0, "random:5%", draw=1)]
        assert run.done == {(TASK, "s00", "dense", None), (TASK, "s00", "random:5%", 1)}
        with pytest.raises(ValueError, match="there already"):
            run.append(row(0))


def test_rows_measured_together_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with RunFolder.open(out, SETTINGS) as run:
        run.append(row(0), row(0, "hybrid:10%"))
        before = (out / "samples.jsonl").read_bytes()
        with pytest.raises(ValueError, match="there already"):
            run.append(row(1), row(0))
        with pytest.raises(ValueError, match="there already"):
            run.append(row(2), row(2))
        with pytest.raises(ValueError, match="a failed sample has no scores"):
            run.append(row(3), row(4) | {"failure": "broken"})
        assert (out / "samples.jsonl").read_bytes() == before
        assert run.rows == [row(0), row(0, "hybrid:10%")]
        assert run.done == {(TASK, "s00", "dense", None), (TASK, "s00", "hybrid:10%", None)}


def test_a_busy_folder_is_refused_and_freed_on_close(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with RunFolder.open(out, SETTINGS), pytest.raises(UserError, match=f"--out {out}: another process") as error:
        RunFolder.open(out, SETTINGS)
    assert "\n" not in str(error.value)
    RunFolder.open(out, SETTINGS).close()


def test_other_settings_are_refused_with_what_differs(tmp_path: Path) -> None:
    RunFolder.open(tmp_path / "run", SETTINGS).close()
    other = {"model": "m", "window": True, "arms": {"keep": ["5%"]}, "seed": 1}
    with pytest.raises(UserError) as error:
        RunFolder.open(tmp_path / "run", other)
    message = str(error.value)
    assert "window: 64 there, true now" in message
    assert 'arms.keep: ["10%"] there, ["5%"] now' in message
    assert "seed: unset there, 1 now" in message
    assert "model" not in message
    RunFolder.open(tmp_path / "run", SETTINGS).close()  # the refusal left no lock behind


def test_true_is_not_one_and_tuples_are_lists(tmp_path: Path) -> None:
    RunFolder.open(tmp_path / "run", {"a": (1, 2)}).close()
    RunFolder.open(tmp_path / "run", {"a": [1, 2]}).close()
    with pytest.raises(UserError, match=r"a: \[1, 2\] there"):
        RunFolder.open(tmp_path / "run", {"a": [True, 2]})


def test_foreign_folders_and_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("x")
    with pytest.raises(UserError, match=r"holds photo\.jpg"):
        RunFolder.open(tmp_path, SETTINGS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photo.jpg"]
    with pytest.raises(UserError, match="got a file"):
        RunFolder.open(tmp_path / "photo.jpg", SETTINGS)
    with pytest.raises(UserError, match="cannot be written"):
        RunFolder.open(tmp_path / "photo.jpg" / "run", SETTINGS)


def test_an_out_that_cannot_be_is_told_beforehand_and_nothing_is_left_there(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("x")
    with pytest.raises(UserError, match=r"holds photo\.jpg"):
        check_out(tmp_path)
    with pytest.raises(UserError, match="cannot be written"):
        check_out(tmp_path / "photo.jpg" / "run")
    check_out(tmp_path / "new" / "run")
    with RunFolder.open(tmp_path / "run", SETTINGS) as run:
        run.append(row(0))
        with pytest.raises(UserError, match="another process"):
            check_out(tmp_path / "run")
    check_out(tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photo.jpg", "run"]
    assert load_rows(tmp_path / "run" / "samples.jsonl") == [row(0)]


def test_a_kill_before_the_settings_leaves_a_folder_that_opens(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".settings.json.tmp").write_text('{"mod')
    RunFolder.open(tmp_path, SETTINGS).close()


@pytest.mark.parametrize("tail", ['{"task": "core_demo', '{"task": 1}', "\0\0\0"])
def test_a_line_without_an_end_is_dropped(tmp_path: Path, tail: str) -> None:
    with RunFolder.open(tmp_path / "run", SETTINGS) as run:
        run.append(row(0))
    samples = tmp_path / "run" / "samples.jsonl"
    whole = samples.read_bytes()
    samples.write_bytes(whole + tail.encode())
    assert load_rows(samples) == [row(0)]
    assert samples.read_bytes() == whole + tail.encode()  # reading alone changes nothing
    with RunFolder.open(tmp_path / "run", SETTINGS) as run:
        assert samples.read_bytes() == whole
        run.append(row(1))
    assert load_rows(samples) == [row(0), row(1)]


@pytest.mark.parametrize(
    ("damage", "why"),
    [("{]", "damaged row"), ('{"task": "t"}', "id: Field required"), ("", "damaged row"), ("NaN", "NaN is not JSON")],
)
def test_damage_in_the_middle_names_file_and_line(tmp_path: Path, damage: str, why: str) -> None:
    samples = tmp_path / "samples.jsonl"
    samples.write_text("\n".join([json.dumps(row(0)), damage, json.dumps(row(1))]) + "\n")
    with pytest.raises(UserError, match=rf"samples\.jsonl:2: .*{why}"):
        load_rows(samples)


def test_a_row_written_twice_names_file_and_line(tmp_path: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    samples.write_text(f"{json.dumps(row(0))}\n{json.dumps(row(0))}\n")
    with pytest.raises(UserError, match=r"samples\.jsonl:2: .*twice"):
        load_rows(samples)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"scores": {"accuracy": math.nan}}, "not JSON compliant"),
        ({"target": math.inf}, "not JSON compliant"),
        ({"unknown": 1}, "unknown: Extra"),
        ({"draw": "0"}, "draw"),
        ({"failure": "why", "scores": {"accuracy": 0.0}}, "a failed sample has no scores"),
        ({"target": Path("x")}, "not JSON"),
    ],
)
def test_bad_rows_are_not_written(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with RunFolder.open(tmp_path / "run", SETTINGS) as run:
        with pytest.raises(ValueError, match=field):
            run.append(row(0, **changes))
        assert run.rows == []
        assert (tmp_path / "run" / "samples.jsonl").read_bytes() == b""


def test_a_line_break_in_an_answer_stays_in_one_line(tmp_path: Path) -> None:
    odd = row(0, prediction="a\nb\u2028c\x85\U0001f600")
    with RunFolder.open(tmp_path / "run", SETTINGS) as run:
        run.append(odd)
    assert load_rows(tmp_path / "run" / "samples.jsonl") == [odd]


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    real = os.write
    with RunFolder.open(tmp_path / "run", SETTINGS) as run:
        run.append(row(0))
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
        with pytest.raises(UserError, match="disk is full"):
            run.append(row(1))
        monkeypatch.undo()
        run.append(row(1))
    assert load_rows(tmp_path / "run" / "samples.jsonl") == [row(0), row(1)]


def test_the_record_is_checked_and_says_whether_the_run_is_finished(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "run", SETTINGS) as run:
        bad = hybrid_record()
        bad["tasks"][TASK]["arms"]["dense"]["n_scored"] = -1
        with pytest.raises(ValueError, match=rf"tasks\.{TASK}\.arms\.dense\.n_scored: .*got -1"):
            run.write_record(bad)
        assert run.record is None
        run.write_record(build(hybrid_rows(), {"dense": {}, "hybrid:10%": HYBRID}, complete=False))
        assert not run.finished
        run.write_record(hybrid_record())
        assert run.finished
        assert run.record == hybrid_record()
    (tmp_path / "run" / "record.json").write_text("{")
    with pytest.raises(UserError, match=r"record\.json: not a valid record"):
        load_record(tmp_path / "run" / "record.json")


# ---- record


def test_record_counts_scores_and_puts_the_headline_first() -> None:
    record = hybrid_record()
    task = record["tasks"][TASK]
    dense, hybrid = task["arms"]["dense"], task["arms"]["hybrid:10%"]
    assert (task["n"], task["n_failed"]) == (12, 2)
    assert task["tokens"] == {"prompt_median": statistics.median([*range(100, 110), 111]), "visual_median": 64}
    assert [dense[f"n_{kind}"] for kind in ("scored", "unparsed", "failed")] == [11, 0, 1]
    assert [hybrid[f"n_{kind}"] for kind in ("scored", "unparsed", "failed")] == [10, 1, 2]
    assert list(hybrid["metrics"]) == ["accuracy", "zeta"]
    assert hybrid["metrics"]["accuracy"]["value"] == pytest.approx(0.9)  # the failed ones are not wrong answers
    values = [float(i != 3) for i in range(10)]
    assert hybrid["metrics"]["accuracy"]["ci95"] == list(ci95(values, [i // 2 for i in range(10)]) or ())
    assert "delta" not in dense
    assert hybrid["delta"]["value"] == pytest.approx(-0.1)
    assert (hybrid["delta"]["n"], hybrid["delta"]["metric"]) == (10, "accuracy")


def test_record_times_and_speedup_are_paired() -> None:
    arms = hybrid_record()["tasks"][TASK]["arms"]
    prefill = arms["hybrid:10%"]["prefill"]
    assert (prefill["n"], prefill["vision_ms"]) == (10, 3.0)
    assert prefill["language_ms"]["median"] == pytest.approx(4.45)
    assert prefill["speedup"]["value"] == pytest.approx(10.45 / 4.45)  # dense has an eleventh sample
    assert prefill["speedup"]["n"] == 10
    assert "speedup" not in arms["dense"]["prefill"]


def test_defective_records_are_counted_by_kind() -> None:
    plans = {"dense": {}, "hybrid:10%": HYBRID}
    rows = [row(number, arm, defects=["old"]) for number in range(3) for arm in plans]
    rows += [failed(3, arm) | {"defects": ["long", "old", "long"]} for arm in plans]
    rows += [row(4, arm) for arm in plans]
    record = build(rows, plans)
    assert record["tasks"][TASK]["defects"] == {"long": 1, "old": 4}
    verify_record(record, rows)
    record["tasks"][TASK]["defects"]["old"] = 3
    with pytest.raises(ValueError, match=r"defects\.old"):
        verify_record(record, rows)


def test_the_wait_for_media_counts_every_sample_once() -> None:
    def timed(number: int, arm: str, media_ms: float) -> dict[str, Any]:
        return row(number, arm, times={"media_ms": media_ms, "sample_ms": 1000.0})

    rows = [timed(number, arm, 100.0 * number) for number in (1, 2) for arm in ("dense", "hybrid:10%")]
    plans = {"dense": {}, "hybrid:10%": HYBRID}
    hung = {"times": {"media_ms": 900.0, "sample_ms": 1000.0}}  # it is waited for too
    rows += [{**failed(3, arm), **hung} for arm in plans]
    record = build(rows, plans)
    assert record["tasks"][TASK]["media_wait"] == pytest.approx({"seconds": 1.2, "share": 0.4})
    verify_record(record, rows)
    assert "media_wait" not in strip_times(record)["tasks"][TASK]
    assert "media_wait" not in build(hybrid_rows(), plans)["tasks"][TASK], "of runs that did not measure it"


def test_the_interval_of_a_speedup_counts_clusters() -> None:
    rows = [line | {"cluster": "one video"} for line in hybrid_rows()]
    arms = build(rows, {"dense": {}, "hybrid:10%": HYBRID})["tasks"][TASK]["arms"]
    assert arms["hybrid:10%"]["prefill"]["speedup"]["ci95"] is None
    assert hybrid_record()["tasks"][TASK]["arms"]["hybrid:10%"]["prefill"]["speedup"]["ci95"] is not None


def test_the_order_of_rows_does_not_matter() -> None:
    plans = {"dense": {}, "hybrid:10%": HYBRID}
    rows = hybrid_rows()
    random.Random(1).shuffle(rows)
    assert json.dumps(build(rows, plans)) == json.dumps(build(hybrid_rows(), plans))


def test_random_arms_average_over_draws() -> None:
    draws = [HeadPlan.ablation(SHAPE, [(0, i)]).to_record() | {"displaced": i} for i in range(3)]
    rows = [row(i, "none", times=None) for i in range(4)]
    rows += [row(i, "random:5%", right=(i + d) % 4 != 0, draw=d, times=None) for i in range(4) for d in range(3)]
    rows[-1] |= {"scores": {}, "failure": "too long"}
    record = build(rows, {"none": {}, "random:5%": {"draws": draws}}, baseline="none")
    arm = record["tasks"][TASK]["arms"]["random:5%"]
    assert [draw["plan"] for draw in arm["draws"]] == draws
    by_draw = [draw["metrics"]["accuracy"]["value"] for draw in arm["draws"]]
    assert by_draw == pytest.approx([3 / 4, 3 / 4, 2 / 3])
    assert arm["draw_sd"] == pytest.approx(statistics.stdev(by_draw))
    assert (arm["n_scored"], arm["n_failed"]) == (11, 1)
    assert arm["metrics"]["accuracy"]["value"] == pytest.approx(statistics.mean([2 / 3, 1, 2 / 3, 1 / 2]))
    assert arm["metrics"]["accuracy"]["n"] == 4
    assert arm["delta"]["value"] == pytest.approx(arm["metrics"]["accuracy"]["value"] - 1)
    assert "prefill" not in arm
    verify_record(record, rows)


def test_an_arm_with_nothing_but_failures_has_no_score() -> None:
    record = build([failed(0, "dense"), failed(0, "hybrid:10%")], {"dense": {}, "hybrid:10%": HYBRID})
    task = record["tasks"][TASK]
    assert task["arms"]["hybrid:10%"]["metrics"] == {}
    assert (task["n"], task["n_failed"], task["tokens"]) == (1, 1, None)
    assert "delta" not in task["arms"]["hybrid:10%"]
    assert "-" in render_tables(record)


def test_scores_of_a_failed_row_count_for_nothing() -> None:
    rows = [row(0), row(2), row(4, failure="decoder stopped", scores={"accuracy": 0.0})]
    metric = build(rows, {"dense": {}})["tasks"][TASK]["arms"]["dense"]["metrics"]["accuracy"]
    assert (metric["value"], metric["n"]) == (1.0, 2)


def test_rows_without_a_plan_are_refused() -> None:
    with pytest.raises(ValueError, match=r"hybrid:10%.*no plan"):
        build(hybrid_rows(), {"dense": {}})


def test_strip_times_removes_times_alone() -> None:
    slow = hybrid_rows()
    for line in slow:
        if line["times"]:
            line["times"] = {"language_ms": 99.0, "vision_ms": 1.0, "generate_ms": 2.0}
    plans = {"dense": {}, "hybrid:10%": HYBRID}
    assert build(slow, plans) != build(hybrid_rows(), plans)
    assert strip_times(build(slow, plans)) == strip_times(build(hybrid_rows(), plans))
    slow[0]["scores"] = {"accuracy": 0.0}
    assert strip_times(build(slow, plans)) != strip_times(build(hybrid_rows(), plans))


@pytest.mark.parametrize(
    "path",
    [
        "n",
        "arms.dense.metrics.accuracy.value",
        "arms.hybrid:10%.delta.value",
        "arms.hybrid:10%.prefill.speedup.value",
    ],
)
def test_a_record_that_does_not_follow_from_its_rows_is_caught(path: str) -> None:
    record = hybrid_record()
    verify_record(record, hybrid_rows())
    place = record["tasks"][TASK]
    *above, last = path.split(".")
    for key in above:
        place = place[key]
    place[last] += 1
    with pytest.raises(ValueError, match=f"tasks.{TASK}.{path}: does not follow"):
        verify_record(record, hybrid_rows())


RAM = np.array([[0.1, 0.9, 0.2, 0.0], [0.1, 0.1, 0.1, 0.1]])


def detect_rows() -> list[dict[str, Any]]:
    """Two samples of one cluster, without placebos, and a failed one."""
    more: dict[str, Any] = {"scores": {}, "placebo": None, "chance": 0.05, "times": None}
    rows = [row(i, "detect", **more, ram=(RAM + np.array([0.02, -0.02])[i]).tolist()) for i in range(2)]
    return [*rows, failed(2, "detect")]


def detect_record() -> dict[str, Any]:
    rows = detect_rows()
    table = accumulate([SampleRam(np.array(line["ram"]), None, 0.05) for line in rows[:2]], ["c", "c"])
    return build(rows, {}, ram=ram_record({TASK: table}, pool_scores([table])), baseline="none", mode="detect")


def test_detection_records_hold_tables_without_nan() -> None:
    record = detect_record()
    table = record["ram"]["per_task"][TASK]
    assert table["ram"][0][1] == pytest.approx(0.9)
    assert table["stderr"] == [[None] * 4] * 2
    assert table["sink_corrected"] == [[None] * 4] * 2
    assert (record["tasks"][TASK]["n"], table["n"]) == (3, 2)
    assert record["tasks"][TASK]["arms"] == {}
    json.dumps(record, allow_nan=False)
    verify_record(record, detect_rows())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("per_task", TASK, "ram", 1, 3), 0.95),
        (("per_task", TASK, "stderr", 0, 0), 0.001),
        (("per_task", TASK, "chance", 0, 0), 0.001),
        (("per_task", TASK, "n"), 200),
        (("pooled", "ram", 0, 1), 0.99),
        (("pooled", "sink_corrected", 0, 1), 0.5),
    ],
)
def test_heads_that_the_samples_do_not_show_are_caught(path: tuple[Any, ...], value: Any) -> None:
    record = detect_record()
    place = record["ram"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    where = ".".join(map(str, path))
    with pytest.raises(ValueError, match=rf"^ram\.{where}: does not follow"):
        verify_record(record, detect_rows())


def test_tables_without_rows_and_rows_without_tables_are_caught() -> None:
    record = detect_record()
    del record["ram"]
    with pytest.raises(ValueError, match=r"^ram: does not follow"):
        verify_record(record, detect_rows())
    record = hybrid_record() | {"ram": detect_record()["ram"]}
    with pytest.raises(ValueError, match=r"^ram: does not follow"):
        verify_record(record, hybrid_rows())


@pytest.mark.parametrize(
    "change",
    [{"ram": None}, {"chance": None}, {"ram": [[0.1], [0.1, 0.2]]}, {"placebo": [[0.1] * 4]}, {"placebo": [[0.1]] * 2}],
)
def test_rows_that_measure_nothing_are_named(change: dict[str, Any]) -> None:
    rows = detect_rows()
    rows[1] |= change
    with pytest.raises(ValueError, match=f"row 's01' of {TASK}: expected"):
        verify_record(detect_record(), rows)


# ---- is it all there?


def random_arm(complete: bool = True) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    draws = [HeadPlan.ablation(SHAPE, [(0, i)]).to_record() | {"displaced": 0} for i in range(2)]
    rows = [row(i, "none") for i in range(4)] + [row(i, "random:1", draw=d) for i in range(4) for d in range(2)]
    return {"none": {}, "random:1": {"draws": draws}}, rows


@pytest.mark.parametrize(
    ("dropped", "lacking"),
    [
        (("none", None), "arm none has no row of sample 's03'"),
        (("random:1", 1), "draw 1 of arm random:1 has no row of sample 's03'"),
    ],
)
def test_a_finished_run_has_every_sample_in_every_arm_and_draw(dropped: tuple[str, Any], lacking: str) -> None:
    plans, rows = random_arm()
    verify_record(build(rows, plans, baseline="none"), rows)
    rows = [line for line in rows if (line["id"], line["arm"], line["draw"]) != ("s03", *dropped)]
    with pytest.raises(ValueError, match=f"complete, but {lacking}"):
        verify_record(build(rows, plans, baseline="none"), rows)
    verify_record(build(rows, plans, baseline="none", complete=False), rows)


def test_rows_of_another_draw_or_of_no_task_are_caught() -> None:
    plans, rows = random_arm()
    plans["random:1"]["draws"].pop()
    with pytest.raises(ValueError, match="rows of draw 1 of arm random:1, which the record does not have"):
        verify_record(build(rows, plans, baseline="none"), rows)
    with pytest.raises(ValueError, match=f"tasks.{TASK}: complete, but without a row"):
        verify_record(build([], {"none": {}}, baseline="none"), [])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"settings": {"limit": None, "seed": 0}}, "run.id: expected qwen3vl-hybrid-"),
        ({"seed": 1}, r"run\.seed: 1, but run\.settings\.seed is 0"),
        ({"id": "qwen3vl-hybrid-00000000"}, "run.id: expected qwen3vl-hybrid-"),
        ({"model": "other"}, "run.id: expected other-hybrid-"),
    ],
)
def test_settings_cannot_be_edited_away(change: dict[str, Any], field: str) -> None:
    record = build(hybrid_rows(), {"dense": {}, "hybrid:10%": HYBRID}, settings={"limit": 12})
    verify_record(record, hybrid_rows())
    record["run"] |= change
    with pytest.raises(ValueError, match=field):
        verify_record(record, hybrid_rows())


def test_the_tasks_and_plans_of_the_settings_are_bound_too() -> None:
    plans = {"dense": {}, "hybrid:10%": HYBRID}
    verify_record(build(hybrid_rows(), plans, settings={"plans": short_digest(plans)}), hybrid_rows())
    moved = build(
        hybrid_rows(), {**plans, "hybrid:10%": HYBRID | {"window": 8}}, settings={"plans": short_digest(plans)}
    )
    with pytest.raises(ValueError, match=f"tasks.{TASK}.arms: other plans than those"):
        verify_record(moved, hybrid_rows())
    with pytest.raises(ValueError, match=f"tasks: expected {TASK}, worse as in run.settings.data, got {TASK}"):
        verify_record(build(hybrid_rows(), plans, settings={"data": {TASK: "a", "worse": "b"}}), hybrid_rows())


def test_a_run_id_does_not_depend_on_the_order_of_settings() -> None:
    assert run_id("m", "dense", {"a": 1, "b": [2]}) == run_id("m", "dense", {"b": [2], "a": 1}) == "m-dense-ae8a9a50"


# ---- plans that can be true


WIDE = HeadShape(3, 8, 4)
KEPT = [(0, 0), (1, 3), (2, 6), (2, 7)]  # 4 of 24 heads, 3 of 12 KV heads


def plan_record(arms: dict[str, HeadPlan], **changes: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A record of these arms; `changes` go into the plan of the last one."""
    plans = {name: plan.to_record() for name, plan in arms.items()}
    plans[list(plans)[-1]] |= changes
    rows = [row(i, name) for i in range(3) for name in ("dense", *plans)]
    return build(rows, {"dense": {}, **plans}), rows


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"query_head_density": 1 / 48}, "fit no model"),
        ({"query_head_density": 0.17}, "fit no model"),
        ({"query_head_density": 4 / 48}, "fit no model|is 8, got 4"),
        ({"query_head_density": 1e-300}, "fit no model"),
        ({"query_head_density": 0.0}, "fit no model"),
        ({"kv_head_density": 0.1}, "fit no model"),
        ({"kv_head_density": 1 / 12}, "fit no model"),  # the grid that the arm before shows has another
        ({"full": [[0, 0], [1, 3], [2, 6], [2, 6]]}, "fit no model"),
        ({"full": [[0, 0], [1, 3], [2, 6], [-1, 7]]}, "fit no model"),
        ({"window": None}, "fit no model"),
    ],
)
def test_densities_that_no_model_gives_are_caught(changes: dict[str, Any], why: str) -> None:
    arms = {
        "hybrid:8": HeadPlan.hybrid(WIDE, [(layer, h) for layer in (1, 2) for h in (0, 1, 3, 7)], window=16, sink=4),
        "hybrid:17%": HeadPlan.hybrid(WIDE, KEPT, window=16, sink=4),
    }
    verify_record(*plan_record(arms))
    with pytest.raises(ValueError, match=rf"tasks\.{TASK}\.arms\.hybrid:17%.*({why})"):
        verify_record(*plan_record(arms, **changes))


@pytest.mark.parametrize("kind", ["zero", "blind"])
def test_an_ablation_shows_its_grid(kind: Any) -> None:
    def record(**changes: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        plan = HeadPlan.ablation(WIDE, KEPT, kind=kind).to_record() | changes
        rows = [row(i, name) for i in range(3) for name in ("none", "top:17%")]
        return build(rows, {"none": {}, "top:17%": plan}, baseline="none"), rows

    verify_record(*record())
    for wrong in ({"query_head_density": 0.5}, {"kv_head_density": 0.37}, {"off": [[0, 0]]}, {"full": [[0, 1]]}):
        with pytest.raises(ValueError, match="fit no model"):
            verify_record(*record(**wrong))


def test_an_arm_has_as_many_heads_as_its_name_says() -> None:
    plan = HeadPlan.hybrid(WIDE, KEPT, window=16, sink=4)
    for name in ("hybrid:4", "hybrid:bottom:15%", "hybrid:file:heads.txt"):
        verify_record(*plan_record({name: plan}))
    with pytest.raises(ValueError, match="hybrid:5% of 24 heads is 1, got 4"):
        verify_record(*plan_record({"hybrid:5%": plan}))
    with pytest.raises(ValueError, match="baseline"):
        verify_record(*plan_record({"none": plan}))


@pytest.mark.parametrize("shape", [HeadShape(36, 32, 8), HeadShape(28, 12, 2), HeadShape(1, 1, 1), HeadShape(7, 6, 3)])
def test_plans_of_real_grids_are_taken(shape: HeadShape) -> None:
    heads = sorted(shape.all_heads())
    amounts = sorted({max(1, round(shape.size * share)) for share in (0.05, 0.1, 0.5)} | {shape.size})
    arms = {f"hybrid:{k}": HeadPlan.hybrid(shape, heads[::-1][:k], window=9, sink=0) for k in amounts}
    verify_record(*plan_record(arms))


# ---- tables


def test_tables_show_every_number_with_its_company() -> None:
    text = render_tables(hybrid_record())
    scores, prefill = (line for line in text.splitlines() if line.startswith("hybrid:10%"))
    for part in (" 1 ", " 12.5%/25.0% ", " 90.0 [", " 10 ", " 2 ", " -10.0 ["):
        assert part in scores
    for part in (" 4.5 ", " 0.5 ", " 3.0 ", " 10 ", " 2.35x ["):
        assert part in prefill
    assert "chance 12.5" in text
    assert "image-blind 10.0 [5.0, 15.0]" in text
    assert "NOTE" not in text
    assert max(map(len, text.splitlines())) <= 120


def test_both_controls_stand_below_a_title_that_grows_too_long() -> None:
    metric = {"value": 0.1, "stderr": 0.02, "ci95": [0.05, 0.15], "n": 10}
    controls = {TASK: {"chance": 0.125, "image_blind": metric, "shuffled_media": {**metric, "value": 0.11}}}
    text = render_tables(build(hybrid_rows(), {"dense": {}, "hybrid:10%": HYBRID}, controls=controls))
    assert "chance 12.5; image-blind 10.0 [5.0, 15.0]; shuffled media 11.0 [5.0, 15.0]" in text
    assert max(map(len, text.splitlines())) <= 120


def test_random_heads_kept_full_show_their_density() -> None:
    kept = [[(0, 0), (0, 1)], [(0, 0), (0, 2)], [(1, 2), (1, 3)]]  # one, two and one of four KV heads
    draws = [HeadPlan.hybrid(SHAPE, heads, window=16, sink=4).to_record() | {"displaced": 0} for heads in kept]
    rows = [row(i) for i in range(4)] + [row(i, "hybrid:random:2", draw=d) for i in range(4) for d in range(3)]
    plans = {"dense": {}, "hybrid:random:2": {"draws": draws}}
    table = next(line for line in render_tables(build(rows, plans)).splitlines() if line.startswith("hybrid:random"))
    assert table.split()[:4] == ["hybrid:random:2", "x3", "2", "25.0%/25.0-50.0%"]
    plans["hybrid:random:2"]["draws"] = [draws[0]]
    text = render_tables(build([line for line in rows if not line["draw"]], plans))
    assert " 25.0%/25.0% " in text


def test_a_speedup_that_may_be_none_is_flagged() -> None:
    rows = [row(i) for i in range(10)]
    rows += [row(i, "hybrid:10%", times={"language_ms": 10.0 + (i * 7 % 10) / 10}) for i in range(10)]
    assert "(none)" in render_tables(build(rows, {"dense": {}, "hybrid:10%": HYBRID}))
    assert "(none)" not in render_tables(hybrid_record())


def test_partial_runs_and_overlap_are_flagged() -> None:
    record = hybrid_record()
    record["run"]["settings"] = {"limit": 3, "allow_overlap": True}
    record["run"]["complete"] = False
    record["run"]["heads"] = {"where": "x", "checkpoint_hash": None, "note": "heads of another checkpoint"}
    text = render_tables(record)
    for part in ("partial: limit 3", "partial: unfinished", "--allow-overlap", "NOTE: heads of another checkpoint"):
        assert part in text


def test_detection_tables_lead_with_the_best_head() -> None:
    lines = render_tables(detect_record()).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("---")) + 1
    assert lines[first].split() == ["0", "1", "0.9000", "0.0500"]  # neither error nor placebo to show
    assert any("1 of 8 heads hold half" in line for line in lines)
