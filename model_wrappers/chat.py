"""A sample's prompt through the checkpoint's own chat template, and where its question stands among the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from core_bench.errors import SampleError
from core_bench.schema import Sample

_PROMPT_MARK = "\ue000prompt\ue000"  # private-use characters: no template or question contains them


@dataclass(frozen=True)
class ChatText:
    """The rendered chat with media placeholders, and where the user's prompt starts in it (characters)."""

    text: str
    prompt_at: int


class ChatPrompts:
    """What a model wrapper does with text; it reads only the checkpoint's processor."""

    FAMILY: ClassVar[str]
    processor: Any
    checkpoint: str

    def render_chat(self, sample: Sample, content: Sequence[Mapping[str, Any]]) -> ChatText:
        """The chat with `content` (media parts), then the sample's prompt, the generation prompt and `prime`.

        The template is rendered around a mark that the prompt then replaces, so that the prompt's place is known
        exactly whatever else the template writes.
        """
        for what, text in (("prompt", sample.prompt), ("system", sample.system or ""), ("prime", sample.prime)):
            self._refuse_control_tokens(f"sample {sample.id}: its {what}", text)
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": [*content, {"type": "text", "text": _PROMPT_MARK}]}
        ]
        if sample.system is not None:
            messages.insert(0, {"role": "system", "content": [{"type": "text", "text": sample.system}]})
        rendered = self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        head, mark, tail = rendered.partition(_PROMPT_MARK)
        if not mark or _PROMPT_MARK in tail:
            raise RuntimeError(
                f"the chat template of {self.checkpoint or self.FAMILY} does not write the user's text once"
            )
        return ChatText(head + sample.prompt + tail + sample.prime, len(head))

    def adds_bos(self, text: str) -> bool:
        """Whether the tokenizer should add its special tokens: not when the template wrote the first one already."""
        bos = self.processor.tokenizer.bos_token
        return not (bos and text.startswith(bos))

    def query_spans(self, sample: Sample, chat: ChatText, ids: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Token positions of the query rules `question`, `phrase` and `last` in the prompt `ids`.

        The text after the last medium is tokenised alone with its character offsets and must equal the end of `ids`
        (a medium ends with a special token, where tokenizers always split). The last occurrence inside the prompt
        counts, so that subtitles or options which repeat the words earlier do not; tokens that overlap the text are
        in.
        """
        cut = self._after_media(chat)
        encoded = self.processor.tokenizer(chat.text[cut:], add_special_tokens=False, return_offsets_mapping=True)
        tail_ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        first = len(ids) - len(tail_ids)
        if first < 0 or list(ids[first:]) != list(tail_ids):
            raise RuntimeError("the text after the media is tokenised differently alone than inside the prompt")
        spans: dict[str, tuple[int, ...]] = {"last": (len(ids) - 1,)}
        place = 0, len(sample.prompt)
        for rule, text in (("question", sample.question), ("phrase", sample.phrase)):
            if not text:
                continue
            at = sample.prompt.rfind(text, *place)
            if at < 0:
                raise SampleError(f"sample {sample.id}: its {rule} {text!r} is not part of its prompt")
            place = at, at + len(text)
            low, high = (chat.prompt_at - cut + edge for edge in place)
            spans[rule] = tuple(first + i for i, (a, b) in enumerate(offsets) if a < high and b > low)
        return spans

    @cached_property
    def control_tokens(self) -> frozenset[str]:
        """Every string that the tokenizer turns into a special token: never allowed in a user's text."""
        tokenizer = self.processor.tokenizer
        added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
        return frozenset(token for token in added.union(tokenizer.all_special_tokens, self._placeholders) if token)

    def _refuse_control_tokens(self, what: str, text: str) -> None:
        found = sorted(token for token in self.control_tokens if token in text)
        if found:
            raise SampleError(f"{what} contains the control token {found[0]!r}, which would not be read as text")

    def _after_media(self, chat: ChatText) -> int:
        head = chat.text[: chat.prompt_at]
        ends = [head.rfind(token) + len(token) for token in self._placeholders if token in head]
        return max(ends, default=0)

    @property
    def _placeholders(self) -> tuple[str, ...]:
        tokens = (getattr(self.processor, name, None) for name in ("image_token", "video_token"))
        return tuple(token for token in tokens if token)
