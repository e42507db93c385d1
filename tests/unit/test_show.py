"""What `show` computes and draws, on token maps made by hand: cells on pixels, panels, where mass goes, captions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops

from core_bench import cli, registry
from core_bench.errors import UserError
from core_bench.evidence import covered_cells
from core_bench.kernels.attention_mass import attention_mass
from core_bench.media import Visual
from core_bench.schema import Media, Region, Sample, TokenMap, VisualBlock
from core_bench.show import find_sample
from core_bench.show_attention import KeyMassProbe, shares
from core_bench.show_drawing import OMEGA, HeatColumn, cells_on_screen, draw_sheet, heat_colors, scale_of, wrapped
from core_bench.show_panels import Panel, cell_box, choose, make_panels
from core_bench.taskspec import TaskSpec


def block(start: int, rows: int, cols: int, size: tuple[int, int], **more: Any) -> VisualBlock:
    options = {"medium": 0, "row_stride": cols, "scale_x": cols / size[0], "scale_y": rows / size[1]} | more
    return VisualBlock(start=start, rows=rows, cols=cols, **options)


def panel(size: tuple[int, int], *blocks: VisualBlock, **more: Any) -> Panel:
    options: dict[str, Any] = {"picture": Image.new("RGB", size, (90, 120, 40)), "label": "a.png", "boxes": ()}
    options |= {"others": (), "omega": ()} | more
    return Panel(blocks=blocks, omega=frozenset(options.pop("omega")), **options)


def sample(*evidence: Region, media: tuple[Media, ...] = (Media(kind="image", path="x/a.png"),)) -> Sample:
    return Sample(
        task="t", id="s", cluster="c", media=media, prompt="p", question="p", target="x", evidence=tuple(evidence)
    )


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 7),
    cols=st.integers(1, 7),
    width=st.integers(20, 900),
    height=st.integers(20, 900),
    offsets=st.tuples(st.floats(-5, 5), st.floats(-5, 5)),
    data=st.data(),
)
def test_a_cells_box_covers_that_cell_alone(
    rows: int, cols: int, width: int, height: int, offsets: tuple[float, float], data: st.DataObject
) -> None:
    one = block(0, rows, cols, (width, height), offset_x=offsets[0], offset_y=offsets[1])
    row, col = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, cols - 1))
    expected = np.zeros((rows, cols))
    expected[row, col] = 1.0
    shares_RC = covered_cells(Region(medium=0, box=cell_box(one, row, col)), one)
    np.testing.assert_allclose(shares_RC, expected, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 9), cols=st.integers(1, 9), width=st.integers(30, 500), height=st.integers(30, 500),
    side=st.integers(40, 1200),
)  # fmt: skip
def test_cells_of_a_whole_view_tile_the_drawn_picture(rows: int, cols: int, width: int, height: int, side: int) -> None:
    size = (width, height)
    scale = scale_of(size, side)
    drawn = (max(1, round(width * scale)), max(1, round(height * scale)))
    assert max(drawn) <= max(side, 1)
    painted = np.zeros(drawn[::-1], dtype=int)
    for x0, y0, x1, y1 in cells_on_screen(panel(size, block(3, rows, cols, size)), scale).values():
        painted[y0:y1, x0:x1] += 1
    assert (painted == 1).all()


def test_tiles_and_thumbnail_are_panels_of_their_own_and_padding_is_not_drawn() -> None:
    # 200 x 100 pixels; two tiles of 2 x 2 cells side by side, rows ended by a newline token, then a thumbnail whose
    # grid of 4 x 4 cells is padded above and below: the picture fills its rows 1 and 2.
    size = (200, 100)
    left = VisualBlock(medium=0, start=10, rows=2, cols=2, row_stride=3, scale_x=0.02, scale_y=0.02, view="tiles")
    right = VisualBlock(
        medium=0, start=16, rows=2, cols=2, row_stride=3, scale_x=0.02, scale_y=0.02, offset_x=-2.0, view="tiles"
    )
    thumb = VisualBlock(
        medium=0, start=30, rows=4, cols=4, row_stride=4, scale_x=0.02, scale_y=0.02, offset_y=1.0, view="thumbnail"
    )
    token_map = TokenMap(blocks=(left, right, thumb), length=50, newlines=(12, 15, 18, 21))
    visual = Visual(path="x/a.png", kind="picture", pictures=(Image.new("RGB", size),))
    region = Region(medium=0, box=(100.0, 50.0, 150.0, 100.0))
    tiles, thumbnail = make_panels(sample(region), [visual], token_map, [19, 40])
    assert (tiles.label, thumbnail.label) == ("a.png, 2 tiles", "a.png, thumbnail")
    assert (tiles.boxes, thumbnail.boxes) == ((region.box,), (region.box,))
    assert (set(tiles.omega), set(thumbnail.omega)) == ({19}, {40})
    on_tiles = cells_on_screen(tiles, 1.0)
    assert on_tiles == {
        10: (0, 0, 50, 50), 11: (50, 0, 100, 50), 13: (0, 50, 50, 100), 14: (50, 50, 100, 100),
        16: (100, 0, 150, 50), 17: (150, 0, 200, 50), 19: (100, 50, 150, 100), 20: (150, 50, 200, 100),
    }  # fmt: skip
    assert cells_on_screen(thumbnail, 1.0) == {
        34 + 4 * row + col: (50 * col, 50 * row, 50 * col + 50, 50 * row + 50) for row in (0, 1) for col in range(4)
    }


def test_of_merged_frames_the_one_with_evidence_is_drawn() -> None:
    pictures = tuple(Image.new("RGB", (64, 32), (shade, 0, 0)) for shade in (10, 20, 30, 40))
    visual = Visual(path="v.mp4", kind="clip", pictures=pictures, frames=(0, 5, 10, 15), fps=10.0, n_frames=20)
    blocks = tuple(block(start, 1, 2, (64, 32), frames=f) for start, f in ((3, (0, 5)), (8, (10, 15))))
    token_map = TokenMap(blocks=blocks, length=12)
    box = (32.0, 0.0, 64.0, 32.0)
    clip = sample(Region(medium=0, box=box, frame=5), media=(Media(kind="video", path="v.mp4"),))
    first, second = make_panels(clip, [visual], token_map, [4])
    assert (first.picture, second.picture) == (pictures[1], pictures[2])
    assert (first.boxes, first.others, second.boxes, second.has_evidence) == ((box,), (), (), False)
    assert (first.label, second.label) == ("v.mp4, frame 5 (0.5 s), with 0", "v.mp4, frame 10 (1.0 s), with 15")
    both = sample(*clip.evidence, Region(medium=0, frame=0), media=clip.media)
    first, _ = make_panels(both, [visual], token_map, [4])
    assert (first.picture, first.boxes, first.others) == (pictures[0], ((0.0, 0.0, 64.0, 32.0),), (box,))


@settings(max_examples=80, deadline=None)
@given(flags=st.lists(st.booleans(), min_size=1, max_size=40), limit=st.integers(1, 12), seed=st.integers(0, 99))
def test_choice_of_panels(flags: list[bool], limit: int, seed: int) -> None:
    mass_M = np.random.default_rng(seed).random(2 * len(flags))
    size = (20, 10)
    panels = [
        panel(size, block(2 * n, 1, 2, size), boxes=((0.0, 0.0, 1.0, 1.0),) if flag else ())
        for n, flag in enumerate(flags)
    ]
    drawn = choose(panels, mass_M, limit)
    assert list(drawn) == sorted(set(drawn))
    assert len(drawn) <= min(limit, len(panels))
    shown = {n for n in drawn if flags[n]}
    if len(panels) <= limit:
        assert drawn == tuple(range(len(panels)))
    elif not any(flags):
        mass = [mass_M[2 * n : 2 * n + 2].sum() for n in range(len(panels))]
        assert min(mass[n] for n in drawn) >= max(mass[n] for n in range(len(panels)) if n not in drawn)
    elif sum(flags) > limit:
        assert shown == set(drawn)
        assert len(drawn) == limit
    else:
        assert shown == {n for n, flag in enumerate(flags) if flag}
        assert all(any(abs(n - other) == 1 for other in shown) for n in set(drawn) - shown)


def test_shares_add_up_and_tell_kinds_apart() -> None:
    blocks = (block(2, 1, 3, (30, 10)), block(7, 1, 1, (30, 10)))
    token_map = TokenMap(blocks=blocks, length=12, newlines=(5,), markers=(1, 6, 8))
    mass_M = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048], dtype=float)
    got = shares(mass_M / mass_M.sum(), token_map, [3, 7])
    expected = [8 + 128, 4 + 16, 2 + 32 + 64 + 256, 1, 512 + 1024 + 2048]
    assert [got.omega, got.other_cells, got.markers, got.first_token, got.other_text] == pytest.approx(
        [part / 4095 for part in expected]
    )
    assert got.brightest == pytest.approx(128 / 4095)
    assert shares(mass_M, TokenMap(blocks=(), length=12), []).brightest == 0.0
    starts = TokenMap(blocks=(block(0, 1, 3, (30, 10)),), length=12)
    assert (shares(mass_M, starts, [0]).omega, shares(mass_M, starts, [0]).first_token) == (1, 0)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_the_probe_against_the_reference_of_attention_mass(kv_heads: int, scale: float | None) -> None:
    generator = torch.Generator().manual_seed(kv_heads)
    q_BHND = torch.randn(1, 6, 11, 8, generator=generator)
    k_BKMD = torch.randn(1, kv_heads, 11, 8, generator=generator)
    rows, heads, ranges = (4, 9, 10), ((0, 5), (0, 0), (1, 3)), ((2, 10),)
    probe = KeyMassProbe(rows, heads)
    probe.begin(1, 11, 2)
    probe.observe(0, q_BHND, k_BKMD, kv_range_B2=ranges, scale=scale)
    with pytest.raises(RuntimeError, match=r"\(1, 3\)"):
        _ = probe.mass_SM
    probe.observe(1, q_BHND * 2, k_BKMD, kv_range_B2=ranges, scale=scale)
    for (layer, head), mass_M in zip(heads, probe.mass_SM, strict=True):
        expected_BHRM = attention_mass(
            (q_BHND * (1 + layer))[:, :, list(rows)], k_BKMD, rows_R=rows, sets_SM=torch.eye(11, dtype=torch.bool),
            kv_range_B2=ranges, scale=scale, impl="reference",
        )  # fmt: skip
        torch.testing.assert_close(mass_M, expected_BHRM[0, head].mean(dim=0), atol=1e-6, rtol=1e-5)


def test_heat_lies_exactly_on_its_cell() -> None:
    size = (96, 64)
    shown = panel(size, block(5, 2, 3, size))
    sheets = []
    for position in (5, 9):  # cells (0, 0) and (1, 1)
        mass_M = np.zeros(20)
        mass_M[position] = 0.25
        sheets.append(draw_sheet(["caption"], [shown], [HeatColumn("head 0:0", mass_M, 0.25)]))
    changed = np.argwhere(np.asarray(ImageChops.difference(*sheets)).any(axis=2))
    factor = int(scale_of(size, 1024))
    assert factor > 1
    low, high = changed.min(axis=0), changed.max(axis=0) + 1
    assert tuple(high - low) == (64 * factor, 64 * factor)  # from cell (0, 0) to cell (1, 1)
    assert len(changed) == 2 * (32 * factor) ** 2


def test_omega_is_marked_in_the_evidence_column_and_boxes_in_all() -> None:
    size = (96, 64)
    plain = panel(size, block(5, 2, 3, size))
    column = HeatColumn("head 0:0", np.zeros(20), 0.0)
    base = draw_sheet(["caption"], [plain], [column])
    factor = int(scale_of(size, 1024))
    marked = draw_sheet(["caption"], [panel(size, block(5, 2, 3, size), omega={10})], [column])  # cell (1, 2)
    changed = np.argwhere(np.asarray(ImageChops.difference(base, marked)).any(axis=2))
    assert tuple(np.ptp(changed, axis=0) + 1) == (32 * factor, 32 * factor)
    boxed = draw_sheet(["caption"], [panel(size, block(5, 2, 3, size), boxes=((8.0, 8.0, 24.0, 40.0),))], [column])
    changed = np.argwhere(np.asarray(ImageChops.difference(base, boxed)).any(axis=2))
    assert np.ptp(changed[:, 0]) + 1 == 32 * factor
    columns = np.unique(changed[:, 1])
    assert len(columns) == 2 * 16 * factor  # once on the picture, once on the heat map
    assert np.count_nonzero(np.diff(columns) > 1) == 1


def test_the_picture_shows_through_lines_and_tint() -> None:
    """Black and white stay apart in every pixel but those of Omega's frame, however many cells there are."""
    size = (512, 256)
    dark, light = (
        np.asarray(draw_sheet(["caption"], [replace(marked, picture=Image.new("RGB", size, color))], []))
        for marked in [panel(size, block(0, 32, 64, size), omega={65, 66, 129, 130})]
        for color in ("black", "white")
    )
    same = np.argwhere((dark == light).all(axis=2) & (dark == OMEGA).all(axis=2))
    apart = np.argwhere((dark != light).any(axis=2))
    corner, cell = apart.min(axis=0), 8
    assert tuple(np.ptp(apart, axis=0) + 1) == size[::-1]
    assert tuple(same.min(axis=0)) == tuple(corner + cell)
    assert tuple(np.ptp(same, axis=0) + 1) == (2 * cell, 2 * cell)
    assert len(same) == (2 * cell) ** 2 - (2 * cell - 4) ** 2, "a frame of 2 pixels"
    assert len(apart) == size[0] * size[1] - len(same)


