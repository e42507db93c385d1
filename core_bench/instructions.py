"""Prompts of the data sets, worded as their official code words them where there is one.

Tasks and the training of the bundled models read them here, so that both mean the same text.
"""

from __future__ import annotations

from collections.abc import Sequence

from core_bench.answers import letter_of

ONE_WORD = "Answer with one word."

# Video-MME (official prompt; the version with subtitles adds a block before it)
VIDEOMME = (
    "Select the best answer to the following multiple-choice question based on the video."
    " Respond with only the letter (A, B, C, or D) of the correct option.\n{question}\n{options}\nThe best answer is:"
)

# MLVU (official prompt of the multiple-choice tasks)
MLVU_SYSTEM = (
    "Carefully watch this video and pay attention to every detail."
    " Based on your observations, select the best option that accurately addresses the question."
)
MLVU = "Question: {question}\nOptions:\n{options}\nOnly give the best option."
MLVU_PRIME = "Best Option: ("

# RefCOCOg: the wording of Qwen3-VL's grounding examples; no harness has an official one for all families.
REFCOCOG = "Locate the object that this describes: {expression}\nOutput its bbox coordinates using JSON format."

# MMLongBench-Doc asks the bare question and lets an LLM shorten the reply; a short answer is asked for here instead.
MMLONGBENCH_DOC = '{question}\nAnswer with a word or a number, or with "Not answerable" if the document does not say.'
NOT_ANSWERABLE = "Not answerable"

# MMLongBench, 8K to 128K (official prompt; there, each page follows a label of its document and number)
MMLONGBENCH = (
    "You are given a document with text and images, and a question. Answer the question as concisely as you can, using"
    " a single phrase or sentence if possible. If the question cannot be answered based on the information in the"
    " article, write 'Not answerable.' Write your answer in the following format:\nAnswer: [answer]\n\n"
    "Question: Based on Document {document}, answer the following question. {question}\nAnswer:"
)

# VidSTG has no official prompt for a generative model.
VIDSTG = "Find the moment of the video that shows this: {query}\nAnswer with its start and its end in seconds."
VIDSTG_TUBE = (
    "Find the moment of the video that shows this, and where: {query}\nOutput its start and its end in seconds, then"
    ' the bounding box at several times as a JSON list of objects with "time" in seconds and "bbox_2d".'
)


def lettered_dots(options: Sequence[str]) -> str:
    """The options as Video-MME writes them: "A. red" and so on, one a line."""
    return "\n".join(f"{letter_of(number)}. {option}" for number, option in enumerate(options))


def lettered_brackets(options: Sequence[str]) -> str:
    """The options as MLVU writes them: "(A) red" and so on, one a line."""
    return "\n".join(f"({letter_of(number)}) {option}" for number, option in enumerate(options))
