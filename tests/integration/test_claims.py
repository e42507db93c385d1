"""The study's claims hold on the bundled checkpoint, on media that its heads were not found on."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import pytest

from core_bench import cli
from core_bench.board.reported import REPORTED
from core_bench.bundled.claims import (
    BEGIN,
    END,
    Claim,
    claims,
    main,
    render,
    side_by_side,
    speed_claims,
    write_block,
)
from core_bench.errors import UserError
from core_bench.runfolder import load_record

TASK = "core_refcocog_tiny"


def measured(root: Path, limits: dict[str, int], *flags: str) -> dict[str, dict]:
    """An ablate and a hybrid run of the bundled model on part of its data, with its bundled head table."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORE_BENCH_CACHE", str(root / "cache"))
        for mode, more in (("ablate", []), ("hybrid", ["--keep", "5%,bottom:5%"])):
            out = root / mode
            words = ["--model", "qwen3vl", "--mode", mode, "--out", str(out), "--limit", str(limits[mode])]
            assert cli.main([*words, *more, *flags]) == 0
            found[mode] = load_record(out / "record.json")
    return found


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    return measured(tmp_path_factory.mktemp("claims"), {"ablate": 16, "hybrid": 4}, "--tasks", TASK)


@pytest.mark.slow
def test_claims_hold_on_every_default_task(tmp_path: Path) -> None:
    found = measured(
        tmp_path, {"ablate": 128, "hybrid": 16}
    )  # the whole eval split: a part of it is too few for 5 points
    assert [(c.task, c.text, c.measured) for c in claims(found["ablate"], found["hybrid"]) if c.holds is False] == []


def test_claims_hold(records: dict[str, dict]) -> None:
    found = claims(records["ablate"], records["hybrid"])
    for task in records["ablate"]["tasks"]:
        assert len([claim for claim in found if claim.holds is not None and claim.task == task]) >= 5
    assert [(claim.task, claim.text) for claim in found if claim.holds is False] == []


def test_hybrid_keeps_at_most_a_tenth_of_heads_and_window(records: dict[str, dict]) -> None:
    for task in records["hybrid"]["tasks"].values():
        plan = task["arms"]["hybrid:5%"]["plan"]
        assert plan["query_head_density"] <= 0.10
        assert task["tokens"]["prompt_median"] >= 512
        assert plan["window"] <= task["tokens"]["prompt_median"] / 10


@pytest.fixture
def swapped(records: dict[str, dict]) -> dict[str, dict]:
    """The same numbers with top and bottom arms changed round."""
    changed = copy.deepcopy(records)
    for mode, one, other in (("ablate", "top:5%", "bottom:5%"), ("hybrid", "hybrid:5%", "hybrid:bottom:5%")):
        for task in changed[mode]["tasks"].values():
            arms = task["arms"]
            arms[one], arms[other] = arms[other], arms[one]
    return changed


def test_claims_can_fail(swapped: dict[str, dict]) -> None:
    for task in swapped["ablate"]["tasks"].keys() & swapped["hybrid"]["tasks"].keys():
        failing = [c for c in claims(swapped["ablate"], swapped["hybrid"]) if c.holds is False and c.task == task]
        assert len(failing) == 3


def test_tasks_stand_below_each_other(records: dict[str, dict]) -> None:
    """Two tasks, one of them too good without looking: its claim alone fails, and every claim is named once."""
    more = copy.deepcopy(records)
    for record in more.values():
        record["tasks"]["core_other_tiny"] = copy.deepcopy(record["tasks"][TASK])
    metric = {"value": 0.5, "stderr": 0.05, "ci95": [0.4, 0.6], "n": 40}
    more["ablate"]["tasks"]["core_other_tiny"]["controls"]["shuffled_media"] = metric
    found = claims(more["ablate"], more["hybrid"])
    assert [(c.task, c.text) for c in found if c.holds is False] == [("core_other_tiny", "media of another sample")]
    n_tasks = len(more["ablate"]["tasks"])
    assert [c.task for c in found[:n_tasks]] == list(more["ablate"]["tasks"])
    assert len({c.text for c in found[:n_tasks]}) == 1
    table = render(found, "github").partition("\n\n")[0]
    assert table.count("media of another sample") == 1
    assert table.count("core_other_tiny") == len(found) // n_tasks
    assert table.count("NO") == 1


def test_a_control_below_chance_is_no_sign_of_a_leak(records: dict[str, dict]) -> None:
    more = copy.deepcopy(records)
    low = {"value": 0.0, "stderr": 0.0, "ci95": [0.0, 0.05], "n": 40}
    more["ablate"]["tasks"][TASK]["controls"]["image_blind"] = low
    blind = next(c for c in claims(more["ablate"], more["hybrid"]) if c.text == "every picture noise")
    assert blind.holds is True


def test_reported_figures_stand_apart(records: dict[str, dict]) -> None:
    """What the study reports must never read as if it had been measured here."""
    page = render(claims(records["ablate"], records["hybrid"]), "github")
    measured, title, reported = page.partition("As reported by the study (arXiv 2606.05843)")
    assert title
    assert "none of it is measured here" in reported
    for _, figure in REPORTED:
        assert figure in reported
        assert figure not in measured


def test_speed_bound_counts_at_the_longest_length() -> None:
    rows = [
        {"tokens": n, "heads": "10% (5 of 48)", "speedup": s, "amdahl": 3.0} for n, s in ((4096, 1.5), (16384, 2.2))
    ]
    assert [claim.holds for claim in speed_claims(rows)] == [None, False]


def test_block_is_replaced_between_the_marks(tmp_path: Path, records: dict[str, dict]) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    table = render(claims(records["ablate"], records["hybrid"]), "github")
    write_block(page, table)
    write_block(page, table)
    assert page.read_text(encoding="utf-8") == f"before\n{BEGIN}\n\n{table}\n\n{END}\nafter\n"
    page.write_text("no marks\n", encoding="utf-8")
    with pytest.raises(UserError, match="expected the lines"):
        write_block(page, table)


def test_command_prints_writes_and_fails(
    records: dict[str, dict],
    swapped: dict[str, dict],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = tmp_path / "PAGE.md"
    page.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    for name, found, code in (("good", records, 0), ("bad", swapped, 1)):
        for mode, record in found.items():
            (tmp_path / name / mode).mkdir(parents=True)
            (tmp_path / name / mode / "record.json").write_text(json.dumps(record), encoding="utf-8")
        slow = {"tokens": 16384, "heads": "10%", "speedup": 1.1, "amdahl": 3.0}
        (tmp_path / name / "speed.json").write_text(json.dumps({"rows": [slow]}), encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["claims", str(tmp_path / name), "--write", str(page)])
        assert main() == code, "accuracy decides, time does not"
        said = capsys.readouterr().out
        assert "NO" in said
        assert "| prefill speed-up, 10% full" in page.read_text(encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["claims", str(tmp_path / "nowhere")])
    assert main() == 2
    assert "claims: error:" in capsys.readouterr().err


def test_families_stand_side_by_side() -> None:
    """A column a family; what one lacks is "-", what does not hold is marked."""
    good = Claim("dense", "t", "99.0", ">= 95", True)
    bad = Claim("dense", "t", "80.0", ">= 95", False)
    more = Claim("speed", "t", "2.0x", "", None)
    lines = side_by_side({"one": [good, more], "two": [bad]}, "github").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["claim", "task", "one", "two", "required"]
    assert cells[2:] == [["dense", "t", "99.0", "80.0 NO", ">= 95"], ["speed", "t", "2.0x", "-", ""]]
