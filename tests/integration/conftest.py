"""What tests of whole runs share: an untrained checkpoint, a small task on disk, and runs through the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from core_bench import cli
from core_bench.bundled.architectures import FAMILIES, architecture
from core_bench.model_wrappers.base import ModelWrapper
from core_bench.registry import model_class
from core_bench.results import build_record
from core_bench.schema import Media

TASK = """\
task: pictures
dataset_path: json
dataset_kwargs: {data_files: {found: found.jsonl, tested: tested.jsonl}}
generation_kwargs: {max_new_tokens: 2}
metadata: {core_bench: {splits: {detect: found, dense: tested, ablate: tested, hybrid: tested}}}
"""


@dataclass(frozen=True)
class Ended:
    """How a run ended, and its folder."""

    code: int
    tables: str
    said: list[str]
    folder: Path

    @property
    def record(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "record.json").read_text()))

    @property
    def rows(self) -> list[dict[str, Any]]:
        return read_lines(self.folder / "samples.jsonl")

    @property
    def refusal(self) -> str:
        """The one line that says why nothing was done."""
        assert self.code == 2, self.said
        assert self.tables == ""
        lines = [line for line in self.said if "error:" in line]
        assert len(lines) == 1, self.said
        assert self.said[-1] == lines[0], "the reason comes last"
        assert lines[0].startswith("core_bench: error: ")
        return lines[0]


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="session")
def untrained_of() -> Callable[[str], ModelWrapper]:
    """untrained_of(family): a small untrained model, float32 on the CPU, always the same. Leave it as you found it."""

    @lru_cache
    def build(family: str) -> ModelWrapper:
        built = architecture(family)
        return model_class(family)(built.build_model(seed=0), built.build_processor())

    return build


@pytest.fixture(scope="session", params=FAMILIES)
def untrained(request: pytest.FixtureRequest, untrained_of: Callable[[str], ModelWrapper]) -> ModelWrapper:
    """Every family in turn."""
    return untrained_of(request.param)


@pytest.fixture(scope="session")
def media_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[NDArray[np.uint8]], Media]:
    """media_file(pixels): [height, width, 3] as a picture, [frames, height, width, 3] as a video of 10 frames a second;
    both without loss."""
    folder, numbers = tmp_path_factory.mktemp("media"), count()

    def write(pixels: NDArray[np.uint8]) -> Media:
        path = folder / f"{next(numbers)}.{'ppm' if pixels.ndim == 3 else 'mov'}"
        if pixels.ndim == 3:
            Image.fromarray(pixels).save(path)
            return Media(kind="image", path=str(path))
        with av.open(str(path), "w") as container:
            stream = container.add_stream("png", rate=10)
            stream.width, stream.height, stream.pix_fmt = pixels.shape[2], pixels.shape[1], "rgb24"
            for frame in pixels:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            container.mux(stream.encode())
        return Media(kind="video", path=str(path))

    return write


@pytest.fixture(scope="session")
def checkpoint(tiny_model: Any, tiny_processor: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The untrained model as a folder. Copy it before you change it."""
    folder = tmp_path_factory.mktemp("untrained")
    tiny_model.save_pretrained(folder)
    tiny_processor.save_pretrained(folder)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, empty."""
    monkeypatch.setenv("CORE_BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where generated data sets are written once for all tests."""
    return tmp_path_factory.mktemp("generated")


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A task of pictures: 3 to find heads on (split found), 4 others to test them on (split tested)."""
    folder = tmp_path / "task"
    folder.mkdir()
    rng = np.random.default_rng(7)
    for split, n in (("found", 3), ("tested", 4)):
        rows = []
        for number in range(n):
            name = f"{split}{number}"
            pixels = rng.integers(0, 256, (128, 96 + 32 * number, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{name}.png")
            evidence = [{"box": [0, 32 * (number % 2), 64, 64 + 32 * (number % 2)]}]
            row = {"id": name, "image": f"{name}.png", "question": f"What is thing {number}?", "answer": "unknown"}
            rows.append({**row, "evidence": evidence})
        write_lines(folder / f"{split}.jsonl", rows)
    (folder / "pictures.yaml").write_text(TASK)
    return folder / "pictures.yaml"


@pytest.fixture
def bench(checkpoint: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """bench(mode, *flags, out=NAME): one run through the command line, into a folder of tmp_path."""

    def run(
        mode: str, *flags: object, out: str = "out", model_folder: Path = checkpoint, family: str = "qwen3vl"
    ) -> Ended:
        folder = tmp_path / "outs" / out
        words = ["--model", family, "--checkpoint", model_folder, "--device", "cpu", "--mode", mode, "--out", folder]
        capsys.readouterr()
        code = cli.main([str(word) for word in (*words, *flags)])
        printed = capsys.readouterr()
        return Ended(code, printed.out, printed.err.splitlines(), folder)

    return run


@pytest.fixture
def dense_record() -> Callable[..., dict[str, Any]]:
    """dense_record(task, headline, rows): the record of a finished dense run with these rows."""

    def build(task: str, headline: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        run = {"id": "m-dense-0", "model": "m", "checkpoint": "c", "checkpoint_hash": "x", "mode": "dense", "seed": 0}
        environment: dict[str, Any] = {"versions": {}, "commit": None, "device": "cpu", "threads": 1}
        return build_record(
            run={**run, "command": "", "settings": {}},
            environment={**environment, "dtype": "float32", "attention": "sdpa"},
            rows=rows,
            plans={task: {"dense": {}}},
            headline={task: headline},
            baseline="dense",
            complete=True,
        )

    return build


@pytest.fixture
def refused(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """refused(task, data_dir): the one line with which a run of a task over this folder is refused, exit code 2."""

    def run(task: str, data_dir: Path | None, *flags: str) -> str:
        words = ["--model", "qwen3vl", "--mode", "dense", "--tasks", task, "--out", str(tmp_path / "refused"), *flags]
        capsys.readouterr()
        code = cli.main([*words, *([] if data_dir is None else ["--data-dir", str(data_dir)])])
        printed = capsys.readouterr()
        lines = printed.err.splitlines()
        assert (code, printed.out, len(lines)) == (2, "", 1), (code, printed)
        assert lines[0].startswith("core_bench: error: ")
        assert "Traceback" not in lines[0]
        return lines[0]

    return run
