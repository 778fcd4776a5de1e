"""The grammar of a whole answer: reasoning, then tool calls, free text or a client's constraint."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from completions.chat.reasoning import ThinkTags
from completions.chat.tools import REQUIRED, Tool, ToolChoice, ToolFormat
from completions.grammars import Constraint
from completions.grammars.limits import COMPACT
from completions.grammars.structural_tag import ANSWER
from completions.grammars.structural_tag.json_nodes import (
    ANY_OBJECT,
    JSONNode,
    make_choice,
    make_node,
    make_optional,
    make_sequence,
    make_tag,
)


class BudgetError(Exception):
    """Reasoning cannot be counted in tokens, because its end tag is not a single token."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The reasoning that may or must precede the answer."""

    tags: ThinkTags
    is_open: bool
    """Whether the prompt ends inside the reasoning."""
    required: bool = False
    budget: int | None = None
    """Maximum tokens of reasoning, without the tags."""
    end_id: int | None = None
    """The token that ends the reasoning, if a single token does."""


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """The tools that the model may call, and the format of calls."""

    format: ToolFormat
    tools: Sequence[Tool]
    choice: ToolChoice

    @property
    def relaxable_tools(self) -> Sequence[Tool]:
        """The tools whose schemas may be left out where they cannot be enforced."""
        return [tool for tool in self.tools if tool.parameters and not tool.strict]

    def relax(self) -> "ToolCalls":
        """Return the same calls, without the schemas that may be left out."""
        loosable = self.relaxable_tools
        tools = [
            replace(tool, parameters=ANY_OBJECT) if tool in loosable else tool
            for tool in self.tools
        ]
        return replace(self, tools=tools)


def make_answer_constraint(
    reasoning: Reasoning | None,
    calls: ToolCalls | None,
    constraint: Constraint | None,
    whitespace: str = COMPACT,
) -> Constraint | None:
    """Return the constraint of the whole output; None if it may be anything. Raises BudgetError.

    `whitespace` is the white space allowed between JSON tokens in calls.
    """
    restricts_thoughts = reasoning is not None and (
        reasoning.required or reasoning.budget is not None
    )
    if calls is None and not restricts_thoughts and (reasoning is None or constraint is None):
        return constraint
    tree = _make_answer(calls, constraint)
    if reasoning is not None:
        tree = _add_reasoning(reasoning, tree)
    delimiters = [*(calls.format.delimiters if calls else ())]
    delimiters += [reasoning.tags.begin, reasoning.tags.end] if reasoning else []
    inner = list(constraint) if constraint else None
    value = {"format": tree, "delimiters": delimiters, "constraint": inner}
    return Constraint(ANSWER, value, whitespace, constraint.error_path if constraint else "tools")


def _make_answer(calls: ToolCalls | None, constraint: Constraint | None) -> JSONNode:
    otherwise = make_node("mixed_text" if constraint is None else "constrained")
    if calls is None:
        return otherwise
    several, tool_format = calls.choice.parallel, calls.format
    tags = [tool_format.make_call_node(tool) for tool in calls.tools]
    if calls.choice.mode != REQUIRED and constraint is None:
        triggers, once = [tool_format.opening], not several
        return make_node(
            "mixed_triggered_tags", triggers=triggers, tags=tags, stop_after_first=once
        )
    alone = make_choice(tags)
    if several:
        between = make_optional(make_node("const_string", value=tool_format.between))
        alone = make_sequence(alone, make_node("star", content=make_sequence(between, alone)))
    return alone if calls.choice.mode == REQUIRED else make_choice([alone, otherwise])


def _add_reasoning(reasoning: Reasoning, answer: JSONNode) -> JSONNode:
    end_id, budget = reasoning.end_id, reasoning.budget
    parts = (
        [] if reasoning.is_open else [make_node("delimiter", value=reasoning.tags.begin, cuts=True)]
    )
    if budget is None:
        parts.append(make_tag("", make_node("any_text"), reasoning.tags.end))
    elif end_id is None:
        raise BudgetError
    else:
        parts.append(make_node("any_tokens", exclude_tokens=[end_id], max_tokens=budget))
        parts.append(make_node("token", token=end_id))
    line_break = make_node("delimiter", value="\n")
    parts.append(make_optional(make_sequence(line_break, make_optional(line_break))))
    if reasoning.is_open or reasoning.required:
        return make_sequence(*parts, answer)
    return make_sequence(make_optional(make_sequence(*parts)), answer)
