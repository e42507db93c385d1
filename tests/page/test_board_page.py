"""The leaderboard's page in a browser: it sorts, filters, opens a run, shows the plot, and asks for nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core_bench.board import build

pytestmark = pytest.mark.page


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Path:
    """The pages of the committed records."""
    folder = tmp_path_factory.mktemp("board")
    shutil.copytree(repo_root / "leaderboard" / "results", folder / "results")
    assert build(str(folder)) == 0
    return folder / "index.html"


@pytest.fixture
def page(browser: Any, board: Path) -> Iterator[Any]:
    """The page on a screen of usual width; at the end nothing may have been said on the console or asked for."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    said, asked = [], []  # type: list[str], list[str]
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(board.as_uri())
    yield opened
    opened.close()
    assert said == []
    assert {url for url in asked if not url.startswith("data:")} <= {board.as_uri()}


def column(page: Any, title: str, heading: str) -> list[str]:
    """The visible cells under a heading of the table with this title."""
    table = page.locator(f'div.wide[aria-label="{title}"] table')
    headings = table.locator("th").all_inner_texts()
    rows = [row for row in table.locator("tbody tr").all() if row.is_visible()]
    return [row.locator("td").nth(headings.index(heading)).inner_text() for row in rows]


TABLE = "Ablation: bundled models"


def test_a_heading_sorts_up_and_down_with_the_mouse_and_the_keyboard(page: Any) -> None:
    heading = page.locator(f'div.wide[aria-label="{TABLE}"] th', has_text="Top").first
    before = column(page, TABLE, "Top")
    assert len(set(before)) > 1
    heading.locator("button").click()
    up = [float(cell.split()[0]) for cell in column(page, TABLE, "Top")]
    assert up == sorted(up)
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert [float(cell.split()[0]) for cell in column(page, TABLE, "Top")] == up[::-1]
    assert heading.get_attribute("aria-sort") == "descending"
    page.locator(f'div.wide[aria-label="{TABLE}"] th', has_text="Task").locator("button").click()
    tasks = column(page, TABLE, "Task")
    assert tasks == sorted(tasks)


def test_filters_leave_what_was_asked_for(page: Any) -> None:
    whole = column(page, TABLE, "Task")
    task = whole[0]
    page.locator("select[name=task]").select_option(task)
    assert set(column(page, TABLE, "Task")) == {task}
    page.locator("select[name=task]").select_option("")
    assert column(page, TABLE, "Task") == whole
    page.locator("select[name=mode]").select_option("hybrid")
    assert not page.locator(f'div.wide[aria-label="{TABLE}"]').is_visible()
    marks = page.locator(".point:visible")
    page.locator("select[name=mode]").select_option("")
    several = marks.count()
    page.locator("select[name=task]").select_option("core_mlvu_tiny")
    assert 0 < marks.count() < several
    page.locator("input[name=words]").fill("nothing has these words")
    assert column(page, TABLE, "Task") == []


def test_a_mark_of_the_plot_and_a_row_open_their_run(page: Any) -> None:
    mark = page.locator(".point").last  # drawn last, so that no other lies over it
    target = mark.get_attribute("href").removeprefix("#")
    run = page.locator(f'details[id="{target}"]')
    assert run.get_attribute("open") is None
    mark.click()
    assert run.get_attribute("open") is not None
    assert run.locator("dt", has_text="command").is_visible()
    assert "python -m core_bench" in run.locator("dd").first.inner_text()
    link = page.locator(f'div.wide[aria-label="{TABLE}"] tbody td:last-child a').first
    link.click()
    assert (
        page.locator(f'details[id="{link.get_attribute("href").removeprefix("#")}"]').get_attribute("open") is not None
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_light_and_dark(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 844})
    for run in page.locator("summary").all():
        run.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    colors = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.documentElement).colorScheme]"
    )
    assert colors[1] == "light dark"
    bright = sum(int(part) for part in colors[0].removeprefix("rgb(").rstrip(")").split(",")[:3]) > 3 * 128
    assert bright is (scheme == "dark")
