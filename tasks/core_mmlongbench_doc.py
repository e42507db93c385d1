"""MMLongBench-Doc: records of `samples.json` with the PDF files in `documents/` beside it, as samples.

A document is shown as its pages in order. Pages of evidence are 1-based in the records, and some are wrong: a record
that names a page which is not shown has no evidence here, so it is scored, and `detect` reports it as a failure.
Pages that are named twice or out of order are meant as they are.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core_bench.instructions import MMLONGBENCH_DOC, NOT_ANSWERABLE
from core_bench.media import page_sizes
from core_bench.schema import Media, Region
from core_bench.scoring_mmlongbench import extract, score

MOST_PAGES = 120  # as the official pipeline
FOLDERS = ("documents", "data/documents")


def with_ids(docs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The records, which have no name, with an `id`: the document and the number of the question on it, from 1."""
    asked: dict[str, int] = {}
    found = []
    for doc in docs:
        name = str(doc.get("doc_id"))
        asked[name] = asked.get(name, 0) + 1
        found.append({**doc, "id": f"{name}-{asked[name]}"})
    return found


def media(doc: Mapping[str, Any], base: Path) -> list[Media]:
    path = _file(doc, base)
    return [Media(kind="page", path=path, page=page) for page in range(_pages_shown(base / path))]


def evidence(doc: Mapping[str, Any], base: Path) -> list[Region]:
    """The whole pages of `evidence_pages`; none where one of them is not shown."""
    pages = ast.literal_eval(doc["evidence_pages"])
    if not isinstance(pages, list) or not all(isinstance(page, int) for page in pages):
        raise ValueError(f"evidence_pages: expected a list of page numbers, got {doc['evidence_pages']!r}")
    shown = _pages_shown(base / _file(doc, base))
    if not all(1 <= page <= shown for page in pages):
        return []
    return [Region(medium=page - 1) for page in sorted(set(pages))]


def defects(doc: Mapping[str, Any], base: Path) -> list[str]:
    """What is wrong with the record's pages of evidence, by kind."""
    pages = ast.literal_eval(doc["evidence_pages"])
    found = []
    if 0 in pages:
        found.append("name page 0, pages count from 1 (no evidence)")
    if any(page > len(page_sizes(base / _file(doc, base))) for page in pages):
        found.append("name a page beyond the document (no evidence)")
    if not pages and doc["answer"] != NOT_ANSWERABLE:
        found.append("have an answer and no page of evidence (no evidence)")
    if len(set(pages)) < len(pages):
        found.append("name a page twice (counted once)")
    elif sorted(pages) != pages:
        found.append("name pages out of order (sorted)")
    return found


def _file(doc: Mapping[str, Any], base: Path) -> str:
    """Path of the document from `base`: the repository keeps them in data/documents, the hub in documents."""
    return next((f"{folder}/{doc['doc_id']}" for folder in FOLDERS if (base / folder).is_dir()), str(doc["doc_id"]))


def _pages_shown(path: Path) -> int:
    return min(len(page_sizes(path)), MOST_PAGES)


def prompt(doc: Mapping[str, Any]) -> str:
    return MMLONGBENCH_DOC.format(question=doc["question"])


def results(doc: Mapping[str, Any], predictions: Sequence[str]) -> dict[str, float | None]:
    """The official score of the answer that rules read from the reply.

    `recall` is its mean over the questions that have an answer, `precision` over those that got one; the official F1
    is the harmonic mean of these two means.
    """
    return _scores(doc, predictions[0])


def results_with_f1(doc: Mapping[str, Any], predictions: Sequence[str]) -> dict[str, float | None]:
    """The same, by the names under which a record gives the F1 of the two means too."""
    scores = _scores(doc, predictions[0])
    return {"f1_recall": scores.pop("recall"), "f1_precision": scores.pop("precision"), **scores}


def _scores(doc: Mapping[str, Any], reply: str) -> dict[str, float | None]:
    said = extract(reply, doc["answer_format"])
    value = 0.0 if said is None else score(doc["answer"], said, doc["answer_format"])
    answerable = doc["answer"] != NOT_ANSWERABLE
    return {
        "acc": value,
        "recall": value if answerable else None,
        "precision": None if said == NOT_ANSWERABLE else value * answerable,
        "unparsed": float(said is None),
    }
