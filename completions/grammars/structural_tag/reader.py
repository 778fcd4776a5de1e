"""A structural tag read from JSON: every field checked, every fault with its pointer."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from completions.contract import strict_json
from completions.grammars.constraint import Constraint
from completions.grammars.exceptions import GrammarError, UnknownNodeError
from completions.grammars.limits import DEFAULT_LIMITS, Limits, check_depth
from completions.grammars.structural_tag import nodes
from completions.grammars.structural_tag.json_object import JSONObject, Readers
from completions.grammars.structural_tag.nodes import Node, Tree
from completions.grammars.structural_tag.parameters import STYLES

MAX_TRIGGERS = 128
"""In one text: each must be kept out of what stands before any other."""


def read(value: Mapping[str, Any] | str, limits: Limits = DEFAULT_LIMITS) -> Tree:
    """The tree of a structural tag, legacy or not, as an object or as text. Raises GrammarError."""
    given = _parsed(value) if isinstance(value, str) else value
    check_depth(given, limits)
    node = JSONObject(given, "", _READERS)
    if node.text("type", "structural_tag") != "structural_tag":
        raise node.error("type must be structural_tag", "/type")
    root = _node(node.object("format")) if node.has("format") else _legacy(node)
    node.end()
    return Tree(root)


def read_answer(value: Mapping[str, Any]) -> Tree:
    """The tree of a chat's answer. Raises GrammarError, but for a tree of ours only by mistake."""
    node = JSONObject(value, "", _ANSWER_READERS)
    constraint = node.array("constraint", None)
    marks = node.texts("marks")
    root = _node(node.object("format"))
    node.end()
    return Tree(root, marks, Constraint(*constraint) if constraint else None)


def _parsed(text: str) -> Any:
    try:
        return strict_json.loads(text)
    except strict_json.StrictJSONError as error:
        message = f"the string does not hold JSON: {error.reason}"
        raise GrammarError(message, error.line, error.column) from error


def _legacy(node: JSONObject) -> Node:
    """{"structures": [{"begin", "schema", "end"}], "triggers"}: tags that hold JSON."""
    if not node.has("structures"):
        message = "needs `format`, or `structures` and `triggers`"
        raise node.error(message, "")
    tags = []
    for structure in node.objects("structures"):
        schema = structure.take("schema", None)
        content = nodes.JSONSchema(f"{structure.pointer}/schema", _schema(structure, schema))
        begin, end = structure.text("begin"), structure.text("end")
        structure.end()
        tags.append(nodes.Tag(structure.pointer, begin, content, (end,)))
    triggers = node.texts("triggers")
    at_least_one = node.flag("at_least_one")
    return _checked(nodes.TaggedText(node.pointer, triggers, tuple(tags), at_least_one, False, ()))


def _schema(node: JSONObject, value: Any) -> Mapping[str, Any]:
    """The schema of a legacy structure: an object, text that holds one, or null for any JSON."""
    if isinstance(value, str):
        try:
            value = _parsed(value)
        except GrammarError as error:
            raise node.error(error.message, "/schema") from error
    if value is not None and not isinstance(value, dict | bool):
        raise node.error("schema must be an object, or text that holds one", "/schema")
    return _as_object(value)


def _as_object(schema: Any) -> Mapping[str, Any]:
    """`true` and null allow any JSON, `false` none."""
    if isinstance(schema, dict):
        return schema
    return {"enum": []} if schema is False else {}


def _node(node: JSONObject) -> Node:
    kind = node.text("type")
    reader = node.readers.get(kind)
    if reader is None:
        message = f"there is no node of type {kind[:64]}; there are: {', '.join(sorted(_READERS))}"
        raise UnknownNodeError(message, pointer=f"{node.pointer}/type")
    found = reader(node)
    node.end()
    return found


def _elements(node: JSONObject) -> tuple[Node, ...]:
    return tuple(map(_node, node.objects("elements")))


def _tags(node: JSONObject) -> tuple[nodes.Tag, ...]:
    found = []
    for tag in node.objects("tags"):
        if tag.text("type", "tag") != "tag":
            raise tag.error("must be of type tag", "/type")
        found.append(_tag(tag))
        tag.end()
    return tuple(found)


def _const_string(node: JSONObject) -> Node:
    return nodes.ConstString(node.pointer, node.text("value"))


def _json_schema(node: JSONObject) -> nodes.JSONSchema:
    schema = node.take("json_schema")
    if not isinstance(schema, dict | bool):
        raise node.error("json_schema must be an object or a boolean", "/json_schema")
    style = node.text("style", "json")
    if style != "json" and style not in STYLES:
        known = ", ".join(["json", *STYLES])
        message = f"the style {style[:64]} is not supported; use one of: {known}"
        raise UnknownNodeError(message, pointer=f"{node.pointer}/style")
    if node.flag("any_order"):
        raise node.error("any_order is not supported: properties keep their order", "/any_order")
    if node.array("excludes", []):
        raise node.error("excludes is not supported in JSON; use pattern", "/excludes")
    spaces = node.count("max_whitespace_cnt", None)
    return nodes.JSONSchema(f"{node.pointer}/json_schema", _as_object(schema), style, spaces)


