"""Subtitles of videos: SubRip files (.srt), and what of them a prompt shows."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from core_bench.errors import SampleError
from core_bench.media import Visual
from core_bench.schema import Sample

# Where subtitles go in a prompt; a private-use character, which no question contains.
SUBTITLES_HERE = "\ue001subtitles\ue001"
HEADING = "This video's subtitles are listed below:\n"  # Video-MME, official prompt
_TIME = r"(?:(\d+):)?(\d{1,2}):(\d{1,2})(?:[,.](\d{1,3}))?"
_TIMES = re.compile(rf"^[^\S\n]*{_TIME}[^\S\n]*-->[^\S\n]*{_TIME}[^\n]*$", re.M)
_MARKUP = re.compile(r"<[^<>]*>|\{\\[^{}]*\}")
_COUNTER = re.compile(r"(?:^|\n)\s*\d+\s*$")


@dataclass(frozen=True)
class Cue:
    """A text and when it is shown, in seconds."""

    begin: float
    end: float
    text: str


def read_srt(path: str) -> list[Cue]:
    """The cues of a file in order of time, markup taken out, each on one line; empty ones are left out.

    Missing counters, blank lines and hours do no harm. SampleError for a file that is not there, is not UTF-8 or holds
    text without any time.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SampleError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise SampleError(f"{path}: expected subtitles in UTF-8: byte {error.start}") from None
    text = "\n".join(text.splitlines())
    times = list(_TIMES.finditer(text))
    if text.strip() and not times:
        raise SampleError(f"{path}: expected subtitles in SubRip's format, found no line with times")
    cues = []
    for number, match in enumerate(times, start=1):
        said = text[match.end() :] if number == len(times) else text[match.end() : times[number].start()]
        if number < len(times):
            said = _COUNTER.sub("", said)
        said = " ".join(html.unescape(_MARKUP.sub("", said)).split())
        begin, end = _seconds(match.groups()[:4]), _seconds(match.groups()[4:])
        if said and begin < end:
            cues.append(Cue(begin, end, said))
    return sorted(cues, key=lambda cue: cue.begin)


def shown_at(cues: Iterable[Cue], seconds: Sequence[float]) -> list[str]:
    """The texts on screen at one of these times, in order; one that goes on in the next cue is given once."""
    shown = [cue.text for cue in cues if any(cue.begin <= second < cue.end for second in seconds)]
    return [text for number, text in enumerate(shown) if number == 0 or text != shown[number - 1]]


def with_subtitles(sample: Sample, visuals: Sequence[Visual]) -> Sample:
    """The sample with the subtitles of its sampled frames in its prompt; without a heading where there are none."""
    if SUBTITLES_HERE not in sample.prompt:
        return sample
    lines = [
        line
        for medium, visual in zip(sample.media, visuals, strict=True)
        if medium.subtitles is not None
        for line in shown_at(read_srt(medium.subtitles), visual.seconds)
    ]
    block = f"{HEADING}{chr(10).join(lines)}\n" if lines else ""
    return replace(sample, prompt=sample.prompt.replace(SUBTITLES_HERE, block))


def _seconds(parts: Sequence[str | None]) -> float:
    hours, minutes, seconds, fraction = parts
    thousandths = (fraction or "0").ljust(3, "0")
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0) + int(thousandths) / 1000
