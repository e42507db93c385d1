"""MMLongBench (EdinburghNLP): questions about documents of 8K to 128K tokens, given as pictures of pages.

A row's pages may come from several documents; those of evidence (`ans_page_list`) are 0-based pages of the original
document, not places in `page_list`, and are found by the pictures' names, "<document>/<document>_page<number>.jpg".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from core_bench.instructions import MMLONGBENCH
from core_bench.schema import Media, Region
from core_bench.scoring_docqa import after_prefix, score

FOLDERS = ("mmlb_image", "mmlb_image/documentQA")
LENGTHS = ("K8", "K16", "K32", "K64", "K128")
_PAGE = re.compile(r"page(\d+)\.\w+$")


def rows(docs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with an `item` of their file's name and their id: the lengths ask the same questions."""
    return [
        {**doc, "item": f"{PurePosixPath(str(doc.get('source_file'))).stem}-{doc.get('id', number)}"}
        for number, doc in enumerate(docs, start=1)
    ]


def media(doc: Mapping[str, Any], base: Path) -> list[Media]:
    """The pages in the order given."""
    pages = doc["page_list"]
    if not isinstance(pages, list) or not pages or not all(isinstance(page, str) for page in pages):
        raise ValueError(f"page_list: expected paths of pictures, got {pages!r}")
    folder = next((name for name in FOLDERS if (base / name / pages[0]).is_file()), FOLDERS[0])
    return [Media(kind="image", path=f"{folder}/{page}") for page in pages]


def evidence(doc: Mapping[str, Any]) -> list[Region]:
    """The pages of the answer; none where one of them is not shown."""
    wanted = _answer_pages(doc)
    places = _places(doc)
    if not all(page in places for page in wanted):
        return []
    return [Region(medium=place) for place in sorted(places[page] for page in set(wanted))]


def defects(doc: Mapping[str, Any]) -> list[str]:
    """What is wrong with the pages of the answer, by kind."""
    wanted, places = _answer_pages(doc), _places(doc)
    missing = any(page not in places for page in wanted)
    return ["name a page of the answer that is not shown (no evidence)"] if missing else []


def _answer_pages(doc: Mapping[str, Any]) -> list[int]:
    found = doc.get("ans_page_list") or []
    if not isinstance(found, list) or not all(isinstance(page, int) for page in found):
        raise ValueError(f"ans_page_list: expected page numbers, got {found!r}")
    return found


def _places(doc: Mapping[str, Any]) -> dict[int, int]:
    """Page of the document asked about -> its place in the prompt."""
    name = str(doc["doc_name"]).removesuffix(".pdf")
    found: dict[int, int] = {}
    for place, path in enumerate(map(PurePosixPath, doc["page_list"])):
        number = _PAGE.search(path.name)
        if number and path.parent.name.removesuffix(".pdf") == name:
            found.setdefault(int(number[1]), place)
    return found


def prompt(doc: Mapping[str, Any]) -> str:
    return MMLONGBENCH.format(document=str(doc["doc_name"])[:15], question=doc["question"])


def results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float | None]:
    """The official score of what follows "Answer:" in the reply, in all and of the row's length."""
    said = after_prefix(results[0])
    value = score(_text(doc["answer"]), said, doc["answer_format"])
    length = next((name for name in LENGTHS if PurePosixPath(str(doc["source_file"])).stem.endswith(f"_{name}")), None)
    by_length = {f"doc_qa_{name}": value if name == length else None for name in LENGTHS}
    return {"doc_qa": value, **by_length, "unparsed": float(not said)}


def _text(answer: Any) -> str:
    """The answer as text; numbers may stand as such in the files."""
    if not isinstance(answer, str | int | float) or isinstance(answer, bool):
        raise ValueError(f"answer: expected text or a number, got {answer!r}")
    return str(answer)
