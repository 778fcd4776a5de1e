"""The nodes of XGrammar's `format` tree: text, JSON, grammars, tokens, and nodes that combine them.

A function for each type checks the fields of a node and returns the function that lowers it.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from completions.grammars import json_schema, lark, lark_quoting, regex
from completions.grammars.compiler import DEFAULT_COMPILER
from completions.grammars.exceptions import GrammarError, UnknownNodeError
from completions.grammars.limits import check_shape
from completions.grammars.messages import format_value
from completions.grammars.schema.nodes import Document
from completions.grammars.structural_tag import json_nodes, tags
from completions.grammars.structural_tag.elements import Elements
from completions.grammars.structural_tag.json_object import JSONObject, Readers
from completions.grammars.structural_tag.literals import Arguments, Literals
from completions.grammars.structural_tag.lowering import Ends, Lowering, Node
from completions.grammars.structural_tag.parameters import (
    STYLES,
    Parameters,
    Style,
    make_json_symbol,
)
from completions.grammars.structural_tag.parts import (
    ANY,
    Delimiter,
    Embedded,
    Opaque,
    Part,
    Terminal,
    make_alternatives,
    make_chain,
    make_loop,
)


def make_json_node(
    schema: object,
    pointer: str,
    style: Style | Literals | None = None,
    spaces: int | None = None,
    path: str = "",
    or_object: bool = False,
) -> Node:
    """Return JSON that fits the schema at a pointer, or with a style, parameters in a model's own
    tags.

    `spaces` is the most whitespace characters in a row; None means the request's own whitespace.
    Errors name `path`, a path in the request, instead of the field. With `or_object`, a schema
    that cannot be expressed becomes any object, and its path is noted in `lowering.relaxed`.
    """
    original = Document(schema).root.keywords

    def lower_checked(schema: Mapping[str, object], lowering: Lowering) -> Part:
        whitespace = lowering.whitespace if spaces is None else spaces
        checked = json_schema.check_inside(
            schema, lowering.compiler, whitespace, pointer, compiles=lowering.is_careful
        )
        lowering.warnings += checked.warnings
        if style is None:
            return make_json_symbol(checked.compiled, checked.compiled.get("type"))
        if isinstance(style, Style):
            kind = Elements if style.item else Parameters
            return kind(checked, pointer, style, lowering).lower()
        return Arguments(checked, pointer, style, lowering).lower()

    def lower_fresh(lowering: Lowering) -> Part:
        try:
            return lower_checked(original, lowering)
        except GrammarError as error:
            if or_object:
                lowering.relaxed.append(path)
                return lower_checked(json_nodes.ANY_OBJECT, lowering)
            error.field = path
            raise

    key = json.dumps(original), pointer, style, spaces, path, or_object
    return lambda lowering, ends: lowering.once(key, lower_fresh)


def _read_json_schema(node: JSONObject) -> Node:
    schema = _take_schema(node)
    style = node.take_text("style", "json")
    if style != "json" and style not in STYLES:
        styles = ", ".join(["json", *STYLES])
        message = f"the style {style[:64]} is not supported; use one of: {styles}"
        raise UnknownNodeError(message, pointer=f"{node.pointer}/style")
    if node.take_flag("any_order"):
        raise node.make_error(
            "any_order is not supported; leave it out: properties keep their order", "/any_order"
        )
    if node.take_array("excludes", []):
        raise node.make_error(
            "excludes is not supported in JSON; give the strings of the schema a pattern",
            "/excludes",
        )
    spaces = node.take_count("max_whitespace_cnt", None)
    return make_json_node(schema, f"{node.pointer}/json_schema", STYLES.get(style), spaces)


def _read_arguments(node: JSONObject) -> Node:
    """Read a schema in an answer. Its pointers start at its place in the request."""
    style = node.take("style", None)
    make_style = Literals if style and "assign" in style else Style
    return make_json_node(
        _take_schema(node),
        "",
        make_style(**style) if style else None,
        path=node.take_text("place"),
        or_object=node.take_flag("or_object"),
    )


def _read_qwen_xml_parameter(node: JSONObject) -> Node:
    return make_json_node(_take_schema(node), f"{node.pointer}/json_schema", STYLES["qwen_xml"])


def _take_schema(node: JSONObject) -> object:
    schema = node.take("json_schema")
    if not isinstance(schema, dict | bool):
        message = f"json_schema must be an object or a boolean, not {format_value(schema)}"
        raise node.make_error(message, "/json_schema")
    return schema


def _read_const_string(node: JSONObject) -> Node:
    value = node.take_text("value")
    return lambda lowering, ends: lowering.spelling.spell(value)


def _read_grammar(node: JSONObject) -> Node:
    part = Embedded(node.take_text("grammar"), f"{node.pointer}/grammar")
    return lambda lowering, ends: part


def _read_regex(node: JSONObject) -> Node:
    pattern = node.take_text("pattern")

    def translate(lowering: Lowering) -> Terminal:
        try:
            body, nullable = regex.translate_fragment(pattern, lowering.compiler)
        except GrammarError as error:
            error.pointer = f"{node.pointer}/pattern"
            raise
        return Terminal(body, nullable, is_open=True, stops=_list_stops(body))

    return lambda lowering, ends: replace(
        lowering.once(("regex", pattern), translate), pointer=node.pointer
    )


def _list_stops(expression: str) -> tuple[str, ...]:
    """Return the characters, of those that often follow a pattern, that none of its texts has. One
    compilation for each spares those of all literals behind it."""
    lark = "start: B\nB: T & /(?s:.*{}.*)/\nT: {}"
    return tuple(
        each
        for each in '"<'
        if DEFAULT_COMPILER.find_error(lark.format(each, expression)).startswith("NoExtension")
    )


def _read_any_text(node: JSONObject, *, mixed: bool = False) -> Node:
    if node.has("max_tokens"):
        message = "max_tokens is not supported in any_text; use max_chars, or any_tokens"
        raise node.make_error(message, "/max_tokens")
    node.take("max_tokens", None)
    excludes, max_chars = node.take_texts("excludes", []), node.take_count("max_chars", None)
    return lambda lowering, ends: lowering.spelling.make_free_text(
        node.pointer, (*excludes, *_iter_strings(ends)), max_chars, mixed=mixed
    )


def _iter_strings(ends: Ends) -> Iterator[str]:
    return (end for end in ends if isinstance(end, str))


def _read_token(node: JSONObject) -> Node:
    token = node.check_token(node.take("token"), "/token")
    return lambda lowering, ends: lowering.lower_token(node.pointer, token)


def _read_exclude_token(node: JSONObject) -> Node:
    excluded = node.take_tokens("exclude_tokens", [])
    return lambda lowering, ends: lowering.lower_other_tokens(node.pointer, excluded, ends, 1, 1)


def _read_any_tokens(node: JSONObject) -> Node:
    excluded, max_tokens = (
        node.take_tokens("exclude_tokens", []),
        node.take_count("max_tokens", None),
    )
    return lambda lowering, ends: lowering.lower_other_tokens(
        node.pointer, excluded, ends, 0, max_tokens
    )


def _read_joined(node: JSONObject, join: Callable[[Sequence[Part]], Part]) -> Node:
    elements = node.take_nodes("elements")
    return lambda lowering, ends: join([lower(lowering, ends) for lower in elements])


def _read_repeat(node: JSONObject) -> Node:
    minimum, maximum = node.take_count("min"), node.take_count("max", low=-1)
    if 0 <= maximum < minimum:
        message = f"max is {maximum}, less than min, which is {minimum}; -1 means any number"
        raise node.make_error(message, "/max")
    return _make_repeat(node, minimum, None if maximum < 0 else maximum)


def _make_repeat(node: JSONObject, minimum: int, maximum: int | None) -> Node:
    """Return the content of a node `minimum` to `most` times; None means any number."""
    content = node.take_node("content")

    def lower(lowering: Lowering, ends: Ends) -> Part:
        bound = lowering.compiler.limits.max_repetition
        if max(minimum, maximum or 0) > bound:
            raise GrammarError(
                f"repeated more than {bound} times; give a smaller max", pointer=node.pointer
            )
        part = make_loop(content(lowering, ends), minimum, maximum)
        if isinstance(part, Terminal):  # llguidance multiplies the states of its lexer
            try:
                check_shape(part.expression, lowering.compiler.limits, is_regex=False)
            except GrammarError as error:
                raise GrammarError(error.message, pointer=node.pointer) from error
        return part

    return lower


READERS: Readers = {
    "const_string": _read_const_string,
    "json_schema": _read_json_schema,
    "qwen_xml_parameter": _read_qwen_xml_parameter,
    "grammar": _read_grammar,
    "regex": _read_regex,
    "any_text": _read_any_text,
    "token": _read_token,
    "exclude_token": _read_exclude_token,
    "any_tokens": _read_any_tokens,
    "sequence": partial(_read_joined, join=make_chain),
    "or": partial(_read_joined, join=make_alternatives),
    "optional": partial(_make_repeat, minimum=0, maximum=1),
    "star": partial(_make_repeat, minimum=0, maximum=None),
    "plus": partial(_make_repeat, minimum=1, maximum=None),
    "repeat": _read_repeat,
    "tag": lambda given: tags.read_tag(given).lower,
    "triggered_tags": tags.read_triggered_tags,
    "token_triggered_tags": tags.read_token_triggered_tags,
    "tags_with_separator": tags.read_tags_with_separator,
    "dispatch": tags.read_dispatch,
    "token_dispatch": tags.read_token_dispatch,
}


def _read_delimiter(node: JSONObject) -> Node:
    text, cuts = node.take_text("value"), node.take_flag("cuts")

    def lower(lowering: Lowering, ends: Ends) -> Part:
        spelled = lowering.spelling.spell(text)
        return Delimiter(text, cuts) if isinstance(spelled, Terminal) else spelled

    return lower


def _read_constrained(node: JSONObject) -> Node:
    def lower(lowering: Lowering, ends: Ends) -> Part:
        assert lowering.constrained is not None
        translated = lowering.constrained()
        lowering.warnings += translated.warnings
        lowering.grammars += _name_grammar("constraint", translated.grammar)
        return Opaque("@constraint", ANY)

    return lower


def _name_grammar(name: str, grammar: str) -> list[dict[str, object]]:
    """Return a translated grammar as entries of llguidance's list, of which the first has the
    name."""
    if not grammar.lstrip().startswith("{"):
        return [{"name": name, "lark_grammar": grammar}]
    first, *rest = json.loads(grammar)["grammars"]
    return [{**first, "name": name}, *rest]


def _read_custom_input(node: JSONObject) -> Node:
    """Read the grammar of a custom tool's input. If `is_quoted`, the input is in a JSON string."""
    definition, is_regex = node.take_text("definition"), node.take_flag("is_regex")
    is_quoted, path = node.take_flag("is_quoted"), node.take_text("place")

    def lower(lowering: Lowering, ends: Ends) -> Part:
        try:
            if is_regex and not is_quoted:  # one lexeme with the quote behind it
                body, nullable = regex.translate_fragment(definition, lowering.compiler)
                return Terminal(body, nullable, is_open=True)
            text = _translate_input(definition, lowering, is_regex=is_regex)
            if is_quoted:
                text = _check_lark(lark_quoting.quote(text), lowering)
        except GrammarError as error:
            error.field = path
            raise
        return Embedded(text, is_lark=True)

    return lower


def _translate_input(definition: str, lowering: Lowering, *, is_regex: bool) -> str:
    """Return a grammar in Lark that is valid."""
    if not is_regex:
        return _check_lark(definition, lowering)
    grammar = json.loads(regex.translate(definition, lowering.compiler).grammar)
    return str(grammar["grammars"][0]["lark_grammar"])


def _check_lark(text: str, lowering: Lowering) -> str:
    value = {"grammars": [{"lark_grammar": text}]}
    translated = lark.translate(value, lowering.compiler, lowering.whitespace)
    return str(json.loads(translated.grammar)["grammars"][0]["lark_grammar"])


ANSWER_READERS: Readers = {
    **READERS,
    "json_schema": _read_arguments,
    "custom_input": _read_custom_input,
    "mixed_text": partial(_read_any_text, mixed=True),
    "mixed_triggered_tags": partial(tags.read_triggered_tags, mixed=True),
    "delimiter": _read_delimiter,
    "constrained": _read_constrained,
}
"""The nodes of a chat's answer, some of which no client can send."""
