"""Which head table a run takes, and what it knows about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core_bench import headtables
from core_bench.errors import UserError
from core_bench.heads import HeadScores, HeadShape
from core_bench.headtables import cache_dir, cache_folder, resolve, write_tables

SHAPE = HeadShape(2, 4, 2)


def scores(shift: float = 0.0) -> HeadScores:
    ram = np.arange(8, dtype=np.float64).reshape(2, 4) / 10 + shift
    return HeadScores(ram=ram, stderr=ram / 10, chance=np.full((2, 4), 0.1), sink_corrected=ram - 0.05, n=3)


def sidecar(content: str, **changes: Any) -> dict[str, Any]:
    samples = {
        "core_a": {"ids": ["1", "2"], "clusters": ["x.png", "y.png"]},
        "core_b": {"ids": ["9"], "clusters": ["z.pdf"]},
    }
    base = dict.fromkeys(headtables.SIDECAR_KEYS)
    found_by = {"media": ["abc"], "query": "question", "overlap": 0.0, "limit": None}
    return base | found_by | {"checkpoint": "some/model", "checkpoint_hash": content, "samples": samples} | changes


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no bundled table and an empty cache."""
    monkeypatch.setenv("CORE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(headtables, "BUNDLED", tmp_path / "bundled")
    return tmp_path


def put(folder: Path, content: str, shift: float) -> None:
    write_tables(folder, {"core_a": scores(shift), "core_b": scores(shift)}, scores(shift), sidecar(content))


def found_shift(search: list[Path] | None = None) -> float | None:
    found = resolve("auto", checkpoint_hash="sha256:aa", shape=SHAPE, search=search)
    return None if found is None else round(float(found[0].ram[0, 0]), 6)


def test_cache_folder_follows_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir() == home / "cache"
    assert ":" not in str(cache_folder("sha256:aa", "question", 0.0))
    monkeypatch.delenv("CORE_BENCH_CACHE")
    monkeypatch.setenv("HOME", str(home))
    assert cache_dir() == home / ".cache" / "core_bench"


def test_auto_takes_bundled_before_cache_before_earlier_runs(home: Path) -> None:
    earlier = home / "earlier"
    assert found_shift([earlier]) is None
    put(earlier, "sha256:aa", 0.3)
    assert found_shift([earlier]) == 0.3
    assert found_shift() is None
    put(cache_folder("sha256:aa", "question", 0.0), "sha256:aa", 0.2)
    assert found_shift([earlier]) == 0.2
    put(home / "bundled" / "some_family", "sha256:aa", 0.1)
    assert found_shift([earlier]) == 0.1


def test_auto_passes_over_tables_of_other_content(home: Path) -> None:
    put(home / "bundled" / "some_family", "sha256:bb", 0.1)
    put(home / "earlier", "sha256:bb", 0.2)
    put(home / "later", "sha256:aa", 0.4)
    assert found_shift([home / "earlier", home / "later"]) == 0.4


@pytest.mark.parametrize("changes", [{"query": "last"}, {"overlap": 0.5}, {"limit": 2}])
def test_auto_passes_over_tables_found_by_another_rule_or_on_few_samples(home: Path, changes: dict[str, Any]) -> None:
    write_tables(home / "run", {"core_a": scores()}, scores(), sidecar("sha256:aa", **changes))
    assert found_shift([home / "run"]) is None
    assert resolve(str(home / "run"), checkpoint_hash="sha256:aa", shape=SHAPE) is not None


def test_a_record_names_the_table_without_this_machines_folders(home: Path) -> None:
    for folder, name in ((cache_dir() / "heads" / "x", "cache:heads/x/heads.tsv"), (home / "run", "heads.tsv")):
        write_tables(folder, {"core_a": scores()}, scores(), sidecar("sha256:aa"))
        found = resolve(str(folder), checkpoint_hash="sha256:aa", shape=SHAPE)
        assert found is not None
        assert found[1].to_record()["where"] == name


def test_a_path_is_read_with_its_sidecar(home: Path) -> None:
    put(home / "run", "sha256:aa", 0.5)
    for spec in (home / "run", home / "run" / "heads.tsv"):
        found = resolve(str(spec), checkpoint_hash="sha256:aa", shape=SHAPE)
        assert found is not None
        table, meta = found
        assert np.array_equal(table.ram, scores(0.5).ram)
        assert meta.note is None
        assert meta.where == str(home / "run" / "heads.tsv")
        assert meta.tasks == ("core_a", "core_b")
    assert meta.overlap([("core_a", "1", "new.png", ()), ("core_b", "1", "new.pdf", ())]) == [("core_a", "1")]
    assert meta.overlap([("core_b", "7", "z.pdf", ()), ("core_a", "7", "z.pdf", ())]) == [("core_b", "7")]
    other = [("core_c", "5", "renamed.png", ("new", "abc")), ("core_c", "6", "else.png", ("new",))]
    assert meta.overlap(other) == [("core_c", "5")], "the same content under another task and name"
    one = resolve(str(home / "run" / "heads.core_b.tsv"), checkpoint_hash="sha256:aa", shape=SHAPE)
    assert one is not None
    assert one[1].ids == {("core_b", "9")}


def test_heads_of_another_checkpoint_carry_a_note(home: Path) -> None:
    put(home / "run", "sha256:bb", 0.0)
    found = resolve(str(home / "run"), checkpoint_hash="sha256:aa", shape=SHAPE)
    assert found is not None
    assert "another checkpoint, some/model" in (found[1].note or "")
    assert found[1].to_record()["checkpoint_hash"] == "sha256:bb"


def test_a_table_without_sidecar_carries_a_note(home: Path) -> None:
    scores().write_tsv(home / "mine.tsv")
    found = resolve(str(home / "mine.tsv"), checkpoint_hash="sha256:aa", shape=SHAPE)
    assert found is not None
    assert "no heads.json" in (found[1].note or "")
    assert not found[1].ids


def test_wrong_shape_and_missing_table_are_the_users_mistake(home: Path) -> None:
    put(home / "run", "sha256:aa", 0.0)
    with pytest.raises(UserError, match=r"heads\.tsv: .*2 layers x 4 heads.*3 layers x 4 heads"):
        resolve(str(home / "run"), checkpoint_hash="sha256:aa", shape=HeadShape(3, 4, 2))
    with pytest.raises(UserError, match=r"--heads .*nowhere"):
        resolve(str(home / "nowhere"), checkpoint_hash="sha256:aa", shape=SHAPE)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"checkpoint_hash": 3}, "checkpoint_hash"),
        ({"samples": []}, "samples"),
        ({"samples": {"t": {"ids": [1]}}}, "samples.t.ids"),
    ],
)
def test_a_damaged_sidecar_names_file_and_field(home: Path, changes: dict[str, Any], field: str) -> None:
    put(home / "run", "sha256:aa", 0.0)
    (home / "run" / "heads.json").write_text(json.dumps(sidecar("sha256:aa", **changes)))
    with pytest.raises(UserError, match=rf"heads\.json: .*{field}"):
        resolve(str(home / "run"), checkpoint_hash="sha256:aa", shape=SHAPE)
    (home / "run" / "heads.json").write_text("{")
    with pytest.raises(UserError, match=r"heads\.json"):
        resolve("auto", checkpoint_hash="sha256:aa", shape=SHAPE, search=[home / "run"])


def test_the_sidecar_goes_first_and_comes_last(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(home / "run", "sha256:aa", 0.0)

    def broken(self: HeadScores, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(HeadScores, "write_tsv", broken)
    with pytest.raises(UserError, match="No space left"):
        put(home / "run", "sha256:aa", 0.1)
    assert not (home / "run" / "heads.json").exists()  # the old one must not vouch for half-written tables


def test_an_incomplete_sidecar_is_a_programming_error(home: Path) -> None:
    with pytest.raises(ValueError, match="'seed'"):
        write_tables(home, {}, scores(), {k: v for k, v in sidecar("x").items() if k != "seed"})
