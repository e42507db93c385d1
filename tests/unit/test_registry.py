"""Tasks from YAML files: what they mean, what is refused with file and line, what becomes a recorded failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core_bench import registry
from core_bench.config import MODES
from core_bench.errors import UserError
from core_bench.registry import load_tasks
from core_bench.schema import Media, Region, Sample
from core_bench.taskspec import FailedSample, TaskSpec

ROW = {"id": "q1", "image": "a.png", "question": "What color is the star?", "answer": "red"}


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """Writes a task: YAML text, rows (dicts, or raw lines), and Python beside it."""

    def write(text: str = "", rows: list[Any] | None = None, python: str = "", head: str = "") -> TaskSpec:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in (rows if rows is not None else [ROW])]
        (tmp_path / "questions.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (tmp_path / "helper.py").write_text(python, encoding="utf-8")
        path = tmp_path / "mine.yaml"
        path.write_text((head or "task: mine\ndataset_path: questions.jsonl\n") + text, encoding="utf-8")
        return TaskSpec.from_file(path)

    return write


def only(spec: TaskSpec, **options: Any) -> Sample:
    [sample] = spec.samples("test", **options)
    assert isinstance(sample, Sample), sample
    return sample


def failure(spec: TaskSpec) -> FailedSample:
    [sample] = spec.samples("test")
    assert isinstance(sample, FailedSample), sample
    return sample


def test_two_lines_are_a_task(make: Any, tmp_path: Path) -> None:
    spec = make()
    sample = only(spec)
    assert (sample.task, sample.id, sample.cluster, sample.target) == ("mine", "q1", "a.png", "red")
    assert sample.prompt == sample.question == "What color is the star?"
    assert sample.media == (Media(kind="image", path=str(tmp_path / "a.png")),)
    assert (spec.kind, spec.generated, spec.metrics, spec.headline) == ("local", False, ("exact_match",), "exact_match")
    assert spec.chance is None
    assert spec.score(sample, " Red. ").scores == {"exact_match": 1.0}
    assert spec.score(sample, "").unparsed
    assert only(spec, data_dir="/media").media[0].path == "/media/a.png"


def test_media_columns(make: Any, tmp_path: Path) -> None:
    base = {"question": "q", "answer": "a"}
    rows = [
        {**base, "id": 1, "images": ["a.png", "b/c.png"]},
        {**base, "id": 2, "video": "/abs/v.mp4"},
        {**base, "id": 3, "pdf": "d.pdf", "page": 2},
        {**base, "id": 4, "pdf": "d.pdf", "page": [0, 3]},
        {**base, "id": 5, "pdf": "d.pdf"},
        {**base, "id": 6, "image": None, "video": "v.mp4"},
    ]
    found = [[(m.kind, m.path, m.page) for m in sample.media] for sample in make(rows=rows).samples("test")]
    here = str(tmp_path)
    assert found == [
        [("image", f"{here}/a.png", None), ("image", f"{here}/b/c.png", None)],
        [("video", "/abs/v.mp4", None)],
        [("page", f"{here}/d.pdf", 2)],
        [("page", f"{here}/d.pdf", 0), ("page", f"{here}/d.pdf", 3)],
        [("page", f"{here}/d.pdf", 0)],
        [("video", f"{here}/v.mp4", None)],
    ]
    renamed = make("metadata: {core_bench: {media: {image: photo}}}\n", [{**base, "photo": "p.png", "video": "v.mp4"}])
    assert [medium.path for medium in only(renamed).media] == [f"{here}/p.png"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image": None}, "no image, images, video or pdf"),
        ({"image": 3}, "image: expected a path"),
        ({"image": "http://x/y.png"}, "nothing is downloaded"),
        ({"images": "a.png"}, "expected a list"),
        ({"pdf": "d.pdf", "page": -1}, "0-based"),
        ({"pdf": "d.pdf", "page": "3"}, "0-based"),
        ({"question": None}, "expected text"),
        ({"question": "  "}, "expected text"),
        ({"question": "\ud800"}, "surrogate"),
        ({"id": ["x"]}, "id: expected text"),
        ({"evidence": [{"box": [0, 0, 0, 5]}]}, "box"),
        ({"evidence": [{"box": [0, 0, 5]}]}, "box"),
        ({"evidence": [{"medium": 1}]}, "medium 1"),
        ({"evidence": [{"medum": 0}]}, "expected an object"),
        ({"evidence": "here"}, "expected a list"),
    ],
)
def test_a_bad_row_is_a_failure_with_its_reason(make: Any, change: dict[str, Any], said: str) -> None:
    failed = failure(make(rows=[{**ROW, **change}]))
    assert said in failed.reason
    assert "\n" not in failed.reason


def test_rows_without_columns_or_json_do_not_stop_the_others(make: Any) -> None:
    rows: list[Any] = [ROW, "{broken", "[1]", '{"answer": NaN}', {"id": "q2", "image": "a.png", "answer": "x"}, ""]
    good, broken, array, nan, no_question = make(rows=rows).samples("test")
    assert isinstance(good, Sample)
    assert [(row.id, row.cluster) for row in (broken, array, nan)] == [(f"row {n}", "") for n in (2, 3, 4)]
    assert "questions.jsonl:2: not JSON" in broken.reason
    assert "questions.jsonl:3: expected a JSON object" in array.reason
    assert "NaN" in nan.reason
    assert (no_question.id, no_question.cluster) == ("q2", "a.png")
    assert "no column 'question'" in no_question.reason


def test_ids(make: Any) -> None:
    rows = [{key: value for key, value in ROW.items() if key != "id"}] * 2
    assert [sample.id for sample in make(rows=rows).samples("test")] == ["row 1", "row 2"]
    assert [sample.id for sample in make(rows=[{**ROW, "id": 0}, {**ROW, "id": 7}]).samples("test")] == ["0", "7"]
    with pytest.raises(UserError, match="id 'q1' is given 2 times"):
        make(rows=[ROW, ROW]).samples("test")
    assert "no column 'key'" in failure(make("metadata: {core_bench: {id: key}}\n")).reason


def test_limit_and_empty(make: Any) -> None:
    rows = [{**ROW, "id": number} for number in range(5)]
    assert [sample.id for sample in make(rows=rows).samples("test", limit=2)] == ["0", "1"]
    with pytest.raises(UserError, match="no rows"):
        make(rows=[]).samples("test")


def test_missing_or_unreadable_rows(make: Any, tmp_path: Path) -> None:
    spec = make()
    (tmp_path / "questions.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="UTF-8"):
        spec.samples("test")
    (tmp_path / "questions.jsonl").unlink()
    with pytest.raises(UserError, match=r"questions\.jsonl"):
        spec.samples("test")


def test_data_files_by_split(make: Any, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps([{**ROW, "id": "o"}]))
    head = "task: mine\ndataset_path: json\ndataset_kwargs: {data_files: {test: questions.jsonl, find: other.json}}\n"
    spec = make("metadata: {core_bench: {splits: {detect: find}}}\n", head=head)
    assert (spec.split_for("detect"), spec.split_for("dense"), spec.kind) == ("find", "test", "local")
    assert [sample.id for sample in spec.samples("find")] == ["o"]
    assert only(spec).id == "q1"
    with pytest.raises(UserError, match="split 'val': expected one of test, find"):
        spec.samples("val")


def test_texts(make: Any) -> None:
    text = """doc_to_text: "Look. {question} Or {{ question }}? {a b}"