def test_extreme_pictures_are_drawn() -> None:
    for size in ((4000, 3), (3, 4000), (1, 1)):
        sheet = draw_sheet(["x" * 3000], [panel(size, block(0, 1, 1, size))], [HeatColumn("h", np.ones(3), 1.0)])
        assert max(sheet.size) < 5000


def test_heat_colors_brighten() -> None:
    light = heat_colors(np.linspace(0, 1, 50)).astype(int) @ np.array([299, 587, 114])
    assert (np.diff(light) > 0).all()


@settings(max_examples=80, deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=60), st.integers(1, 12))
def test_wrapping_loses_nothing_and_fits(line: str, width: int) -> None:
    pieces = wrapped(line, lambda text: len(text) <= width)
    assert "".join("".join(pieces).split()) == "".join(line.split())
    assert pieces
    assert all(len(piece) <= width for piece in pieces)


@pytest.fixture
def spec(tmp_path: Path) -> TaskSpec:
    (tmp_path / "q.jsonl").write_text(
        "".join(f'{{"id": "{name}", "image": "a.png", "question": "What?", "answer": "x"}}\n' for name in "abcdef2")
    )
    (tmp_path / "mine.yaml").write_text("task: mine\ndataset_path: q.jsonl\n")
    return TaskSpec.from_file(tmp_path / "mine.yaml")