def _qwen_xml_parameter(node: JSONObject) -> Node:
    schema = node.take("json_schema")
    if not isinstance(schema, dict | bool):
        raise node.error("json_schema must be an object or a boolean", "/json_schema")
    return nodes.JSONSchema(f"{node.pointer}/json_schema", _as_object(schema), "qwen_xml")


def _grammar(node: JSONObject) -> Node:
    return nodes.Grammar(node.pointer, node.text("grammar"))


def _regex(node: JSONObject) -> Node:
    return nodes.Regex(node.pointer, node.text("pattern"))


def _any_text(node: JSONObject) -> nodes.AnyText:
    if node.has("max_tokens"):
        message = "max_tokens is not supported in any_text; use max_chars, or any_tokens"
        raise node.error(message, "/max_tokens")
    node.take("max_tokens", None)
    excludes = node.texts("excludes", [])
    return nodes.AnyText(node.pointer, excludes, node.count("max_chars", None))


def _token(node: JSONObject) -> Node:
    return nodes.Tokens(node.pointer, (node.token("token"),))


def _exclude_token(node: JSONObject) -> Node:
    return nodes.Tokens(node.pointer, node.tokens("exclude_tokens", []), excluded=True)


def _any_tokens(node: JSONObject) -> Node:
    excluded, most = node.tokens("exclude_tokens", []), node.count("max_tokens", None)
    return nodes.Tokens(node.pointer, excluded, excluded=True, least=0, most=most)


def _sequence(node: JSONObject) -> Node:
    return nodes.Sequence(node.pointer, _elements(node))


def _or(node: JSONObject) -> Node:
    return nodes.Or(node.pointer, _elements(node))


def _times(least: int, most: int | None) -> Callable[[JSONObject], Node]:
    return lambda node: nodes.Repeat(node.pointer, _node(node.object("content")), least, most)


def _repeat(node: JSONObject) -> Node:
    least, most = node.count("min"), node.count("max", low=-1)
    if 0 <= most < least:
        raise node.error("max must be at least min, or -1 for any number", "/max")
    return nodes.Repeat(
        node.pointer, _node(node.object("content")), least, None if most < 0 else most
    )


def _tag(node: JSONObject) -> nodes.Tag:
    begin, ends = _delimiter(node, "begin"), _delimiter(node, "end")
    if isinstance(begin, tuple):
        raise node.error("begin must be a string or a node of type token", "/begin")
    content = _node(node.object("content"))
    return nodes.Tag(node.pointer, begin, content, (ends,) if isinstance(ends, str) else ends)


def _delimiter(node: JSONObject, name: str) -> str | tuple[str, ...] | nodes.Tokens:
    value = node.take(name)
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return tuple(value)
    found = (
        _node(JSONObject(value, f"{node.pointer}/{name}", node.readers))
        if isinstance(value, dict)
        else None
    )
    if isinstance(found, nodes.Tokens) and not found.excluded:
        return found
    message = f"{name} must be a string, a node of type token" + (
        ", or an array of strings" if name == "end" else ""
    )
    raise node.error(message, f"/{name}")


def _triggered_tags(node: JSONObject) -> nodes.TaggedText:
    triggers, excludes = node.texts("triggers"), node.texts("excludes", [])
    return _checked(_tagged_text(node, triggers, excludes))


def _token_triggered_tags(node: JSONObject) -> Node:
    triggers = tuple(
        nodes.Tokens(f"{node.pointer}/trigger_tokens/{index}", (token,))
        for index, token in enumerate(node.tokens("trigger_tokens"))
    )
    return _checked(_tagged_text(node, triggers, node.tokens("exclude_tokens", [])))


def _tagged_text(
    node: JSONObject,
    triggers: tuple[str, ...] | tuple[nodes.Tokens, ...],
    excludes: tuple[str | int, ...],
) -> nodes.TaggedText:
    tags, needed, once = _tags(node), node.flag("at_least_one"), node.flag("stop_after_first")
    return nodes.TaggedText(node.pointer, triggers, tags, needed, once, excludes)


def triggers_of(text: nodes.TaggedText, tag: nodes.Tag) -> list[str | nodes.Tokens]:
    """The triggers that a tag begins with."""
    return [trigger for trigger in text.triggers if _begins_with(tag.begin, trigger)]


def _begins_with(begin: str | nodes.Tokens, trigger: str | nodes.Tokens) -> bool:
    if isinstance(begin, str) and isinstance(trigger, str):
        return begin.startswith(trigger)
    if isinstance(begin, str) or isinstance(trigger, str):
        return False
    return begin.tokens == trigger.tokens