doc_to_target: "{answer}!"
metadata: {core_bench: {question: question, phrase: what, cluster: where, system: Short, prime: "Best ("}}
"""
    sample = only(make(text, [{**ROW, "what": "the star", "where": "w"}]))
    assert sample.prompt == "Look. What color is the star? Or What color is the star?? {a b}"
    assert (sample.question, sample.phrase, sample.cluster) == (ROW["question"], "the star", "w")
    assert (sample.target, sample.system, sample.prime) == ("red!", "Short", "Best (")
    assert "part of the question" in failure(make(text, [{**ROW, "what": "the ring", "where": "w"}])).reason
    # A column's own braces are text: nothing is looked up or evaluated in them.
    assert only(make('doc_to_text: "{question}"\n', [{**ROW, "question": "{answer} {0.x}"}])).prompt == "{answer} {0.x}"


def test_evidence_column(make: Any) -> None:
    cells = [{"box": [1, 2, 3, 4.5]}, {"medium": 1, "frame": 7}]
    row = {**ROW, "image": None, "images": ["a.png", "b.png"], "evidence": cells}
    expected = (Region(medium=0, box=(1.0, 2.0, 3.0, 4.5)), Region(medium=1, frame=7))
    assert only(make(rows=[row])).evidence == expected
    moved = {**row, "evidence": None, "where": cells}
    assert only(make("metadata: {core_bench: {evidence: where}}\n", [moved])).evidence == expected
    assert only(make(rows=[moved])).evidence == ()


def test_choices(make: Any) -> None:
    text = 'doc_to_text: "{question}\\n{options}"\nmetadata: {core_bench: {choices: options_of}}\n'
    spec = make(text, [{**ROW, "options_of": ["red", " blue "]}])
    sample = only(spec)
    assert sample.prompt == "What color is the star?\nA. red\nB. blue"
    assert sample.choices == ("red", "blue")
    assert (spec.metrics, spec.score(sample, "(A)").scores) == (("accuracy",), {"accuracy": 1.0})
    assert (spec.score(sample, "hm").scores, spec.score(sample, "hm").unparsed) == ({"accuracy": 0.0}, True)
    assert "choices" in failure(make(text, [{**ROW, "options_of": ["blue", "green"]}])).reason
    assert only(make("doc_to_choice: [red, 3]\n")).choices == ("red", "3")


FUNCTIONS = """
from core_bench.schema import Media, Region

