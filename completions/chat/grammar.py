"""The grammar of a whole answer: thoughts, then tool calls, free text or a client's constraint."""

from collections.abc import Sequence
from dataclasses import dataclass

from completions.chat.formats import ToolFormat
from completions.chat.lark import EMPTY, TEXT, Rules, Spelling
from completions.chat.thinking import Marks
from completions.chat.tools import REQUIRED, Choice, Tool
from completions.grammars import Constraint
from completions.grammars.composition import Part, compose

_ANSWER = "client_answer"


class BudgetError(Exception):
    """Thoughts cannot be counted in tokens: the model's mark is not one token."""


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
    """The token that is the mark of their end, if it is one."""


@dataclass(frozen=True, slots=True)
class Calls:
    """What the model may call, and in which way of writing."""

    format: ToolFormat
    tools: Sequence[Tool]
    choice: Choice


def answer_constraint(
    spelling: Spelling,
    thoughts: Thoughts | None,
    calls: Calls | None,
    constraint: Constraint | None,
) -> Constraint | None:
    """What the whole output must match, or None where anything goes.

    Raises BudgetError, and UnenforceableError as the format's rules do.
    """
    bare = constraint is None and thoughts is not None and thoughts.budget is None
    if calls is None and (thoughts is None or (bare and not thoughts.required)):
        return constraint
    lines, parts = [], []
    main = "stray_text"
    if constraint is not None:
        main = f"@{_ANSWER}"
        parts.append(Part(_ANSWER, constraint))
    if calls is not None:
        rules = _call_rules(calls, spelling, main)
        lines.append(rules.lark)
        parts += rules.parts
        main = "calls"
    marks = calls.format.marks if calls else ()
    lines += _free_text(spelling, [*marks, *_marks(thoughts)])
    if thoughts is not None:
        lines += _thought_rules(thoughts, spelling)
        thinking = "thoughts line_breaks?" if thoughts.is_open else "begin thoughts line_breaks?"
        optional = not (thoughts.is_open or thoughts.required)
        main = f"({thinking})? {main}" if optional else f"{thinking} {main}"
    lark = "\n".join([f"start: {main}", *lines])
    return compose(lark, tuple(parts), constraint.named if constraint else "tools")


def _marks(thoughts: Thoughts | None) -> tuple[str, ...]:
    return (thoughts.marks.begin, thoughts.marks.end) if thoughts else ()


def _free_text(spelling: Spelling, marks: Sequence[str]) -> list[str]:
    stray = spelling.stray(marks)
    lines = [f"text: {TEXT}"]
    if stray is None:
        return [*lines, f"stray: {EMPTY}", "stray_text: text?"]
    return [*lines, f"stray: (text? {stray})*", "stray_text: stray text?"]


def _call_rules(calls: Calls, spelling: Spelling, otherwise: str) -> Rules:
    """Rule `calls`: calls alone, or where they need not be, calls amid `otherwise`."""
    written, choice = calls.format, calls.choice
    rules = written.rules(calls.tools, spelling)
    lines = [rules.lark, f"call: {spelling.mark(written.opening)} body"]
    between = spelling.mark(written.between)
    alone = f"call ({between}? call)*" if choice.parallel else "call"
    if choice.mode == REQUIRED:
        lines.append(f"calls: {alone}")
    elif otherwise.startswith("@"):  # a constrained answer has no room for calls inside
        lines.append(f"calls: {alone} | {otherwise}")
    else:
        lines.append(spelling.until("opening", written.opening))
        lines.append(
            f"calls: (stray opening body)* {otherwise}" if choice.parallel
            else f"calls: stray opening body | {otherwise}"
        )  # fmt: skip
    return Rules("\n".join(lines), rules.parts)


def _thought_rules(thoughts: Thoughts, spelling: Spelling) -> list[str]:
    marks = thoughts.marks
    lines = ['line_breaks: "\\n" "\\n"?']
    if not thoughts.is_open:
        special = marks.begin in spelling.special_ids
        begin = spelling.mark(marks.begin)
        # Lazy, so that text never runs over it.
        lines.append(f"begin: {begin}" if special else f"begin[lazy]: {begin}")
    if thoughts.budget is None:
        return [*lines, spelling.until("thoughts", marks.end)]
    if thoughts.end_id is None:
        raise BudgetError
    others = spelling.tokens_but(frozenset({thoughts.end_id}))
    lines.append(f"thoughts: {others}{{0,{thoughts.budget}}} <[{thoughts.end_id}]>")
    return lines