def _checked(text: nodes.TaggedText) -> nodes.TaggedText:
    """Each tag must begin with exactly one trigger. Raises GrammarError."""
    if not 1 <= len(text.triggers) <= MAX_TRIGGERS:
        message = f"there must be 1 to {MAX_TRIGGERS} triggers; tags can share one"
        raise GrammarError(message, pointer=text.pointer)
    for tag in text.tags:
        found = len(triggers_of(text, tag))
        if found != 1:
            message = f"begin must begin with exactly one of the triggers, not with {found}"
            raise GrammarError(message, pointer=f"{tag.pointer}/begin")
    _check_excludes(text.pointer, text.triggers, text.excludes)
    return text


def _check_excludes(
    pointer: str, triggers: tuple[Any, ...], excludes: tuple[str | int, ...]
) -> None:
    for index, exclude in enumerate(excludes):
        if any(isinstance(t, str) and t.startswith(str(exclude)) for t in triggers):
            message = "a trigger begins with what is excluded, so it could never be written"
            raise GrammarError(message, pointer=f"{pointer}/excludes/{index}")


def _dispatch(node: JSONObject) -> Node:
    excludes = node.texts("excludes", [])
    rules = _rules(node)
    for index, (pattern, _) in enumerate(rules):
        if not isinstance(pattern, str) or not pattern:
            message = "a pattern must be a string that is not empty"
            raise node.error(message, f"/rules/{index}/0")
    _check_excludes(node.pointer, tuple(pattern for pattern, _ in rules), excludes)
    return nodes.Dispatch(node.pointer, rules, node.flag("loop", True), excludes)


def _token_dispatch(node: JSONObject) -> Node:
    rules = []
    for index, (token, content) in enumerate(_rules(node)):
        pointer = f"{node.pointer}/rules/{index}/0"
        if isinstance(token, bool) or not isinstance(token, int | str):
            raise GrammarError("must be a token's id or text", pointer=pointer)
        rules.append((nodes.Tokens(pointer, (token,)), content))
    excludes = node.tokens("exclude_tokens", [])
    return nodes.Dispatch(node.pointer, tuple(rules), node.flag("loop", True), excludes)


def _rules(node: JSONObject) -> tuple[tuple[Any, Node], ...]:
    rules = []
    for index, pair in enumerate(node.array("rules")):
        if not isinstance(pair, list) or len(pair) != 2:
            raise node.error("must be [pattern, format]", f"/rules/{index}")
        content = _node(JSONObject(pair[1], f"{node.pointer}/rules/{index}/1", node.readers))
        rules.append((pair[0], content))
    if not 1 <= len(rules) <= MAX_TRIGGERS:
        raise node.error(f"there must be 1 to {MAX_TRIGGERS} rules", "/rules")
    return tuple(rules)


def _tags_with_separator(node: JSONObject) -> Node:
    return nodes.SeparatedTags(
        node.pointer,
        _tags(node),
        node.text("separator"),
        node.flag("at_least_one"),
        node.flag("stop_after_first"),
    )


_READERS: Readers = {
    "const_string": _const_string,
    "json_schema": _json_schema,
    "qwen_xml_parameter": _qwen_xml_parameter,
    "grammar": _grammar,
    "regex": _regex,
    "any_text": _any_text,
    "token": _token,
    "exclude_token": _exclude_token,
    "any_tokens": _any_tokens,
    "sequence": _sequence,
    "or": _or,
    "optional": _times(0, 1),
    "star": _times(0, None),
    "plus": _times(1, None),
    "repeat": _repeat,
    "tag": _tag,
    "triggered_tags": _triggered_tags,
    "token_triggered_tags": _token_triggered_tags,
    "tags_with_separator": _tags_with_separator,
    "dispatch": _dispatch,
    "token_dispatch": _token_dispatch,
}


def _placed_json_schema(node: JSONObject) -> Node:
    place = node.text("place")
    return replace(_json_schema(node), pointer="", place=place)


def _mixed_text(node: JSONObject) -> Node:
    return replace(_any_text(node), mixed=True)


def _mixed_triggered_tags(node: JSONObject) -> Node:
    return replace(_triggered_tags(node), mixed=True)


def _mark(node: JSONObject) -> Node:
    return nodes.Mark(node.pointer, node.text("value"), node.flag("cuts"))


def _constrained(node: JSONObject) -> Node:
    return nodes.Constrained(node.pointer)


_ANSWER_READERS: Readers = {
    **_READERS,
    "json_schema": _placed_json_schema,
    "mixed_text": _mixed_text,
    "mixed_triggered_tags": _mixed_triggered_tags,
    "mark": _mark,
    "constrained": _constrained,
}