def media(doc):
    return [Media(kind="video", path=doc["image"], span=(0, 5))]

def evidence(doc):
    return [Region(medium=0, frame=int(doc["frame"]))]

def listed(doc):
    return "/".join(doc["options"])

def text(doc, lmms_eval_specific_kwargs=None):
    return lmms_eval_specific_kwargs["pre"] + doc["question"]

def results(doc, results):
    return {"hits": results[0] == doc["answer"], "unparsed": results[0] == "?"}

def few(docs):
    return docs[:1]
"""
WITH_FUNCTIONS = """doc_to_text: !function helper.text
lmms_eval_specific_kwargs: {default: {pre: "Q: "}}
process_results: !function helper.results
process_docs: !function helper.few
metric_list: [{metric: hits, aggregation: mean, higher_is_better: true}, {metric: unparsed}]
generation_kwargs: {max_new_tokens: 5, until: ["\\n"], do_sample: false}
metadata: {core_bench: {media: !function helper.media, evidence: !function helper.evidence, chance: 0.25, frames: 7}}
"""


def test_functions(make: Any) -> None:
    spec = make(WITH_FUNCTIONS, [{**ROW, "frame": 3}, ROW], FUNCTIONS)
    sample = only(spec)
    assert (sample.media[0].span, sample.media[0].frames) == ((0, 5), 7)
    assert sample.evidence == (Region(medium=0, frame=3),)
    assert sample.prompt == "Q: What color is the star?"
    assert (spec.metrics, spec.headline, spec.chance, spec.max_new_tokens) == (("hits",), "hits", 0.25, 5)
    assert spec.score(sample, "red\nand more").scores == {"hits": 1.0}
    assert spec.score(sample, "?") == spec.score(sample, "?\n")
    assert spec.score(sample, "?").unparsed
    assert "helper.evidence: KeyError: 'frame'" in failure(make(WITH_FUNCTIONS, [ROW], FUNCTIONS)).reason


def test_a_prompt_function_gets_the_column_options_as_it_is(make: Any) -> None:
    text = "doc_to_text: !function helper.listed\nmetadata: {core_bench: {choices: options}}\n"
    row = {**ROW, "options": ["A. red", "B. blue"], "answer": "A"}
    assert only(make(text, [row], FUNCTIONS)).prompt == "A. red/B. blue"


def test_functions_are_imported_only_when_called(make: Any, tmp_path: Path) -> None:
    spec = make("process_results: !function helper.f\nmetric_list: [{metric: x}]\n", python="1/0")
    assert only(spec).id == "q1"
    with pytest.raises(ZeroDivisionError):
        spec.score(only(spec), "x")


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("def g(doc, results): return {}", "no function 'f' in helper"),
        ("def f(doc, results): return {}", "expected a dict with x"),
        ("def f(doc, results): return 1.0", "got float"),
        ("def f(doc, results): return {'x': 'no'}", "expected a number"),
        ("def f(doc, results): return {'x': float('nan')}", "expected a number"),
        ("def f(:", "helper.py:1"),
        ("import no_such_module_anywhere", "no_such_module_anywhere"),
    ],
)
def test_a_scoring_function_that_does_not_fit(make: Any, python: str, said: str) -> None:
    spec = make("process_results: !function helper.f\nmetric_list: [{metric: x}]\n", python=python)
    with pytest.raises(UserError) as caught:
        spec.score(only(spec), "x")
    assert said in str(caught.value)
    assert "mine.yaml:3" in str(caught.value)


def test_dotted_modules_resolve(make: Any) -> None:
    text = "metadata: {core_bench: {cluster: !function core_bench.tasks.core_refcocog.cluster}}\n"
    name = "COCO_train2014_000000380440_491042.jpg"
    assert only(make(text, [{**ROW, "file_name": name}])).cluster == "COCO_train2014_000000380440.jpg"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("doc_to_txt: q\n", 3, "did you mean 'doc_to_text'"),
        ("\n\nzzz: q\n", 5, "known: task"),
        ("metadata:\n  core_bench:\n    evidnce: q\n", 5, "did you mean 'evidence'"),
        ("metadata:\n  core_bench: 3\n", 4, "expected a mapping"),
        ("metadata: 3\n", 3, "expected a mapping"),
        ("a: [\n", 4, "not valid YAML"),
        ("a: b: c\n", 3, "not valid YAML"),
        ("doc_to_text: !other x\n", 3, "not valid YAML"),
        ("doc_to_text: !function noname\n", 3, "module.name"),
        ("doc_to_text: !function [a]\n", 3, "module.name"),
        ("doc_to_text: a\ndoc_to_text: b\n", 4, "given twice"),
        ("3: x\n", 3, "text key"),
        ("process_results: accuracy\n", 3, "!function"),
        ("process_results: !function helper.f\n", 3, "metric_list"),
        ("metric_list: [{metric: bleu}]\n", 3, "exact_match"),
        ("metric_list:\n  - metric: accuracy\n    agregation: mean\n", 5, "did you mean 'aggregation'"),
        ("metric_list:\n  - metric: accuracy\n    aggregation: max\n", 5, "expected mean"),
        ("metric_list: accuracy\n", 3, "expected a list"),
        ("output_type: loglikelihood\n", 3, "generate_until"),
        ("generation_kwargs:\n  max_new_tokens: 0\n", 4, "at least 1"),
        ("generation_kwargs:\n  temperature: 0.7\n", 4, "greedy"),
        ("generation_kwargs:\n  max_tokens: 7\n", 4, "did you mean 'max_new_tokens'"),
        ("doc_to_text: '{% if x %}'\n", 3, "placeholders"),
        ("doc_to_text: '{{ a.b }}'\n", 3, "placeholders"),
        ("metadata: {core_bench: {chance: 12.5}}\n", 3, "from 0 to 1"),
        ("metadata: {core_bench: {frames: 0}}\n", 3, "whole number above 0"),
        ("metadata: {core_bench: {frames: true}}\n", 3, "whole number above 0"),
        ("metadata: {core_bench: {splits: {detekt: a}}}\n", 3, "did you mean 'detect'"),
        ("metadata: {core_bench: {splits: {detect: a, dense: b}}}\n", 3, "data_files"),
        ("metadata: {core_bench: {default_for: [dens]}}\n", 3, "did you mean 'dense'"),
        ("metadata: {core_bench: {media: {picture: a}}}\n", 3, "one of image"),
        ("metadata: {core_bench: {media: image}}\n", 3, "a mapping of columns"),
        ("metadata: {core_bench: {headline: f1}}\nmetric_list: [{metric: accuracy}]\n", 3, "one of accuracy"),
        ("include: nowhere.yaml\n", 3, "no such file"),
    ],
)
def test_a_mistake_in_a_file_names_file_and_line(make: Any, text: str, line: int, said: str) -> None:
    with pytest.raises(UserError) as caught:
        make(text)
    assert f"mine.yaml:{line}: " in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "head", ["- a\n", "", "dataset_path: x\n", "task: a b\ndataset_path: x\n", "task: a\n", "task: [a]\n"]
)
def test_a_file_that_is_no_task(make: Any, head: str) -> None:
    with pytest.raises(UserError, match=r"mine\.yaml"):
        make(head=head or "# nothing\n")


def test_includes_merge_and_keep_their_places(make: Any, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    (folder / "pick.py").write_text("def f(doc): return 'picked'\n")
    base = "dataset_path: rows.jsonl\ndoc_to_target: !function pick.f\ntask_alias: Base\n"
    base += "metadata: {core_bench: {chance: 0.1}}\n"
    (folder / "_base.yaml").write_text(base)
    spec = make(head="task: mine\ninclude: base/_base.yaml\ntask_alias: Mine\n")
    assert (spec.keys["task_alias"], spec.chance) == ("Mine", 0.1)
    assert only(spec).target == "picked"
    (folder / "_base.yaml").write_text(base + "zzz: 1\n")
    with pytest.raises(UserError, match=r"_base\.yaml:5: unknown key zzz"):
        make(head="task: mine\ninclude: base/_base.yaml\n")
    (folder / "_base.yaml").write_text("include: ../mine.yaml\n")
    with pytest.raises(UserError, match="includes itself"):
        make(head="task: mine\ninclude: base/_base.yaml\n")


def test_tasks_by_name_path_and_folder(make: Any, tmp_path: Path) -> None:
    make()
    (tmp_path / "_base.yaml").write_text("zzz: not a task\n")
    path = str(tmp_path / "mine.yaml")
    assert [spec.name for spec in load_tasks([path, "core_refcocog_tiny"], "dense", True)] == [
        "mine",
        "core_refcocog_tiny",
    ]
    assert [spec.name for spec in load_tasks([str(tmp_path)], "dense", True)] == ["mine"]
    with pytest.raises(UserError, match="defined twice"):
        load_tasks([path, str(tmp_path)], "dense", True)
    with pytest.raises(UserError, match="did you mean 'core_refcocog_tiny'"):
        load_tasks(["core_refcocogtiny"], "dense", True)
    with pytest.raises(UserError, match=r"nowhere\.yaml"):
        load_tasks([str(tmp_path / "nowhere.yaml")], "dense", True)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match="found none"):
        load_tasks([str(empty)], "dense", True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("generated", [True, False])
def test_defaults_of_every_mode(mode: str, generated: bool) -> None:
    defaults = {
        "detect": {"refcocog", "vidstg", "mmlongbench_doc", "mmdocir"},
        "ablate": {"refcocog", "mmlongbench_doc", "videomme"},
        "hybrid": {"mlvu", "videomme"},
        "dense": {"mlvu", "videomme"},
    }
    found = {spec.name for spec in load_tasks(None, mode, generated=generated)}
    shipped = registry.known_tasks()
    real = {name for name in shipped if not shipped[name].generated and mode in shipped[name].default_for}
    assert found == ({f"core_{name}_tiny" for name in defaults[mode]} if generated or not real else real)
    assert {name.removeprefix("core_") for name in real} <= defaults[mode] | {f"{name}_dev" for name in defaults[mode]}


def test_a_tag_stands_for_its_tasks() -> None:
    def names(*words: str) -> set[str]:
        found = [spec.name for spec in load_tasks(list(words), "dense", True)]
        assert len(set(found)) == len(found)
        return set(found)

    every = names("core_all")
    assert every >= {"core_refcocog", "core_vidstg", "core_mmlongbench_doc", "core_mmlongbench", "core_mmdocir"}
    assert every == {name for name, spec in registry.known_tasks().items() if not spec.generated}
    assert names("core_grounding") == {"core_refcocog", "core_vidstg"}
    assert names("core_grounding") | names("core_long_context") == every
    assert not names("core_grounding") & names("core_long_context")
    assert names("core_refcocog", "core_grounding", "core_all") == every
    with pytest.raises(UserError, match="did you mean 'core_grounding'"):
        names("core_groundin")


def test_tags_that_cannot_be_meant(make: Any) -> None:
    assert make("tag: mine\n").tags == ("mine",)
    assert make("tag: [one, two]\n").tags == ("one", "two")
    with pytest.raises(UserError, match=r"mine\.yaml:3: tag: expected a name or a list of names, got 3"):
        make("tag: 3\n")


GET = "get: {what: w, from: f, folder: F, size: s, licence: l}"


@pytest.mark.parametrize(
    ("core", "said"),
    [
        ("files: {test: [a.json]}", "files: expected together with get"),
        (GET, "get: expected together with files"),
        (f"files: {{test: []}}, {GET}", "files: expected a list of file names, got []"),
        (f"files: {{test: [[3]]}}, {GET}", "files: expected a list of file names, got [[3]]"),
        ("files: {test: [a.json]}, get: {what: w}", "get.from: expected text, got None"),
        (f"files: {{test: [a.json]}}, {GET[:-1]}, where: x}}", "unknown key metadata.core_bench.get.where"),
        ("defects: 3", "defects: expected a !function, got 3"),
        ("ranking: candidates", "ranking: expected a !function, got 'candidates'"),
        ("table_has_media: maybe", "table_has_media: expected true or false, got 'maybe'"),
        ("detect_share: 2", "detect_share: expected a number between 0 and 1, got 2"),
        ("dpi: 35", "dpi: expected a whole number from 36 to 600, got 35"),
        ("dpi: 601", "dpi: expected a whole number from 36 to 600, got 601"),
        ("dpi: 72.0", "dpi: expected a whole number from 36 to 600, got 72.0"),
        ("dpi: true", "dpi: expected a whole number from 36 to 600, got True"),
    ],
)
def test_files_that_cannot_be_meant_name_their_line(make: Any, core: str, said: str) -> None:
    with pytest.raises(UserError, match=r"mine\.yaml:3: ") as caught:
        make(f"metadata: {{core_bench: {{{core}}}}}\n")
    assert said in str(caught.value)


def test_files_are_found_in_either_folder(make: Any, tmp_path: Path) -> None:
    text = f"metadata: {{core_bench: {{files: {{test: [[x.jsonl, b/*.jsonl], z.json]}}, {GET}}}}}\n"
    spec = make(text, head="task: mine\ndataset_path: some/where\n")
    data = tmp_path / "data"
    with pytest.raises(UserError, match=r"no x\.jsonl or b/\*\.jsonl in .*/data/F or .*/data: get w from f"):
        spec.samples("test", data_dir=str(data))
    for base in (data, data / "F"):  # the folder of the data set wins
        (base / "b").mkdir(parents=True)
        (base / "b/one.jsonl").write_text(json.dumps({**ROW, "id": f"{base.name}-1"}) + "\n")
        (base / "z.json").write_text(json.dumps([{**ROW, "id": f"{base.name}-2"}]))
        (base / "a.png").touch()
        found = spec.samples("test", data_dir=str(data))
        assert [sample.id for sample in found] == [f"{base.name}-1", f"{base.name}-2"]
        assert [sample.doc["source_file"] for sample in found] == ["one.jsonl", "z.json"]
    (data / "F/a.png").unlink()
    with pytest.raises(UserError, match=r"none of 1 media files is there, among them .*/data/F/a\.png: get w from f"):
        spec.samples("test", data_dir=str(data))
    with pytest.raises(UserError, match="split 'train': expected one of test"):
        spec.samples("train", data_dir=str(data))


def test_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'qwen3vl'"):
        registry.model_class("qwen3-vl")
    monkeypatch.setattr(registry, "_PACKAGE", tmp_path)
    with pytest.raises(UserError, match="no checkpoint is bundled"):
        registry.bundled_checkpoint("qwen3vl")
    folder = tmp_path / "bundled" / "qwen3vl"
    folder.mkdir(parents=True)
    (folder / "config.json").touch()
    assert registry.bundled_checkpoint("qwen3vl") == folder


def test_the_generated_refcocog_task(tmp_path: Path) -> None:
    [spec] = load_tasks(["core_refcocog_tiny"], "detect", True)
    splits = {mode: spec.split_for(mode) for mode in MODES}
    assert splits == {"detect": "detect", "ablate": "eval", "dense": "long", "hybrid": "long"}
    found = {split: spec.samples(split, data_dir=str(tmp_path), limit=8) for split in ("detect", "eval")}
    for sample in found["detect"]:
        assert isinstance(sample, Sample)
        assert sample.phrase is not None
        assert sample.question in sample.prompt
        assert sample.phrase in sample.question
        x, y, width, height = sample.doc["bbox"]
        assert sample.evidence == (Region(medium=0, box=(x, y, x + width, y + height)),)
        assert Path(sample.media[0].path).is_file()
        assert spec.score(sample, f" {sample.target}.").scores == {"accuracy": 1.0}
        wrong = "red" if sample.target != "red" else "blue"
        assert (spec.score(sample, wrong).scores, spec.score(sample, wrong).unparsed) == ({"accuracy": 0.0}, False)
        assert (spec.score(sample, "what").scores, spec.score(sample, "what").unparsed) == ({"accuracy": 0.0}, True)
    clusters = [{sample.cluster for sample in samples} for samples in found.values()]
    assert not clusters[0] & clusters[1]


def test_refcocog_boxes_of_real_rows() -> None:
    from core_bench.tasks import core_refcocog

    doc = {"bbox": [59.0499992, 10.0, 20.5, 30.0], "image": "x.jpg"}
    assert core_refcocog.evidence(doc)[0].box == pytest.approx((59.05, 10.0, 79.55, 40.0))
    with pytest.raises(ValueError, match="positive area"):
        core_refcocog.evidence({"bbox": [1, 1, 0, 5]})


def test_rows_of_a_hugging_face_folder(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from PIL import Image

    monkeypatch.setenv("CORE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    pictures = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    rows = {"question_id": ["a", "b"], "image": pictures, "question": ["q", "r"], "answer": ["red", "blue"]}
    table = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    (tmp_path / "set").mkdir()
    table.to_parquet(str(tmp_path / "set" / "test-0.parquet"))
    spec = make("metadata: {core_bench: {id: question_id}}\n", head="task: mine\ndataset_path: set\n")
    assert spec.kind == "local"
    first, second = spec.samples("test")
    assert [first.id, second.id] == ["a", "b"]
    assert Image.open(first.media[0].path).getpixel((0, 0)) == (255, 0, 0)
    assert "/" not in first.cluster
    assert first.cluster != second.cluster
    assert len(spec.samples("test", limit=1)) == 1
    with pytest.raises(UserError, match=r"mine\.yaml:2: cannot load the data set 'set', split 'val'"):
        spec.samples("val")


def test_rows_of_the_hub_say_of_which_commit_they_are(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setenv("CORE_BENCH_CACHE", str(tmp_path / "cache"))
    commit = "6820cb57b11ab5cbd5358277a139f5d9b6b20118"
    for name in (commit, "0123456789abcdef"):  # the latter, as of a local folder, names no commit
        table = datasets.Dataset.from_dict({"id": ["1"], "image": ["a.png"], "question": ["q"], "answer": ["a"]})
        table.save_to_disk(tmp_path / "some___where" / "0.0.0" / name)

    asked: list[Any] = []

    def load(path: str, name: str | None, **options: Any) -> Any:
        asked.append(options)
        return datasets.load_from_disk(
            tmp_path / "some___where" / "0.0.0" / (options.get("revision") or "0123456789abcdef")
        )

    monkeypatch.setattr(datasets, "load_dataset", load)
    pinned = only(make(head=f"task: mine\ndataset_path: some/where\ndataset_kwargs: {{revision: {commit}}}\n"))
    assert pinned.doc["source_revision"] == commit
    assert asked == [{"split": "test", "revision": commit}]
    assert "source_revision" not in only(make(head="task: mine\ndataset_path: some/where\n")).doc


def test_pages_are_rendered_as_the_task_says(make: Any) -> None:
    rows = [{"id": "1", "pdf": "a.pdf", "image": "a.png", "question": "q", "answer": "a"}]
    python = (
        "from core_bench.schema import Region\ndef where(doc, dpi): return [Region(medium=1, box=(0, 0, dpi, dpi))]\n"
    )
    core = "metadata: {core_bench: {evidence: !function helper.where%s}}\n"
    for text, dpi in ((core % ", dpi: 72", 72), (core % "", 144)):
        sample = only(make(text, rows=rows, python=python))
        assert [medium.dpi for medium in sample.media] == [144, dpi], "a picture has none of its own"
        assert sample.evidence == (Region(medium=1, box=(0, 0, dpi, dpi)),)


def test_samples_carry_the_defects_of_their_records(make: Any) -> None:
    python = "def defects(doc): return ['are old'] * (doc['year'] < 2000) + ['are long'] * (doc['question'] > 'r')\n"
    rows: list[Any] = [
        {**ROW, "id": "1", "year": 2000},
        {**ROW, "id": "2", "year": 1990, "question": "s"},
        {**ROW, "id": "3", "year": 1990, "image": None},
        {**ROW, "id": "4"},  # the function stumbles over it
        "no row",
    ]
    said: list[str] = []
    spec = make("metadata: {core_bench: {defects: !function helper.defects}}\n", rows=rows, python=python)
    found = spec.samples("test", report=said.append)
    assert [sample.defects for sample in found] == [(), ("are old", "are long"), ("are old",), (), ()]
    assert isinstance(found[2], FailedSample)
    assert said == ["mine: defective records among the first 5 rows: 2 are old; 1 are long"]


@pytest.mark.parametrize(
    ("option", "said"),
    [("trust_remote_code: true", "never run"), ("video: true", "expected revision"), ("cache_dir: x", "cache_dir")],
)
def test_options_of_a_hub_data_set_that_are_refused(make: Any, option: str, said: str) -> None:
    spec = make(head=f"task: mine\ndataset_path: nobody/nothing\ndataset_kwargs: {{{option}}}\n")
    with pytest.raises(UserError, match=said):
        spec.samples("test")


def test_real_media_of_three_kinds(genuine_data: Path, make: Any) -> None:
    media = genuine_data / "media"
    base = {"question": "What is shown?", "answer": "x"}
    rows = [
        {**base, "id": "photo", "image": str(media / "coco_000000000785.jpg")},
        {**base, "id": "video", "video": str(media / "vid_bigbuckbunny.mp4")},
        {**base, "id": "page", "pdf": str(media / "doc_4_pages.pdf"), "page": 3},
    ]
    found = make(rows=rows).samples("test")
    assert [sample.media[0].kind for sample in found] == ["image", "video", "page"]
    assert all(Path(sample.media[0].path).is_file() for sample in found)
