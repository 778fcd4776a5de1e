"""What a template writes behind an answer's own tokens, for templates of several families."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from completions.chat.continuation import Continuation, continue_text
from completions.chat.prompt_text import PromptText
from completions.chat.template import ChatTemplateError

ENDS = ("<|im_end|>", "<|end|>", "<|return|>", "</s>")
USER, NEXT = {"role": "user", "content": "a"}, {"role": "user", "content": "b"}


def chatml(messages: Sequence[Mapping[str, Any]], is_all: bool) -> PromptText:
    """As Qwen3: thoughts are written after the last user's message only."""
    last = max(i for i, message in enumerate(messages) if message["role"] == "user")
    text = ""
    for i, message in enumerate(messages):
        thought = message.get("reasoning_content")
        thinks = f"<think>{thought}</think>" if thought and i > last else ""
        text += f"<|im_start|>{message['role']}\n{thinks}{message['content']}<|im_end|>\n"
    return PromptText(text + ("<|im_start|>assistant\n" if is_all else ""))


def go_on(
    answer: Mapping[str, Any], sampled: str, *, is_ended: bool = True, render: Any = chatml
) -> Continuation:
    so_far = render([USER], True) + sampled
    messages = [USER, {"role": "assistant", **answer}, NEXT]
    return continue_text(render, so_far, messages, 2, ENDS, is_ended=is_ended)


BEHIND = "\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"


def test_what_the_template_repeats_is_continued() -> None:
    found = go_on({"content": "yes"}, "yes<|im_end|>")
    assert (found.text, found.differs_at) == (BEHIND, None)


def test_a_cut_answer_is_closed() -> None:
    found = go_on({"content": "ye"}, "ye", is_ended=False)
    assert (found.text, found.differs_at) == ("<|im_end|>" + BEHIND, None)


@pytest.mark.parametrize(("end", "closing"), [("<|im_end|>", ""), ("", "<|im_end|>")])
def test_a_dropped_thought_is_a_drift_from_where_it_was(end: str, closing: str) -> None:
    answer = {"content": "yes", "reasoning_content": "hm"}
    found = go_on(answer, f"<think>hm</think>yes{end}", is_ended=bool(end))
    assert found.text == closing + BEHIND
    assert found.differs_at == len(chatml([USER], True))
    assert "<think>" not in found.whole


def test_other_white_space_of_a_call_is_a_drift_too() -> None:
    found = go_on({"content": '{"a": 1}'}, '{"a":1}<|im_end|>')
    assert (found.text, found.differs_at) == (BEHIND, len(chatml([USER], True)) + 5)


def test_an_answer_that_ends_with_another_token_than_the_template_has_is_not_ended_twice() -> None:
    def harmony(messages: Sequence[Mapping[str, Any]], is_all: bool) -> PromptText:
        parts = (f"<|start|>{each['role']}<|message|>{each['content']}" for each in messages)
        text = "".join(f"{part}<|end|>" for part in parts)
        return PromptText(text + ("<|start|>assistant" if is_all else ""))

    found = go_on({"content": "yes"}, "<|message|>yes<|return|>", render=harmony)
    assert found.text == "<|start|>user<|message|>b<|end|><|start|>assistant"


def test_a_template_that_cannot_go_on_is_refused() -> None:
    def last_only(messages: Sequence[Mapping[str, Any]], is_all: bool) -> PromptText:
        return PromptText(f"{len(messages)}:{messages[-1]['content']}")

    with pytest.raises(ChatTemplateError, match="one after another"):
        go_on({"content": "yes"}, "yes", render=last_only)
