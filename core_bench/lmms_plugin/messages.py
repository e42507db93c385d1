"""Between lmms-eval's chat messages and our samples. Nothing here imports lmms-eval."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from core_bench.errors import UserError
from core_bench.media import load_image, load_page
from core_bench.schema import Media, Sample
from core_bench.subtitles import SUBTITLES_HERE

Messages = Sequence[Mapping[str, Any]]
# Generation is greedy: settings that ask for it are accepted, settings that ask for anything else are refused.
_GREEDY: dict[str, tuple[Any, ...]] = {
    "do_sample": (False, None),
    "temperature": (0, None),
    "num_beams": (1, None),
    "top_p": (1, None),
    "top_k": (1, None),
}
DEFAULT_MAX_NEW_TOKENS = 64


def sample_of(messages: Messages, *, task: str, name: str, folder: Path) -> Sample:
    """One user message, after a system message or none, as a sample; pictures in memory are written to `folder`.

    Raises UserError for what our families do not prepare: several turns, text between media, audio, and media that are
    not files.
    """
    where = f"{task}, row {name}"
    roles = [str(message["role"]) for message in messages]
    if roles not in (["user"], ["system", "user"]):
        raise UserError(f"{where}: expected one user message, after a system message or none, got {', '.join(roles)}")
    parts = _parts(messages[-1])
    if [part["type"] for part in parts].count("text") != 1 or parts[-1]["type"] != "text":
        kinds = ", ".join(str(part["type"]) for part in parts)
        raise UserError(f"{where}: expected the media and then one text, got {kinds}")
    media = tuple(_medium(part, number, where, folder) for number, part in enumerate(parts[:-1]))
    prompt = str(parts[-1]["text"])
    system = "\n".join(str(part["text"]) for part in _parts(messages[0])) if len(roles) == 2 else None
    return Sample(
        task=task, id=name, cluster=name, media=media, prompt=prompt, question=prompt, target=None, system=system
    )


def messages_of(sample: Sample) -> list[dict[str, Any]]:
    """A sample as messages for any chat model: pictures and pages in memory, videos by path. `prime` has no place here.

    Raises UserError for a part of a video and for subtitles of the sampled frames, which only our own models read.
    """
    if SUBTITLES_HERE in sample.prompt:
        raise UserError(f"{sample.task}: shows the subtitles of the sampled frames, which only the core_ models know")
    content: list[dict[str, Any]] = []
    for medium in sample.media:
        if medium.span is not None:
            raise UserError(f"{sample.task}: shows parts of videos, which only the core_ models read")
        if medium.kind == "video":
            content.append({"type": "video", "url": medium.path})
        elif medium.kind == "page":
            content.append({"type": "image", "url": load_page(medium.path, medium.page or 0, medium.dpi)})
        else:
            content.append({"type": "image", "url": load_image(medium.path)})
    content.append({"type": "text", "text": sample.prompt})
    system = [] if sample.system is None else [{"role": "system", "content": [{"type": "text", "text": sample.system}]}]
    return [*system, {"role": "user", "content": content}]


def length_and_stops(settings: Mapping[str, Any]) -> tuple[int, list[str]]:
    """`max_new_tokens` and the texts at which an answer ends. UserError for settings that are not greedy."""
    for key, greedy in _GREEDY.items():
        if settings.get(key) not in greedy:
            raise UserError(f"generation: {key}: expected {greedy[0]} (greedy), got {settings[key]!r}")
    until = settings.get("until") or []
    return int(settings.get("max_new_tokens") or DEFAULT_MAX_NEW_TOKENS), [until] if isinstance(until, str) else until


def _parts(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _medium(part: Mapping[str, Any], number: int, where: str, folder: Path) -> Media:
    kind, source = part["type"], part.get("url")
    if kind not in ("image", "video"):
        raise UserError(f"{where}: expected images and videos, got {kind}")
    if kind == "image" and isinstance(source, Image.Image):
        path = folder / f"{number}.png"  # lossless; read back by the code that reads every picture
        _savable(source).save(path, compress_level=1)
        return Media(kind="image", path=str(path))
    if isinstance(source, str) and os.path.isfile(source):
        return Media(kind="image" if kind == "image" else "video", path=source)
    raise UserError(f"{where}: expected {kind} as a file, got {str(source)[:80]!r}")


def _savable(picture: Image.Image) -> Image.Image:
    """PNG holds no CMYK or YCbCr."""
    return picture.convert("RGB") if picture.mode in ("CMYK", "YCbCr", "LAB", "HSV", "F") else picture
