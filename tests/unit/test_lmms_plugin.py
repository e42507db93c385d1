"""What the lmms-eval plugin does without lmms-eval: model arguments, chat messages, and the line in our task files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from core_bench.errors import UserError
from core_bench.lmms_plugin.arguments import run_config
from core_bench.lmms_plugin.messages import length_and_stops, messages_of, sample_of
from core_bench.media import load_image
from core_bench.registry import known_tasks
from core_bench.schema import Media, Sample


def test_arguments_mean_what_the_flags_mean() -> None:
    config = run_config(
        "qwen3vl", {"mode": "hybrid", "keep": 5, "window": 64, "sink": 4, "device": "cpu", "seed": None}
    )
    assert (config.mode, config.keep, config.window, config.sink) == ("hybrid", "5", 64, 4)
    assert list(config.hybrid_arms()) == ["hybrid:5"]
    assert run_config("qwen3vl", {}).mode == "dense"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"hed": 3}, "unknown argument 'hed' (did you mean 'heads'?)"),
        ({"model": "internvl"}, "unknown argument 'model'"),
        ({"mode": "detect"}, "mode: expected one of dense, ablate, hybrid, got 'detect'"),
        ({"keep": "5%"}, "keep: not read in mode=dense"),
        ({"mode": "dense", "sink": 4, "window": 64}, "sink, window: not read in mode=dense"),
        ({"mode": "hybrid", "ablate": "top:5%"}, "ablate: not read in mode=hybrid"),
        ({"mode": "ablate"}, "expected ablate=top:5%"),
        ({"mode": "ablate", "ablate": "top:5%,bottom:5%"}, "expected one set of heads, got top:5%, bottom:5%"),
        ({"mode": "ablate", "ablate": "random:5%"}, "expected one set of heads, got random:5%"),
        ({"mode": "hybrid", "keep": "random:5%"}, "expected one set of heads, got hybrid:random:5%"),
        ({"mode": "hybrid", "keep": 0.5}, "--keep"),
        ({"mode": "hybrid", "window": 0}, "--window: expected a whole number of at least 1"),
        ({"mode": "hybrid", "heads": "nowhere.tsv"}, "nowhere.tsv"),
        ({"dtype": "float64"}, "--dtype"),
    ],
)
def test_refused_arguments(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        run_config("qwen3vl", arguments)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def turn(*content: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


@pytest.fixture
def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8))


def test_messages_become_a_sample(tmp_path: Path, picture: Image.Image) -> None:
    (tmp_path / "clip.mp4").write_bytes(b"")
    clip = str(tmp_path / "clip.mp4")
    user = turn({"type": "image", "url": picture}, {"type": "video", "url": clip}, text("What is it?"))
    sample = sample_of([turn(text("Be brief."), role="system"), user], task="theirs", name="7", folder=tmp_path)
    assert (sample.system, sample.prompt, sample.question) == ("Be brief.", "What is it?", "What is it?")
    assert [medium.kind for medium in sample.media] == ["image", "video"]
    assert sample.media[1].path == clip
    assert np.array_equal(np.asarray(load_image(sample.media[0].path)), np.asarray(picture))


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "RGBA", "YCbCr"])
def test_pictures_of_any_mode_are_read(tmp_path: Path, picture: Image.Image, mode: str) -> None:
    messages = [turn({"type": "image", "url": picture.convert(mode)}, text("?"))]
    [medium] = sample_of(messages, task="theirs", name="7", folder=tmp_path).media
    assert load_image(medium.path).size == picture.size


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([turn(text("a")), turn(text("b"), role="assistant"), turn(text("c"))], "got user, assistant, user"),
        ([turn(text("a"), {"type": "image", "url": "x.png"}, text("b"))], "got text, image, text"),
        ([turn({"type": "image", "url": "x.png"})], "expected the media and then one text, got image"),
        ([turn({"type": "audio", "url": "x.wav"}, text("a"))], "expected images and videos, got audio"),
        ([turn({"type": "image", "url": "https://example.org/x.png"}, text("a"))], "expected image as a file"),
        ([turn({"type": "video", "url": [1, 2]}, text("a"))], "expected video as a file"),
    ],
)
def test_refused_messages(tmp_path: Path, messages: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(UserError, match="theirs, row 7: ") as refused:
        sample_of(messages, task="theirs", name="7", folder=tmp_path)
    assert said in str(refused.value)


def a_sample(**values: Any) -> Sample:
    given = {"task": "ours", "id": "1", "cluster": "1", "prompt": "What?", "question": "What?", "target": None}
    return Sample(**{**given, **values})


def test_samples_become_messages(tmp_path: Path, picture: Image.Image) -> None:
    picture.save(tmp_path / "a.png")
    media = (Media(kind="image", path=str(tmp_path / "a.png")), Media(kind="video", path="clip.mp4"))
    system, user = messages_of(a_sample(media=media, system="Be brief."))
    assert system == {"role": "system", "content": [text("Be brief.")]}
    shown, clip, asked = user["content"]
    assert np.array_equal(np.asarray(shown["url"]), np.asarray(picture))
    assert (clip, asked) == ({"type": "video", "url": "clip.mp4"}, text("What?"))
    with pytest.raises(UserError, match="parts of videos"):
        messages_of(a_sample(media=(Media(kind="video", path="clip.mp4", span=(0, 5)),)))


def test_generation_settings() -> None:
    assert length_and_stops({"max_new_tokens": 8, "until": "\n", "temperature": 0.0, "do_sample": False}) == (8, ["\n"])
    assert length_and_stops({"until": ["a", "b"]}) == (64, ["a", "b"])
    for wrong in ({"do_sample": True}, {"temperature": 0.7}, {"num_beams": 4}):
        with pytest.raises(UserError, match="greedy"):
            length_and_stops(wrong)


def test_every_task_that_ships_says_how_lmms_eval_loads_it() -> None:
    loaders = {name: getattr(spec.keys.get("class"), "name", None) for name, spec in known_tasks().items()}
    assert loaders == dict.fromkeys(loaders, "core_bench.lmms_plugin.task.CoreTask")
