"""The grammar of a whole answer: reasoning, then tool calls, free text or a client's constraint."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from completions.chat.reasoning import ThinkTags
from completions.chat.tool_format import ARGUMENTS, ID, NAME, ToolFormat
from completions.chat.tools import REQUIRED, Tool, ToolChoice
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
    make_text,
)
from completions.grammars.structural_tag.parameters import Style


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
    lead: str = ""
    """The text after which more reasoning may begin; empty where there is one piece of it."""
    can_be_empty: bool = False
    """Whether the end tag alone says that there is none."""


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """The tools that the model may call, and the format of calls."""

    format: ToolFormat
    tools: Sequence[Tool]
    choice: ToolChoice

    @property
    def relaxable_tools(self) -> Sequence[Tool]:
        """The tools whose schemas may be left out where they cannot be enforced."""
        return [
            tool for tool in self.tools if tool.parameters and not (tool.strict or tool.is_custom)
        ]

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
    tool_format: ToolFormat | None = None,
) -> Constraint | None:
    """Return the constraint of the whole output; None if it may be anything. Raises BudgetError.

    `whitespace` is the white space allowed between JSON tokens in calls. `tool_format` is the
    model's, also where no calls may come.
    """
    around = tool_format if tool_format is not None and any(tool_format.content) else None
    restricts = reasoning is not None and (reasoning.required or reasoning.budget is not None)
    is_plain = constraint is None or (reasoning is None and around is None)
    if calls is None and not restricts and is_plain:
        return constraint
    tree = _make_answer(calls, constraint, around)
    if reasoning is not None:
        tree = _add_reasoning(reasoning, tree, calls)
    sources = (calls and calls.format, around, reasoning and reasoning.tags)
    delimiters = [each for source in sources if source for each in source.delimiters]
    inner = list(constraint) if constraint else None
    value = {"format": tree, "delimiters": delimiters, "constraint": inner}
    return Constraint(ANSWER, value, whitespace, constraint.error_path if constraint else "tools")


def _make_answer(
    calls: ToolCalls | None, constraint: Constraint | None, around: ToolFormat | None
) -> JSONNode:
    otherwise = make_node("mixed_text" if constraint is None else "constrained")
    start: list[JSONNode] = []
    before: list[JSONNode] = []
    if around is not None:
        lead, begin, end = around.content
        start = [make_optional(_make_delimiter(lead))] if lead else []
        may_talk = calls is not None and calls.choice.mode != REQUIRED and constraint is None
        if may_talk and any(around.preamble):
            talk = make_tag("", make_node("any_text"), around.preamble[1])
            talk = make_sequence(_make_delimiter(around.preamble[0]), talk, *start)
            start.append(make_node("star", content=talk))
        otherwise = make_sequence(_make_delimiter(begin), otherwise)
        if end:
            said = make_tag(begin, make_node("any_text"), end)
            before = [make_optional(said)]
            otherwise = said if constraint is None else make_sequence(otherwise, make_text(end))
    if calls is None:
        return make_sequence(*start, otherwise)
    if calls.choice.mode != REQUIRED and constraint is None and around is None:
        return _make_called_text(calls)
    section, after = _make_section(calls)
    alone = make_sequence(*before, make_choice(section), after)
    is_required = calls.choice.mode == REQUIRED
    return make_sequence(*start, alone if is_required else make_choice([alone, otherwise]))


def _make_called_text(calls: ToolCalls) -> JSONNode:
    """Return free text in which a trigger obliges a section of calls."""
    section, after = _make_section(calls)
    return make_node(
        "mixed_triggered_tags",
        triggers=calls.format.list_triggers([tool.name for tool in calls.tools]),
        tags=section,
        after=after if calls.format.section[1] else make_sequence(),
        stop_after_first=not calls.choice.parallel,
    )


def _make_section(calls: ToolCalls) -> tuple[list[JSONNode], JSONNode]:
    """Return a section's beginning with its first call, as one of several tags, and its rest."""
    tool_format = calls.format
    begin, end = tool_format.section
    after = [make_text(end)] if end else []
    if calls.choice.parallel:
        more = make_sequence(_make_separator(tool_format), make_choice(_make_calls(calls)))
        after.insert(0, make_node("star", content=more))
    return _make_calls(calls, begin), make_sequence(*after)


