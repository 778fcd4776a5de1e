"""Tags, and text in which a trigger obliges the model to write the tag that begins with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from completions.grammars.exceptions import GrammarError
from completions.grammars.messages import format_value
from completions.grammars.structural_tag.json_object import JSONObject
from completions.grammars.structural_tag.lowering import Ends, Lowering, Node, Token
from completions.grammars.structural_tag.parts import (
    EMPTY,
    Part,
    embed_in_text,
    make_alternatives,
    make_chain,
    make_loop,
)

MAX_TRIGGERS = 128
"""The most triggers of one text. The text before each one excludes all the others."""

Edge = str | Token


def _lower_edge(lowering: Lowering, edge: Edge) -> Part:
    if isinstance(edge, str):
        return lowering.spelling.spell(edge)
    return lowering.lower_token(edge.pointer, edge.token)


@dataclass(frozen=True, slots=True)
class Tag:
    """`begin`, content, then one of `ends`; ends that are strings end free text inside."""

    pointer: str
    begin: Edge
    content: Node
    ends: Sequence[Edge]

    def lower(self, lowering: Lowering, ends: Ends) -> Part:
        return make_chain([_lower_edge(lowering, self.begin), self.lower_rest(lowering)])

    def lower_rest(self, lowering: Lowering) -> Part:
        """Return the tag without its beginning."""
        own = tuple(end for end in self.ends if end)
        content = self.content(lowering, own)
        return make_chain(
            [content, make_alternatives([_lower_edge(lowering, end) for end in self.ends])]
        )

    def lower_after(self, trigger: Edge, lowering: Lowering) -> Part:
        """Return the tag without the trigger that it begins with."""
        rest = self.lower_rest(lowering)
        if isinstance(trigger, str):
            begun = lowering.spelling.spell(str(self.begin)[len(trigger) :])
            return make_chain([begun, rest])
        return rest

    def is_opened_by(self, trigger: Edge) -> bool:
        if isinstance(self.begin, Token) and isinstance(trigger, Token):
            return self.begin.token == trigger.token
        both = isinstance(self.begin, str) and isinstance(trigger, str)
        return both and str(self.begin).startswith(str(trigger))


def read_tag(node: JSONObject) -> Tag:
    begin, ends = _take_delimiter(node, "begin"), _take_delimiter(node, "end")
    if isinstance(begin, list):
        raise node.make_error("begin must be a string or a node of type token", "/begin")
    content = node.take_node("content")
    return Tag(node.pointer, begin, content, ends if isinstance(ends, list) else [ends])


def _take_delimiter(tag_node: JSONObject, name: str) -> Edge | list[str]:
    value = tag_node.take(name)
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return value
    if isinstance(value, dict):
        node = tag_node.open_object(value, f"/{name}")
        node.read()
        if node.type == "token":
            return Token(node.pointer, value["token"])
    kinds = "a string or a node of type token"
    if name == "end":
        kinds = "a string, a node of type token, or an array of strings that is not empty"
    raise tag_node.make_error(f"{name} must be {kinds}, not {format_value(value)}", f"/{name}")


def _take_tags(node: JSONObject) -> list[Tag]:
    tags = []
    for tag in node.take_objects("tags"):
        if tag.take_text("type", "tag") != "tag":
            raise tag.make_error(f"must be of type tag, not {tag.type}", "/type")
        tags.append(read_tag(tag))
        tag.end()
    return tags


def read_tags_with_separator(node: JSONObject) -> Node:
    tags, separator = _take_tags(node), node.take_text("separator")
    at_least_one, only_one = node.take_flag("at_least_one"), node.take_flag("stop_after_first")

    def lower(lowering: Lowering, ends: Ends) -> Part:
        tag = body = make_alternatives([each.lower(lowering, ()) for each in tags])
        if not only_one:
            more = make_chain([lowering.spelling.spell(separator), tag])
            body = make_chain([tag, make_loop(more, 0, None)])
        return body if at_least_one else make_alternatives([body, EMPTY])

    return lower


def read_triggered_tags(node: JSONObject, *, mixed: bool = False) -> Node:
    """Read a `triggered_tags` node. With `mixed`, the text may hold special tokens other than the
    format's own, and the node `after` follows each tag."""
    triggers, excludes = node.take_texts("triggers"), node.take_texts("excludes", [])
    return _make_tagged_text(node, triggers, excludes, _take_tags(node), mixed=mixed)


def read_token_triggered_tags(node: JSONObject) -> Node:
    triggers = [
        Token(f"{node.pointer}/trigger_tokens/{index}", token)
        for index, token in enumerate(node.take_tokens("trigger_tokens"))
    ]
    return _make_tagged_text(
        node, triggers, node.take_tokens("exclude_tokens", []), _take_tags(node)
    )


def read_legacy_tags(node: JSONObject, tags: Sequence[Tag]) -> Node:
    return _make_tagged_text(node, node.take_texts("triggers"), (), tags, is_legacy=True)


