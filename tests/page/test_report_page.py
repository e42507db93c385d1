"""The report's page in a browser: every picture shows, nothing is asked for, and it fits a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core_bench.report import run_report

pytestmark = pytest.mark.page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Path:
    """Of the committed records."""
    out = tmp_path_factory.mktemp("report") / "out"
    runs = sorted((repo_root / "leaderboard" / "results").glob("[!.]*/"))
    assert run_report([str(run) for run in runs], str(out)) == 0
    return out / "report.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_shows_all_and_asks_for_nothing(browser: Any, report: Path, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said, asked = [], []  # type: list[str], list[str]
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 300)")
    assert page.evaluate("document.images.length") >= 6
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    colour = page.evaluate("getComputedStyle(document.querySelector('h1')).color")
    assert (colour == "rgb(255, 255, 255)") == (scheme == "dark")
    page.close()
    assert said == []
    assert {url for url in asked if not url.startswith("data:")} == {report.as_uri()}
