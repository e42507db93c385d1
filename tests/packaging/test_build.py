"""The wheel, built from the checkout and from the source archive, and used from an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
NOT_SOURCE = {".git", ".venv", ".venv-lmms", "runs", "dist", "build", "leaderboard"}


def build(kind: str, source: Path, target: Path) -> Path:
    """Build "wheel" or "sdist" with the installed hatchling; nothing is downloaded."""
    code = f"import sys; from hatchling.build import build_{kind}; print(build_{kind}(sys.argv[1]))"
    result = subprocess.run([sys.executable, "-c", code, str(target)], cwd=source, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return target / result.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def source_copy(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout without what it has built, in a path with a space."""
    copy = tmp_path_factory.mktemp("source") / "a checkout"

    def skipped(folder: str, names: list[str]) -> set[str]:
        tops = NOT_SOURCE if Path(folder) == repo_root else set()
        return {name for name in names if name in tops or name == "__pycache__" or name.endswith((".tmp", "_cache"))}

    shutil.copytree(repo_root, copy, symlinks=True, ignore=skipped)
    return copy


@pytest.fixture(scope="module")
def wheel(source_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", source_copy, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_wheel_has_one_top_level_name(wheel_names: set[str]) -> None:
    top = {name.partition("/")[0] for name in wheel_names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"core_bench"}


def test_wheel_holds_every_file_of_package_and_linked_folders(source_copy: Path, wheel_names: set[str]) -> None:
    """Code, task YAMLs, templates and weights alike: what the checkout has, the wheel has."""
    package = source_copy / "core_bench"
    expected = {
        (Path(folder) / file).relative_to(source_copy).as_posix()
        for folder, _, files in os.walk(package, followlinks=True)
        for file in files
    }
    assert expected <= wheel_names
    assert {name for name in wheel_names if name.startswith("core_bench/")} == expected
    for part in ("tasks/", "model_wrappers/qwen3vl.py", "kernels/hybrid_attention/api.py", "bundled/", "board/"):
        assert any(name.startswith(f"core_bench/{part}") for name in wheel_names), part
    for suffix in (".yaml", ".safetensors"):
        assert any(name.endswith(suffix) for name in wheel_names), suffix


def test_source_archive_builds_the_same_wheel(
    source_copy: Path, wheel_names: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", source_copy, folder)) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    again = build("wheel", unpacked, tmp_path_factory.mktemp("again"))
    assert set(zipfile.ZipFile(again).namelist()) == wheel_names


def test_wheel_works_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    with zipfile.ZipFile(wheel) as archive:  # a pure wheel is installed by unpacking it
        archive.extractall(site)

    def python(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(site)}
        result = subprocess.run(
            [sys.executable, *arguments], cwd=empty, env=environment, capture_output=True, text=True, timeout=300
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    assert python("-c", "import core_bench; print(core_bench.__file__)").startswith(str(site))
    assert "--mode" in python("-m", "core_bench", "--help")
    assert "core_refcocog_tiny" in python("-m", "core_bench", "tasks")
    assert not list(empty.iterdir())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel in it; what the wheel needs is this environment's."""
    folder = tmp_path_factory.mktemp("installed") / "environment"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    # A .pth file inside a folder that a .pth file names is not read: an editable install of the checkout stays hidden.
    (site / "needed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    words = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return python


def test_installed_wheel_keeps_a_leaderboard_and_reports_in_an_empty_folder(
    installed: Path, repo_root: Path, tmp_path: Path
) -> None:
    runs = []
    for kind in ("detect", "ablate", "hybrid"):
        (committed,) = (repo_root / "leaderboard" / "results").glob(f"qwen3vl-{kind}-*/")
        runs.append(str(shutil.copytree(committed, tmp_path / "runs" / committed.name)))
    empty = tmp_path / "empty"
    empty.mkdir()

    def call(*words: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(list(words), cwd=empty, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    python = str(installed)
    assert call(python, "-c", "import core_bench; print(core_bench.__file__)").startswith(str(installed.parents[1]))
    call(python, "-m", "core_bench", "leaderboard", "check", *[f"{run}/record.json" for run in runs])
    assert not list(empty.iterdir())
    call(python, "-m", "core_bench", "leaderboard", "add", *runs)
    call(python, "-m", "core_bench", "leaderboard", "build")
    call(str(installed.with_name("core-bench")), "report", *runs, "--out", "report")
    assert {path.name for path in (empty / "leaderboard" / "results").iterdir()} == {Path(run).name for run in runs}
    for page in ("leaderboard/LEADERBOARD.md", "leaderboard/index.html", "report/report.html"):
        text = (empty / page).read_text()
        for run in runs:
            assert Path(run).name in text, page
    assert {path.stem for path in (empty / "report" / "figures").iterdir()} > {"map", "ablation", "hybrid"}


def test_weights_stay_small(repo_root: Path) -> None:
    """Binaries stay in git for ever: at most 8 MiB a bundled checkpoint."""
    weights = list((repo_root / "core_bench" / "bundled").rglob("*.safetensors"))
    assert weights
    assert all(path.stat().st_size <= 8 * 2**20 for path in weights)