def _make_tagged_text(
    node: JSONObject,
    triggers: Sequence[Edge],
    excludes: Sequence[str | int],
    tags: Sequence[Tag],
    *,
    mixed: bool = False,
    is_legacy: bool = False,
) -> Node:
    """Text and the tags in it, each of which must begin with exactly one trigger."""
    at_least_one = node.take_flag("at_least_one")
    only_one = not is_legacy and node.take_flag("stop_after_first")
    after = node.take_node("after") if mixed else None
    if not 1 <= len(triggers) <= MAX_TRIGGERS:
        message = f"there must be 1 to {MAX_TRIGGERS} triggers, not {len(triggers)}"
        raise node.make_error(f"{message}; tags can share one", "")
    for tag in tags:
        count = sum(map(tag.is_opened_by, triggers))
        if count != 1:
            begin = tag.begin.token if isinstance(tag.begin, Token) else tag.begin
            message = (
                f"{format_value(begin)} must begin with exactly one of the triggers, not {count}"
            )
            raise GrammarError(message, pointer=f"{tag.pointer}/begin")
    _check_excludes(node, triggers, excludes)

    def lower(lowering: Lowering, ends: Ends) -> Part:
        text = _lower_text_around(lowering, node, triggers, excludes, ends, mixed=mixed)
        triggered = []
        for trigger in triggers:
            rests = [
                tag.lower_after(trigger, lowering) for tag in tags if tag.is_opened_by(trigger)
            ]
            if rests:
                triggered.append(
                    make_chain([text, _lower_edge(lowering, trigger), make_alternatives(rests)])
                )
        once = make_alternatives(triggered)
        if after is not None:
            once = make_chain([once, after(lowering, ())])
        if not at_least_one:
            return embed_in_text(once, text, repeats=not only_one)
        first = make_alternatives([tag.lower(lowering, ()) for tag in tags])
        return first if only_one else make_chain([first, embed_in_text(once, text)])

    return lower


def read_dispatch(node: JSONObject) -> Node:
    excludes = node.take_texts("excludes", [])
    rules = _take_rules(node)
    for index, (pattern, _) in enumerate(rules):
        if not isinstance(pattern, str) or not pattern:
            message = f"a pattern must be a string that is not empty, not {format_value(pattern)}"
            raise node.make_error(message, f"/rules/{index}/0")
    _check_excludes(node, [pattern for pattern, _ in rules], excludes)
    return _make_dispatch(node, rules, excludes)


def read_token_dispatch(node: JSONObject) -> Node:
    rules: list[tuple[Edge, Node]] = []
    for index, (token, content) in enumerate(_take_rules(node)):
        path = f"/rules/{index}/0"
        rules.append((Token(f"{node.pointer}{path}", node.check_token(token, path)), content))
    return _make_dispatch(node, rules, node.take_tokens("exclude_tokens", []))


def _take_rules(node: JSONObject) -> list[tuple[Any, Node]]:
    rules = []
    for index, pair in enumerate(node.take_array("rules")):
        if not isinstance(pair, list) or len(pair) != 2:
            raise node.make_error(
                f"must be [pattern, format], not {format_value(pair)}", f"/rules/{index}"
            )
        rules.append((pair[0], node.open_object(pair[1], f"/rules/{index}/1").read()))
    if not 1 <= len(rules) <= MAX_TRIGGERS:
        raise node.make_error(
            f"there must be 1 to {MAX_TRIGGERS} rules, not {len(rules)}", "/rules"
        )
    return rules


def _make_dispatch(
    node: JSONObject, rules: Sequence[tuple[Edge, Node]], excludes: Sequence[str | int]
) -> Node:
    """Text in which a pattern obliges the content beside it."""
    repeats = node.take_flag("loop", True)

    def lower(lowering: Lowering, ends: Ends) -> Part:
        patterns = [pattern for pattern, _ in rules]
        text = _lower_text_around(lowering, node, patterns, excludes, ends)
        once = make_alternatives(
            [
                make_chain([text, _lower_edge(lowering, pattern), content(lowering, ())])
                for pattern, content in rules
            ]
        )
        return embed_in_text(once, text, repeats=repeats)

    return lower


def _check_excludes(
    node: JSONObject, triggers: Sequence[Edge], excludes: Sequence[str | int]
) -> None:
    for index, exclude in enumerate(excludes):
        if any(isinstance(t, str) and t.startswith(str(exclude)) for t in triggers):
            message = (
                f"a trigger begins with {format_value(exclude)}, so it could never be written; "
                "exclude something else"
            )
            raise node.make_error(message, f"/excludes/{index}")


def _lower_text_around(
    lowering: Lowering,
    node: JSONObject,
    triggers: Sequence[Edge],
    excludes: Sequence[str | int],
    ends: Ends,
    *,
    mixed: bool = False,
) -> Part:
    """Free text, or free tokens, without the triggers and what is excluded."""
    tokens = [trigger.token for trigger in triggers if isinstance(trigger, Token)]
    if tokens:
        return lowering.lower_other_tokens(node.pointer, [*tokens, *excludes], ends, 0, None)
    strings = [each for each in (*triggers, *excludes, *ends) if isinstance(each, str)]
    return lowering.spelling.make_free_text(node.pointer, strings, mixed=mixed)
