"""The text by which a conversation grows: what a chat template writes after an answer.

The answer's own tokens stay as they were sampled, so only the text behind them is wanted. Where the
template writes the whole conversation as it was, that is the rest of it. Where it writes earlier
messages in another way, it is found on a conversation without reasoning, which is the part that
templates drop.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from completions.chat.prompt_text import PromptText
from completions.chat.template import ChatTemplateError

Message = Mapping[str, object]
Render = Callable[[Sequence[Message], bool], PromptText]
"""Renders messages: all of them, after which the answer begins, or (false) only some of the first.
Raises ChatTemplateError."""
_REASONING = ("reasoning_content", "thinking")


class Continuation(NamedTuple):
    text: PromptText
    """What comes after the text so far."""
    whole: PromptText
    """The conversation as the template writes it now."""
    differs_at: int | None
    """The first character of the text so far that the template writes in another way."""


def continue_text(
    render: Render,
    so_far: str,
    messages: Sequence[Message],
    num_past: int,
    ends: Sequence[str],
    *,
    is_ended: bool,
) -> Continuation:
    """Return how the conversation goes on after its first `num_past` messages, whose text is
    `so_far`. `is_ended` says that the last of its tokens ended the answer; `ends` are the texts of
    special tokens, one of which the template writes there. Raises ChatTemplateError."""
    whole = render(messages, True)
    if whole.startswith(so_far):
        return Continuation(whole[len(so_far) :], whole, None)
    plain = [
        {name: value for name, value in message.items() if name not in _REASONING}
        for message in messages
    ]
    before, after = render(plain[:num_past], False), render(plain, True)
    if not after.startswith(before):
        raise ChatTemplateError(
            "the model's chat template does not write messages one after another, so that no "
            "text continues the tokens of this session"
        )
    tail = len(before.rstrip())
    end = max((each for each in ends if before[:tail].endswith(each)), key=len, default="")
    closing = before[tail if is_ended else tail - len(end) :]
    pairs = zip(so_far, whole, strict=False)
    differs_at = next((i for i, (one, other) in enumerate(pairs) if one != other), len(whole))
    return Continuation(closing + after[len(before) :], whole, differs_at)
