"""The grammar of a whole answer: thoughts, then tool calls, free text or a client's constraint."""

from collections.abc import Sequence
from dataclasses import dataclass

from completions.chat.thinking import Marks
from completions.chat.tool_formats import ToolFormat
from completions.chat.tools import REQUIRED, Tool, ToolChoice
from completions.grammars import Constraint
from completions.grammars.limits import COMPACT
from completions.grammars.structural_tag import ANSWER, json_nodes
from completions.grammars.structural_tag.json_nodes import JSONNode


class BudgetError(Exception):
    """Thoughts cannot be counted in tokens: the mark of their end is not one token."""


@dataclass(frozen=True, slots=True)
class Thoughts:
    """What may or must stand before the answer."""

    marks: Marks
    is_open: bool
    """Whether the prompt ends inside them."""
    required: bool = False
    budget: int | None = None
    """Tokens at most, without the marks."""
    end_id: int | None = None
    """The token that marks their end, if one token does."""


@dataclass(frozen=True, slots=True)
class Calls:
    """What the model may call, and in which format."""

    format: ToolFormat
    tools: Sequence[Tool]
    choice: ToolChoice


def answer_constraint(
    thoughts: Thoughts | None,
    calls: Calls | None,
    constraint: Constraint | None,
    whitespace: str = COMPACT,
) -> Constraint | None:
    """What the whole output must match; None if it may be anything. Raises BudgetError.

    `whitespace` is that between the tokens of JSON in calls.
    """
    restricts_thoughts = thoughts is not None and (thoughts.required or thoughts.budget is not None)
    if calls is None and not restricts_thoughts and (thoughts is None or constraint is None):
        return constraint
    tree = _answer(calls, constraint)
    if thoughts is not None:
        tree = _after_thoughts(thoughts, tree)
    marks = [*(calls.format.marks if calls else ())]
    marks += [thoughts.marks.begin, thoughts.marks.end] if thoughts else []
    given = list(constraint) if constraint else None
    value = {"format": tree, "marks": marks, "constraint": given}
    return Constraint(ANSWER, value, whitespace, constraint.named if constraint else "tools")


def _answer(calls: Calls | None, constraint: Constraint | None) -> JSONNode:
    otherwise = json_nodes.mixed_text() if constraint is None else json_nodes.constrained()
    if calls is None:
        return otherwise
    several = calls.choice.parallel
    tags = [calls.format.call(tool) for tool in calls.tools]
    if calls.choice.mode != REQUIRED and constraint is None:
        return json_nodes.mixed_tags(calls.format.opening, tags, only_one=not several)
    alone = json_nodes.one_of(tags)
    if several:
        between = json_nodes.optional(json_nodes.const(calls.format.between))
        alone = json_nodes.sequence(alone, json_nodes.star(json_nodes.sequence(between, alone)))
    return alone if calls.choice.mode == REQUIRED else json_nodes.one_of([alone, otherwise])


def _after_thoughts(thoughts: Thoughts, answer: JSONNode) -> JSONNode:
    parts = [] if thoughts.is_open else [json_nodes.mark(thoughts.marks.begin, cuts=True)]
    if thoughts.budget is None:
        parts.append(json_nodes.tag("", json_nodes.text(), thoughts.marks.end))
    elif thoughts.end_id is None:
        raise BudgetError
    else:
        parts.append(json_nodes.tokens_without(thoughts.end_id, thoughts.budget))
        parts.append(json_nodes.token(thoughts.end_id))
    line_break = json_nodes.mark("\n")
    two = json_nodes.sequence(line_break, json_nodes.optional(line_break))
    parts.append(json_nodes.optional(two))
    if thoughts.is_open or thoughts.required:
        return json_nodes.sequence(*parts, answer)
    return json_nodes.sequence(json_nodes.optional(json_nodes.sequence(*parts)), answer)