def test_a_sample_is_found_by_id_first_then_by_number(spec: TaskSpec) -> None:
    assert [find_sample(spec, "test", wanted, None).id for wanted in ("c", "0", "6", "2")] == ["c", "a", "2", "2"]
    for wanted in ("7", "-1", "zz", "", "²"):
        with pytest.raises(UserError, match=r"\(a, b, c, d, e, \.\.\.\) or a number from 0 to 6, got '"):
            find_sample(spec, "test", wanted, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--task", "core_refcocog_tiny"], "--sample"),
        (["--sample", "0"], "--task"),
        (["--task", "core_refcocog_tinny", "--sample", "0"], "did you mean 'core_refcocog_tiny'"),
        (["--task", "mine.yaml", "--sample", "zz"], "a, b, c"),
        (["--task", "mine.yaml", "--sample", "0", "--out", "x.jpg"], ".png"),
        (["--task", "mine.yaml", "--sample", "0", "--out", "no/x.png"], "no/x.png"),
        (["--task", "mine.yaml", "--sample", "0", "--out", ""], "''"),
        (["--task", "mine.yaml", "--sample", "0", "--head", "3"], "LAYER:HEAD"),
        (["--task", "mine.yaml", "--sample", "0", "--head=-1:2"], "LAYER:HEAD"),
        (["--task", "mine.yaml", "--sample", "0", "--overlap", "1"], "--overlap"),
        (["--task", "mine.yaml", "--sample", "0", "--query", "all"], "--query"),
        (["--task", "mine.yaml", "--sample", "0", "--heads", "none.tsv"], "none.tsv"),
        (["--task", "mine.yaml", "--sample", "0", "--heds", "x"], "did you mean '--heads'"),
        (["--task", "mine.yaml", "--sample", "0", "--frames", "4", "--fps", "1"], "--fps"),
        (["--task", ".", "--sample", "0"], "2"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    words: list[str], said: str, spec: TaskSpec, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (spec.path.parent / "other.yaml").write_text("task: other\ndataset_path: q.jsonl\n")
    monkeypatch.chdir(spec.path.parent)
    monkeypatch.setattr(registry, "bundled_checkpoint", lambda name: spec.path.parent)
    assert cli.main(["show", "--model", "qwen3vl", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("core_bench: error: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err