def _make_calls(calls: ToolCalls, before: str = "") -> list[JSONNode]:
    """Return a call of each tool in each way to write it."""
    ways = calls.format.ways
    return [_make_call(calls.format, tool, way, before) for tool in calls.tools for way in ways]


def _make_separator(tool_format: ToolFormat) -> JSONNode:
    """Return the text between two calls. White space around it is optional, and so is all of it
    where the calls themselves end."""
    separator = tool_format.separator
    texts = dict.fromkeys([separator, separator.strip()])
    nodes = [make_text(text) for text in texts if text]
    if not nodes:
        return make_sequence()
    choice = make_choice(nodes)
    is_optional = "" in texts or not tool_format.section[1]
    return make_optional(choice) if is_optional else choice


def _make_call(form: ToolFormat, tool: Tool, way: Sequence[str], before: str) -> JSONNode:
    """Return a call of the tool, as one tag of a structural tag."""
    style = form.arguments
    begin, *rest, end = way
    content: list[JSONNode] = []
    text = before + begin
    for segment in rest:
        if segment in (ID, ARGUMENTS):
            if segment == ARGUMENTS and isinstance(style, Style):
                text = text.rstrip()  # the parameters begin and end with white space
            content.append(make_text(text))
            text = ""
            if segment == ID:
                content.append(make_node("regex", pattern=form.ids))
            else:
                content.append(tool.make_arguments_node(style))
        else:
            text += tool.name if segment == NAME else segment
    opening, *inner = content
    return make_tag(
        opening["value"], make_sequence(*inner), end.lstrip() if isinstance(style, Style) else end
    )


def _make_delimiter(text: str) -> JSONNode:
    return make_node("delimiter", value=text, cuts=True)


def _add_reasoning(reasoning: Reasoning, answer: JSONNode, calls: ToolCalls | None) -> JSONNode:
    end_id, budget = reasoning.end_id, reasoning.budget
    parts = [] if reasoning.is_open else [_make_delimiter(reasoning.tags.begin)]
    ended_by_call = None
    if budget is None and calls is not None and calls.format.ends_reasoning:
        triggers = calls.format.list_triggers([tool.name for tool in calls.tools])
        text = make_node("any_text", excludes=[reasoning.tags.end, *triggers])
        section, after = _make_section(calls)
        ended_by_call = make_sequence(*parts, text, make_choice(section), after)
        parts.append(make_sequence(text, make_text(reasoning.tags.end)))
    elif budget is None:
        parts.append(make_tag("", make_node("any_text"), reasoning.tags.end))
    elif end_id is None:
        raise BudgetError
    else:
        parts.append(make_node("any_tokens", exclude_tokens=[end_id], max_tokens=budget))
        parts.append(make_node("token", token=end_id))
    if reasoning.lead and budget is None:
        begin = map(_make_delimiter, (reasoning.lead, reasoning.tags.begin))
        more = make_tag("", make_node("any_text"), reasoning.tags.end)
        parts.append(make_node("star", content=make_sequence(*begin, more)))
    line_break = make_node("delimiter", value="\n")
    parts.append(make_optional(make_sequence(line_break, make_optional(line_break))))
    is_optional = not (reasoning.is_open or reasoning.required)
    thoughts = make_sequence(*parts)
    if reasoning.can_be_empty and is_optional:
        thoughts = make_choice([thoughts, make_text(reasoning.tags.end)])
    tree = make_sequence(make_optional(thoughts) if is_optional else thoughts, answer)
    return tree if ended_by_call is None else make_choice([ended_by_call, tree])
