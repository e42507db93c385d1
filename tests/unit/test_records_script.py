"""scripts/records.sh, with a stand-in for Python that only writes down what it is asked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

FAMILIES = ["qwen3vl", "llava_onevision", "internvl"]
STAND_IN = f"""#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$LOG"
last=${{!#}}
case "$*" in
*manifest*) echo {" ".join(FAMILIES)} ;;
*--json*) mkdir -p "$(dirname "$last")" && touch "$last" ;;
*"core_bench report"*) mkdir -p "$last/figures" && touch "$last"/figures/{{map,ablation,hybrid}}.png ;;
esac
if [[ "$*" == *$FAILING* ]]; then exit "$CODE"; fi
"""


class Checkout:
    """The scripts alone, and the stand-in."""

    def __init__(self, scripts: Path, folder: Path) -> None:
        shutil.copytree(scripts, folder / "scripts")
        self.folder, self.log, self.python = folder, folder / "log", folder / "stand-in"
        self.python.write_text(STAND_IN)
        self.python.chmod(0o755)

    def make(self, failing: str = "nothing fails", code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        clean = {name: value for name, value in os.environ.items() if name != "LIMIT"}
        environment = {**clean, "LOG": str(self.log), "FAILING": failing, "CODE": str(code), **variables}
        script = str(self.folder / "scripts" / "records.sh")
        return subprocess.run([script, str(self.python)], env=environment, capture_output=True, text=True)

    def asked(self, words: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if words in line]


@pytest.fixture
def checkout(repo_root: Path, tmp_path: Path) -> Checkout:
    return Checkout(repo_root / "scripts", tmp_path)


def test_every_family_is_measured_once_after_the_planned_time_is_told(checkout: Checkout) -> None:
    done = checkout.make()
    assert done.returncode == 0, done.stderr
    plan, _, rest = done.stdout.partition("total")
    assert [name for name in FAMILIES if re.search(rf"^  {name} +\d+$", plan, re.MULTILINE)] == FAMILIES
    assert int(rest.split()[0]) < 100
    for family in FAMILIES:
        for what in ("--mode detect", "--mode ablate", "--mode hybrid", "--what prefill"):
            [line] = [line for line in checkout.asked(what) if f"--model {family} " in line]
            assert f" runs/records/{family}/" in line
    assert len(checkout.asked("--what attention")) == 1
    [line] = checkout.asked("core_bench.bundled.records")
    assert [f"runs/records/{family}" in line for family in FAMILIES] == [True] * 3
    assert line.endswith("--attention runs/records/attention.json --dir leaderboard")
    assert {path.name for path in (checkout.folder / "docs" / "figures").iterdir()} == {
        "map.png", "ablation.png", "hybrid.png",
    }  # fmt: skip
    again = checkout.make()
    assert re.search(r"total +2\n", again.stdout), "nothing is left but to publish"
    assert again.returncode == 0
    assert not checkout.asked("--mode") + checkout.asked("core_bench speed")
    assert len(checkout.asked("core_bench.bundled.records")) == 1


def test_a_try_touches_nothing_but_its_own_folder(checkout: Checkout) -> None:
    assert checkout.make(LIMIT="2").returncode == 0
    assert len(checkout.asked("--limit 2")) == 3 * len(FAMILIES)
    [line] = checkout.asked("core_bench.bundled.records")
    assert line.endswith("--dir runs/records-2/leaderboard")
    assert not checkout.asked("--write")
    assert {path.name for path in checkout.folder.iterdir()} == {"log", "runs", "scripts", "stand-in"}
    assert [path.name for path in (checkout.folder / "runs").iterdir()] == ["records-2"]


def test_a_run_that_ends_early_is_gone_on_with(checkout: Checkout) -> None:
    stopped = checkout.make("--model llava_onevision --mode ablate", 130)
    assert stopped.returncode == 130
    assert not checkout.asked("core_bench.bundled.records")
    assert checkout.make().returncode == 0
    assert not [line for line in checkout.asked("--mode ") if "--model qwen3vl" in line]
    assert len(checkout.asked("--mode ")) == 2 * 3


def test_a_claim_that_does_not_hold_is_published_and_told(checkout: Checkout) -> None:
    done = checkout.make("bundled.claims runs/records/internvl", 1)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "not every claim holds of: internvl"
    assert len(checkout.asked("core_bench.bundled.records")) == 1
    wrong = Checkout(checkout.folder / "scripts", checkout.folder / "other")
    assert wrong.make("bundled.claims runs/records/internvl", 2).returncode == 2
    assert not wrong.asked("core_bench.bundled.records")
