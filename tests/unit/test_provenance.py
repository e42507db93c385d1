"""What a result was made with: the recorded command gives the run back, the fingerprint follows the data."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench import provenance
from core_bench.cliparsers import run_parser
from core_bench.config import RunConfig
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.provenance import command_of, data_digest, environment, sources, versions
from core_bench.schema import Media, Region, Sample
from core_bench.tasksource import REVISION
from core_bench.taskspec import FailedSample

WORD = st.text("abcXYZ019 _./'\"$~é", min_size=1).filter(lambda s: s.strip() == s and not s.startswith("-"))


def parsed(command: str) -> RunConfig:
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "core_bench"]
    return RunConfig(**vars(run_parser().parse_args(words[3:])))


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


CONFIGS = st.builds(
    RunConfig,
    model=st.just("qwen3vl"),
    mode=st.sampled_from(["dense", "detect", "ablate", "hybrid"]),
    checkpoint=maybe(WORD),
    tasks=maybe(st.lists(WORD, min_size=1, max_size=3, unique=True).map(tuple)),
    data_dir=maybe(WORD.filter(lambda s: not Path(s).exists())),
    keep=st.sampled_from(["10%", "5", "5%,top:10%"]),
    ablate=st.sampled_from(["top:5%,bottom:5%,random:5%", "top:3"]),
    window=maybe(st.integers(1, 5000)),
    sink=maybe(st.integers(0, 100)),
    off=st.sampled_from(["zero", "blind"]),
    hold=maybe(st.sampled_from(["prefill", "always"])),
    query=st.sampled_from(["question", "phrase", "last"]),
    overlap=st.sampled_from([0.0, 0.25, 1e-3]),
    fps=maybe(st.floats(0.01, 60)),
    max_pixels=maybe(st.integers(1, 10**7)),
    limit=maybe(st.integers(1, 9)),
    seed=st.integers(0, 10**9),
    dtype=maybe(st.sampled_from(["float32", "bfloat16"])),
    allow_overlap=st.booleans(),
    strict=st.booleans(),
    out=maybe(WORD),
)


@settings(max_examples=150, deadline=None)
@given(config=CONFIGS)
def test_the_recorded_command_gives_the_same_config(config: RunConfig) -> None:
    assert parsed(command_of(config)) == replace(config, out=None, strict=False)


def test_every_setting_is_a_flag() -> None:
    flags = {option for action in run_parser()._actions for option in action.option_strings}
    assert {f"--{field.name.replace('_', '-')}" for field in fields(RunConfig)} <= flags


def test_the_shortest_command_names_no_default() -> None:
    assert command_of(RunConfig(model="qwen3vl", mode="dense", seed=0)) == (
        "python -m core_bench --model qwen3vl --mode dense"
    )


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "one" / "p.png"
    path.parent.mkdir()
    path.write_bytes(b"pixels" * 100)
    return path


def sample_of(path: Path, **changes: Any) -> Sample:
    values: dict[str, Any] = {
        "task": "t",
        "id": "1",
        "cluster": "c",
        "media": (Media(kind="image", path=str(path)),),
        "prompt": "What color is the ring?\nOne word.",
        "question": "What color is the ring?",
        "phrase": "the ring",
        "target": "red",
        "evidence": (Region(medium=0, box=(0.0, 0.0, 4.0, 4.0)),),
    }
    return Sample(**{**values, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "2"},
        {"cluster": "d"},
        {"prompt": "What color is the ring?\nTwo words."},
        {"question": "color"},
        {"phrase": "ring"},
        {"phrase": None},
        {"system": "Be brief."},
        {"prime": "It is "},
        {"target": "blue"},
        {"choices": ("red", "blue")},
        {"evidence": ()},
        {"evidence": (Region(medium=0, box=(0.0, 0.0, 4.0, 5.0)),)},
        {"media": ()},
    ],
    ids=str,
)
def test_the_digest_follows_every_part_of_a_sample(picture: Path, changes: dict[str, Any]) -> None:
    assert data_digest([sample_of(picture)]) != data_digest([sample_of(picture, **changes)])


def test_the_digest_follows_the_dpi_of_pages(picture: Path) -> None:
    page = Media(kind="page", path=str(picture), page=0)
    plain, fine = (data_digest([sample_of(picture, media=(m,))]) for m in (page, replace(page, dpi=200)))
    assert plain != fine


def test_settings_name_commits_and_dpi(picture: Path) -> None:
    spec: Any = SimpleNamespace(name="t", dpi=200)
    page = Media(kind="page", path="a.pdf", page=0)
    failed = FailedSample(id="0", cluster="c", reason="no such file")
    of_hub = sample_of(picture, media=(page,), doc={REVISION: "abc"})
    assert sources([(spec, [failed, of_hub])]) == {"revisions": {"t": "abc"}, "dpi": {"t": 200}}
    assert sources([(spec, [failed, sample_of(picture)])]) == {}, "neither of the hub, nor with pages"


def test_the_digest_follows_bytes_not_places(picture: Path, tmp_path: Path) -> None:
    first = data_digest([sample_of(picture)])
    assert first == data_digest([sample_of(picture)])
    assert len(first) == 16
    moved = tmp_path / "elsewhere" / "q.png"
    moved.parent.mkdir()
    moved.write_bytes(picture.read_bytes())
    assert data_digest([sample_of(moved)]) == first
    moved.write_bytes(b"P" + picture.read_bytes()[1:])
    assert data_digest([sample_of(moved)]) != first
    moved.unlink()
    assert data_digest([sample_of(moved)]) != first, "a missing file is not the file"


def test_the_digest_follows_length_beyond_what_it_reads(picture: Path) -> None:
    picture.write_bytes(b"x" * 200_000)
    first = data_digest([sample_of(picture)])
    picture.write_bytes(b"x" * 200_001)
    assert data_digest([sample_of(picture)]) != first


def test_the_digest_follows_order_number_page_span_and_failures(picture: Path) -> None:
    one, two = sample_of(picture), sample_of(picture, id="2")
    failed = FailedSample(id="2", cluster="c", reason="no such file")
    video = Media(kind="video", path=str(picture))
    media = [video, replace(video, span=(0, 9)), replace(video, span=(1, 9)), replace(video, kind="page", page=1)]
    variants: list[list[Sample | FailedSample]] = [[one], [one, two], [two, one], [one, failed], [one, one]]
    variants += [[sample_of(picture, media=(medium,))] for medium in media]
    assert len({data_digest(samples) for samples in variants}) == len(variants)


def test_versions_leave_out_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_PACKAGES", ("torch", "no-such-package-anywhere"))
    assert set(versions()) == {"python", "torch"}


def test_environment_says_what_moves_results(tiny_model: Any, tiny_processor: Any) -> None:
    config = RunConfig(model="qwen3vl", mode="dense", attention="reference")
    found = environment(Qwen3VL(tiny_model, tiny_processor), config)
    assert set(found) == {"versions", "commit", "device", "threads", "dtype", "attention"}
    assert (found["dtype"], found["attention"]) == ("float32", "reference")
    assert found["device"].startswith("cpu (")
    by_default = environment(Qwen3VL(tiny_model, tiny_processor), RunConfig(model="qwen3vl", mode="dense"))
    assert by_default["attention"] == "auto (sdpa; dense where no view is cut)"
    assert found["threads"] >= 1


def test_the_commit_is_the_source_trees_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "core_bench" / "provenance.py"))
    assert provenance._commit() is None, "an installed wheel"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert provenance._commit() is None, "a tree without commits"
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    assert len(provenance._commit() or "") == 40
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance._commit() is None, "a machine without git"
