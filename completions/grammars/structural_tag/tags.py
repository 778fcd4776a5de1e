"""Tags, and text in which a trigger obliges the model to write the tag that begins with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from completions.grammars.complaints import shown
from completions.grammars.exceptions import GrammarError
from completions.grammars.structural_tag.json_object import JSONObject
from completions.grammars.structural_tag.lowering import Ends, Lowering, Node, Token
from completions.grammars.structural_tag.parts import (
    EMPTY,
    Part,
    alternatives,
    chain,
    in_text,
    loop,
)

MAX_TRIGGERS = 128
"""The most triggers of one text. The text before each one excludes all the others."""

Edge = str | Token


def _edge(lowering: Lowering, edge: Edge) -> Part:
    if isinstance(edge, str):
        return lowering.spelling.text(edge)
    return lowering.token(edge.pointer, edge.token)


@dataclass(frozen=True, slots=True)
class Tag:
    """`begin`, content, then one of `ends`; ends that are strings end free text inside."""

    pointer: str
    begin: Edge
    content: Node
    ends: Sequence[Edge]

    def lower(self, lowering: Lowering, ends: Ends) -> Part:
        return chain([_edge(lowering, self.begin), self.rest(lowering)])

    def rest(self, lowering: Lowering) -> Part:
        """The tag without its beginning."""
        own = tuple(end for end in self.ends if end)
        content = self.content(lowering, own)
        return chain([content, alternatives([_edge(lowering, end) for end in self.ends])])

    def after(self, trigger: Edge, lowering: Lowering) -> Part:
        """The tag without the trigger that it begins with."""
        rest = self.rest(lowering)
        if isinstance(trigger, str):
            begun = lowering.spelling.text(str(self.begin)[len(trigger) :])
            return chain([begun, rest])
        return rest

    def begins_with(self, trigger: Edge) -> bool:
        if isinstance(self.begin, Token) and isinstance(trigger, Token):
            return self.begin.token == trigger.token
        both = isinstance(self.begin, str) and isinstance(trigger, str)
        return both and str(self.begin).startswith(str(trigger))


def read_tag(given: JSONObject) -> Tag:
    begin, ends = _delimiter(given, "begin"), _delimiter(given, "end")
    if isinstance(begin, list):
        raise given.error("begin must be a string or a node of type token", "/begin")
    content = given.node("content")
    return Tag(given.pointer, begin, content, ends if isinstance(ends, list) else [ends])


def _delimiter(given: JSONObject, name: str) -> Edge | list[str]:
    value = given.take(name)
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return value
    if isinstance(value, dict):
        node = given.inside(value, f"/{name}")
        node.read()
        if node.type == "token":
            return Token(node.pointer, value["token"])
    kinds = "a string or a node of type token"
    if name == "end":
        kinds = "a string, a node of type token, or an array of strings that is not empty"
    raise given.error(f"{name} must be {kinds}, not {shown(value)}", f"/{name}")


def _tags(given: JSONObject) -> list[Tag]:
    found = []
    for tag in given.objects("tags"):
        if tag.text("type", "tag") != "tag":
            raise tag.error(f"must be of type tag, not {tag.type}", "/type")
        found.append(read_tag(tag))
        tag.end()
    return found


def tags_with_separator(given: JSONObject) -> Node:
    tags, separator = _tags(given), given.text("separator")
    at_least_one, only_one = given.flag("at_least_one"), given.flag("stop_after_first")

    def lower(lowering: Lowering, ends: Ends) -> Part:
        tag = found = alternatives([each.lower(lowering, ()) for each in tags])
        if not only_one:
            more = chain([lowering.spelling.text(separator), tag])
            found = chain([tag, loop(more, 0, None)])
        return found if at_least_one else alternatives([found, EMPTY])

    return lower


def triggered_tags(given: JSONObject, *, mixed: bool = False) -> Node:
    """`mixed`: special tokens other than marks may stand in the text."""
    triggers, excludes = given.texts("triggers"), given.texts("excludes", [])
    return _tagged_text(given, triggers, excludes, _tags(given), mixed=mixed)


def token_triggered_tags(given: JSONObject) -> Node:
    triggers = [
        Token(f"{given.pointer}/trigger_tokens/{index}", token)
        for index, token in enumerate(given.tokens("trigger_tokens"))
    ]
    return _tagged_text(given, triggers, given.tokens("exclude_tokens", []), _tags(given))


def legacy_tags(given: JSONObject, tags: Sequence[Tag]) -> Node:
    return _tagged_text(given, given.texts("triggers"), (), tags, is_legacy=True)


def _tagged_text(
    given: JSONObject,
    triggers: Sequence[Edge],
    excludes: Sequence[str | int],
    tags: Sequence[Tag],
    *,
    mixed: bool = False,
    is_legacy: bool = False,
) -> Node:
    """Text and the tags in it, each of which must begin with exactly one trigger."""
    at_least_one = given.flag("at_least_one")
    only_one = not is_legacy and given.flag("stop_after_first")
    if not 1 <= len(triggers) <= MAX_TRIGGERS:
        message = f"there must be 1 to {MAX_TRIGGERS} triggers, not {len(triggers)}"
        raise given.error(f"{message}; tags can share one", "")
    for tag in tags:
        found = sum(map(tag.begins_with, triggers))
        if found != 1:
            begin = tag.begin.token if isinstance(tag.begin, Token) else tag.begin
            message = f"{shown(begin)} must begin with exactly one of the triggers, not {found}"
            raise GrammarError(message, pointer=f"{tag.pointer}/begin")
    _check_excludes(given, triggers, excludes)

    def lower(lowering: Lowering, ends: Ends) -> Part:
        text = _text_around(lowering, given, triggers, excludes, ends, mixed=mixed)
        triggered = []
        for trigger in triggers:
            rests = [tag.after(trigger, lowering) for tag in tags if tag.begins_with(trigger)]
            if rests:
                triggered.append(chain([text, _edge(lowering, trigger), alternatives(rests)]))
        once = alternatives(triggered)
        if not at_least_one:
            return in_text(once, text, repeats=not only_one)
        first = alternatives([tag.lower(lowering, ()) for tag in tags])
        return first if only_one else chain([first, in_text(once, text)])

    return lower


def dispatch(given: JSONObject) -> Node:
    excludes = given.texts("excludes", [])
    rules = _rules(given)
    for index, (pattern, _) in enumerate(rules):
        if not isinstance(pattern, str) or not pattern:
            message = f"a pattern must be a string that is not empty, not {shown(pattern)}"
            raise given.error(message, f"/rules/{index}/0")
    _check_excludes(given, [pattern for pattern, _ in rules], excludes)
    return _dispatched(given, rules, excludes)


def token_dispatch(given: JSONObject) -> Node:
    rules: list[tuple[Edge, Node]] = []
    for index, (token, content) in enumerate(_rules(given)):
        place = f"/rules/{index}/0"
        rules.append((Token(f"{given.pointer}{place}", given.token(token, place)), content))
    return _dispatched(given, rules, given.tokens("exclude_tokens", []))


def _rules(given: JSONObject) -> list[tuple[Any, Node]]:
    rules = []
    for index, pair in enumerate(given.array("rules")):
        if not isinstance(pair, list) or len(pair) != 2:
            raise given.error(f"must be [pattern, format], not {shown(pair)}", f"/rules/{index}")
        rules.append((pair[0], given.inside(pair[1], f"/rules/{index}/1").read()))
    if not 1 <= len(rules) <= MAX_TRIGGERS:
        raise given.error(f"there must be 1 to {MAX_TRIGGERS} rules, not {len(rules)}", "/rules")
    return rules


def _dispatched(
    given: JSONObject, rules: Sequence[tuple[Edge, Node]], excludes: Sequence[str | int]
) -> Node:
    """Text in which a pattern obliges the content beside it."""
    repeats = given.flag("loop", True)

    def lower(lowering: Lowering, ends: Ends) -> Part:
        patterns = [pattern for pattern, _ in rules]
        text = _text_around(lowering, given, patterns, excludes, ends)
        once = alternatives(
            [
                chain([text, _edge(lowering, pattern), content(lowering, ())])
                for pattern, content in rules
            ]
        )
        return in_text(once, text, repeats=repeats)

    return lower


def _check_excludes(
    given: JSONObject, triggers: Sequence[Edge], excludes: Sequence[str | int]
) -> None:
    for index, exclude in enumerate(excludes):
        if any(isinstance(t, str) and t.startswith(str(exclude)) for t in triggers):
            message = (
                f"a trigger begins with {shown(exclude)}, so it could never be written; exclude "
                "something else"
            )
            raise given.error(message, f"/excludes/{index}")


def _text_around(
    lowering: Lowering,
    given: JSONObject,
    triggers: Sequence[Edge],
    excludes: Sequence[str | int],
    ends: Ends,
    *,
    mixed: bool = False,
) -> Part:
    """Free text, or free tokens, without the triggers and what is excluded."""
    tokens = [trigger.token for trigger in triggers if isinstance(trigger, Token)]
    if tokens:
        return lowering.other_tokens(given.pointer, [*tokens, *excludes], ends, 0, None)
    strings = [each for each in (*triggers, *excludes, *ends) if isinstance(each, str)]
    return lowering.spelling.free_text(given.pointer, strings, mixed=mixed)
