"""What `reasoning_effort` and `thinking_token_budget` mean for a model."""

from dataclasses import replace
from typing import Any, TypeVar

from completions.catalog.model_files import ModelFiles
from completions.chat import template
from completions.chat.chat_style import find_chat_style
from completions.chat.reasoning import AUTO, DISABLED, ENABLED
from completions.chat.template import ChatTemplateError
from completions.exceptions import FieldError
from completions.requests.conversation import ConversationFields, Thinking

_Values = TypeVar("_Values", bound=ConversationFields[Any])
EFFORT = "reasoning_effort"
_NONE = "none"
_BUDGETS = {"minimal": 512, "low": 2_048, "medium": 8_192, "high": None}
"""Most tokens of reasoning by effort, of models whose template reads no effort."""
EFFORTS = (_NONE, *_BUDGETS)


def apply_effort(values: _Values, files: ModelFiles) -> tuple[_Values, list[str]]:
    """Return the values with the effort and the budget as `thinking` and as a variable of the
    template, and the names of those that have no effect. Raises FieldError."""
    values = _apply_budget(values)
    effort: str | None = getattr(values, EFFORT)
    if effort is None:
        return values, []
    thinking: Thinking = values.thinking or Thinking()
    style, reads_effort = find_chat_style(files), _reads_effort(files)
    if reads_effort:
        value = "low" if effort in (_NONE, "minimal") else effort
        given = values.chat_template_kwargs or {}
        values = values.change(chat_template_kwargs={EFFORT: value, **given})
        unused = [EFFORT] if EFFORT in given else []
    can_switch = style.thinking_switch is not None and thinking.type == AUTO
    if effort == _NONE and can_switch and thinking.budget_tokens is None:
        return values.change(thinking=Thinking(DISABLED)), []
    if reads_effort:
        if can_switch and effort != _NONE:
            values = values.change(thinking=replace(thinking, type=ENABLED))
        return values, unused
    if style.think_tags is None or effort == _NONE:
        return values, [EFFORT]
    asked = thinking
    is_countable = files.tokenizer.token_to_id(style.think_tags.end) is not None
    if thinking.type != DISABLED and thinking.budget_tokens is None and is_countable:
        thinking = replace(thinking, budget_tokens=_BUDGETS[effort])
    if can_switch:
        thinking = replace(thinking, type=ENABLED)
    return values.change(thinking=thinking), [] if thinking != asked else [EFFORT]


def _apply_budget(values: _Values) -> _Values:
    budget: int | None = getattr(values, "thinking_token_budget")  # noqa: B009 - of a chat only
    if budget is None:
        return values
    thinking: Thinking = values.thinking or Thinking()
    if thinking.type == DISABLED or thinking.budget_tokens not in (None, budget):
        raise FieldError("contradicts thinking. Send only one.", "thinking_token_budget")
    return values.change(thinking=replace(thinking, budget_tokens=budget))


def _reads_effort(files: ModelFiles) -> bool:
    try:
        return EFFORT in template.find_variables(files.choose_template(has_tools=True) or "")
    except ChatTemplateError:
        return False
