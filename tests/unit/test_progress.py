"""Progress bars: silent off a terminal and for short work, there for long work, and never in the way of the items."""

from __future__ import annotations

import io
import sys
import time

import pytest

from core_bench import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_terminal_no_output(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    assert list(progress.track(range(5), "counting")) == list(range(5))
    assert capsys.readouterr() == ("", "")


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert list(progress.track((n for n in range(5)), "counting", total=5)) == list(range(5))
    assert terminal.getvalue() == ""


def test_long_work_shows_counts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "DELAY_S", 0.05)
    monkeypatch.setenv("TERM", "xterm")
    for _ in progress.track(range(4), "counting"):
        time.sleep(0.15)
    assert "counting" in terminal.getvalue()
    assert "4/4" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_a_bar_goes_away_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "DELAY_S", 0.2)

    def broken() -> None:
        for item in progress.track(range(3), "counting"):
            raise ValueError(item)

    with pytest.raises(ValueError, match="0"):
        broken()
    time.sleep(0.3)
    assert terminal.getvalue() == ""
