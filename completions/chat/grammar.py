"""The grammar of a whole answer: thoughts, then tool calls, free text or a client's constraint."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from completions.chat.thinking import Marks
from completions.chat.tools import REQUIRED, Tool, ToolChoice, ToolFormat
from completions.grammars import Constraint
from completions.grammars.limits import COMPACT
from completions.grammars.structural_tag import ANSWER
from completions.grammars.structural_tag.json_nodes import (
    ANY_OBJECT,
    JSONNode,
    node,
    one_of,
    optional,
    sequence,
    tag,
)


class BudgetError(Exception):
    """Thoughts cannot be counted in tokens, because their end mark is not a single token."""


@dataclass(frozen=True, slots=True)
class Thoughts:
    """The thoughts that may or must precede the answer."""

    marks: Marks
    is_open: bool
    """Whether the prompt ends inside the thoughts."""
    required: bool = False
    budget: int | None = None
    """The most tokens of thoughts, without the marks."""
    end_id: int | None = None
    """The token that ends the thoughts, if a single token does."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The tools that the model may call, and the format of calls."""

    format: ToolFormat
    tools: Sequence[Tool]
    choice: ToolChoice

    @property
    def loosable(self) -> Sequence[Tool]:
        """The tools whose schemas may be left out where they cannot be enforced."""
        return [tool for tool in self.tools if tool.parameters and not tool.strict]

    def loosened(self) -> "Calls":
        """The same calls, without the schemas that may be left out."""
        loosable = self.loosable
        tools = [
            replace(tool, parameters=ANY_OBJECT) if tool in loosable else tool
            for tool in self.tools
        ]
        return replace(self, tools=tools)


def answer_constraint(
    thoughts: Thoughts | None,
    calls: Calls | None,
    constraint: Constraint | None,
    whitespace: str = COMPACT,
) -> Constraint | None:
    """The constraint of the whole output; None if it may be anything. Raises BudgetError.

    `whitespace` is the white space allowed between JSON tokens in calls.
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
    otherwise = node("mixed_text" if constraint is None else "constrained")
    if calls is None:
        return otherwise
    several, written = calls.choice.parallel, calls.format
    tags = [written.call(tool) for tool in calls.tools]
    if calls.choice.mode != REQUIRED and constraint is None:
        triggers, once = [written.opening], not several
        return node("mixed_triggered_tags", triggers=triggers, tags=tags, stop_after_first=once)
    alone = one_of(tags)
    if several:
        between = optional(node("const_string", value=written.between))
        alone = sequence(alone, node("star", content=sequence(between, alone)))
    return alone if calls.choice.mode == REQUIRED else one_of([alone, otherwise])


def _after_thoughts(thoughts: Thoughts, answer: JSONNode) -> JSONNode:
    end_id, budget = thoughts.end_id, thoughts.budget
    parts = [] if thoughts.is_open else [node("mark", value=thoughts.marks.begin, cuts=True)]
    if budget is None:
        parts.append(tag("", node("any_text"), thoughts.marks.end))
    elif end_id is None:
        raise BudgetError
    else:
        parts.append(node("any_tokens", exclude_tokens=[end_id], max_tokens=budget))
        parts.append(node("token", token=end_id))
    line_break = node("mark", value="\n")
    parts.append(optional(sequence(line_break, optional(line_break))))
    if thoughts.is_open or thoughts.required:
        return sequence(*parts, answer)
    return sequence(optional(sequence(*parts)), answer)
