"""The study's claims hold on the bundled checkpoint, on pictures that its heads were not found on."""

from __future__ import annotations

from pathlib import Path

import pytest

from core_bench import cli
from core_bench.bundled.claims import BEGIN, END, claims, render, speed_claims, write_block
from core_bench.errors import UserError
from core_bench.runfolder import load_record

TASK = "core_refcocog_tiny"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """An ablate and a hybrid run of the bundled model on part of its pictures, with its bundled head table."""
    root = tmp_path_factory.mktemp("claims")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORE_BENCH_CACHE", str(root / "cache"))
        for mode, flags in (
            ("ablate", ["--limit", "40"]),
            ("hybrid", ["--limit", "16", "--keep", "5%,bottom:5%"]),
        ):
            out = root / mode
            assert cli.main(["--model", "qwen3vl", "--mode", mode, "--out", str(out), *flags]) == 0
            found[mode] = load_record(out / "record.json")
    return found


def test_claims_hold(records: dict[str, dict]) -> None:
    found = claims(records["ablate"], records["hybrid"], TASK)
    assert len([claim for claim in found if claim.holds is not None]) == 6
    assert [claim.text for claim in found if claim.holds is False] == []


def test_hybrid_keeps_at_most_a_tenth_of_heads_and_window(records: dict[str, dict]) -> None:
    task = records["hybrid"]["tasks"][TASK]
    plan = task["arms"]["hybrid:5%"]["plan"]
    assert plan["query_head_density"] <= 0.10
    assert task["tokens"]["prompt_median"] >= 512
    assert plan["window"] <= task["tokens"]["prompt_median"] / 10


def test_claims_can_fail(records: dict[str, dict]) -> None:
    """The same numbers with top and bottom arms changed round must not pass."""
    swapped = {mode: dict(record, tasks={TASK: dict(record["tasks"][TASK])}) for mode, record in records.items()}
    for mode, one, other in (("ablate", "top:5%", "bottom:5%"), ("hybrid", "hybrid:5%", "hybrid:bottom:5%")):
        arms = dict(records[mode]["tasks"][TASK]["arms"])
        arms[one], arms[other] = arms[other], arms[one]
        swapped[mode]["tasks"][TASK]["arms"] = arms
    failing = [c.text for c in claims(swapped["ablate"], swapped["hybrid"], TASK) if c.holds is False]
    assert len(failing) == 3


def test_speed_bound_counts_at_the_longest_length() -> None:
    rows = [
        {"tokens": n, "heads": "10% (5 of 48)", "speedup": s, "amdahl": 3.0} for n, s in ((4096, 1.5), (16384, 2.2))
    ]
    assert [claim.holds for claim in speed_claims(rows)] == [None, False]


def test_block_is_replaced_between_the_marks(tmp_path: Path, records: dict[str, dict]) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    table = render(claims(records["ablate"], records["hybrid"], TASK), "github")
    write_block(page, table)
    write_block(page, table)
    assert page.read_text(encoding="utf-8") == f"before\n{BEGIN}\n\n{table}\n\n{END}\nafter\n"
    page.write_text("no marks\n", encoding="utf-8")
    with pytest.raises(UserError, match="expected the lines"):
        write_block(page, table)
