"""The three links: committed as links, guarded at import and at build, and harmless to packages of the same name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LINKS = ("tasks", "model_wrappers", "kernels")


def run_python(code: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python -c code` in `folder`, which comes first on the path as it does for a user."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def broken_checkout(repo_root: Path, tmp_path: Path) -> Path:
    """What git leaves with core.symlinks=false: small text files where the links belong."""
    for name in ("core_bench", *LINKS):
        shutil.copytree(repo_root / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("hatch_build.py", "pyproject.toml", "LICENSE"):
        shutil.copy(repo_root / name, tmp_path / name)
    (tmp_path / "README.md").write_text("# core_bench\n")
    link = tmp_path / "core_bench" / "kernels"
    target = os.readlink(link)
    link.unlink()
    link.write_text(target)
    return tmp_path


@pytest.mark.parametrize("name", LINKS)
def test_links_are_relative_links(repo_root: Path, name: str) -> None:
    link = repo_root / "core_bench" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name
    assert not (repo_root / name / "__init__.py").exists()  # an importable top-level `kernels` would shadow another


def test_git_stores_links(repo_root: Path) -> None:
    if not (repo_root / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(
        ["git", "ls-files", "--stage", *(f"core_bench/{name}" for name in LINKS)],
        cwd=repo_root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert [line.split()[0] for line in listing] == ["120000"] * 3


def test_import_of_a_broken_checkout_is_one_clear_line(broken_checkout: Path) -> None:
    result = run_python("import core_bench", broken_checkout)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: core_bench/kernels: expected a link to the folder kernels/")
    assert "core.symlinks true" in last


def test_build_of_a_broken_checkout_fails_with_one_line(broken_checkout: Path) -> None:
    result = run_python("from hatchling.build import build_wheel; build_wheel('dist')", broken_checkout)
    assert result.returncode == 1
    assert result.stderr.startswith("core_bench/kernels: expected a link")
    assert len(result.stderr.strip().splitlines()) == 1
    assert not list(broken_checkout.glob("dist/*.whl"))


def test_our_kernels_folder_shadows_nobodys_package(repo_root: Path, tmp_path: Path) -> None:
    """Hugging Face publishes a package `kernels`, which transformers imports: it must win over the folder beside us."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("WHO = 'somebody else'\n")
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r}); import core_bench, kernels; "
        "import core_bench.kernels.hybrid_attention as ours; print(kernels.WHO, ours.__name__)"
    )
    result = run_python(code, repo_root)
    assert result.stdout.split("\n")[0] == "somebody else core_bench.kernels.hybrid_attention", result.stderr
