"""Clients' structural tags, and the tree of a chat's answer, as llguidance grammars."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from completions.grammars.compiler import DEFAULT_COMPILER, Compiler, Translation
from completions.grammars.constraint import Constraint
from completions.grammars.exceptions import GrammarError
from completions.grammars.json_schema import dump, load
from completions.grammars.limits import COMPACT, Limits, check_bytes, check_depth
from completions.grammars.messages import explain_error
from completions.grammars.structural_tag.json_object import JSONObject
from completions.grammars.structural_tag.lowering import Lowering, Node
from completions.grammars.structural_tag.nodes import ANSWER_READERS, READERS, make_json_node
from completions.grammars.structural_tag.tags import Tag, read_legacy_tags
from completions.grammars.structural_tag.writer import Writer

ANSWER = "answer"
"""The kind of constraint that a chat completion makes: {"format": tree, "delimiters": texts,
"constraint": the client's own, as a list, or null}. No client can send it."""


def translate(
    value: Mapping[str, object] | str,
    compiler: Compiler = DEFAULT_COMPILER,
    whitespace: str = COMPACT,
) -> Translation:
    """Return the grammar of a structural tag, as an object or as text. Raises GrammarError."""
    root = screen(value, compiler.limits)
    return _lower_root(root, partial(Lowering, compiler, whitespace))


def screen(value: Mapping[str, object] | str, limits: Limits) -> Node:
    """Return the tree, legacy or not, read within the static caps. Raises GrammarError."""
    check_bytes(value if isinstance(value, str) else dump(value), limits)
    tree = load(value) if isinstance(value, str) else value
    check_depth(tree, limits)
    node = JSONObject(tree, "", READERS)
    if node.take_text("type", "structural_tag") != "structural_tag":
        raise node.make_error("type must be structural_tag", "/type")
    root = node.take_node("format") if node.has("format") else _read_legacy(node)
    node.end()
    return root


def translate_answer(
    value: Mapping[str, object],
    compiler: Compiler,
    whitespace: str,
    translate: Callable[[Constraint, Compiler], Translation],
) -> Translation:
    """Return the grammar of a chat's answer. `translate` is for the client's constraint in it.

    Raises GrammarError with the field of the schema or the constraint that is wrong.
    """
    node = JSONObject(value, "", ANSWER_READERS)
    constraint, delimiters, root = (
        node.take_array("constraint", None),
        node.take_texts("delimiters"),
        node.take_node("format"),
    )
    node.end()

    def translate_inner() -> Translation:
        return translate(Constraint(*constraint), compiler)

    return _lower_root(root, partial(Lowering, compiler, whitespace, delimiters, translate_inner))


def _read_legacy(node: JSONObject) -> Node:
    """Read {"structures": [{"begin", "schema", "end"}], "triggers"}: tags that hold JSON."""
    if not node.has("structures"):
        raise node.make_error("needs `format`, or `structures` and `triggers`", "")
    tags = []
    for structure in node.take_objects("structures"):
        content = make_json_node(_take_legacy_schema(structure), f"{structure.pointer}/schema")
        begin, end = structure.take_text("begin"), structure.take_text("end")
        structure.end()
        tags.append(Tag(structure.pointer, begin, content, [end]))
    return read_legacy_tags(node, tags)


def _take_legacy_schema(node: JSONObject) -> object:
    """Return an object, a boolean, text that holds one, or null for any JSON."""
    value = node.take("schema", None)
    if isinstance(value, str):
        try:
            value = load(value)
        except GrammarError as error:
            raise node.make_error(error.message, "/schema") from error
    if value is not None and not isinstance(value, dict | bool):
        raise node.make_error("schema must be an object, or text that holds one", "/schema")
    return value


def _lower_root(root: Node, make_lowering: Callable[..., Lowering]) -> Translation:
    """Return the grammar of a tree. Only one that fails as a whole is lowered with care."""
    with suppress(GrammarError):
        return _lower(root, make_lowering(is_careful=False))
    return _lower(root, make_lowering(is_careful=True))


def _lower(root: Node, lowering: Lowering) -> Translation:
    part = root(lowering, ())
    writer = Writer(lowering.compiler)
    grammar = writer.write(part, lowering.grammars, lowering.rules)
    if message := lowering.compiler.find_error(grammar):
        raise GrammarError(explain_error(message))
    # A node that occurs in the tree twice is lowered twice.
    relaxed = tuple(dict.fromkeys(lowering.relaxed))
    return Translation(grammar, [*lowering.warnings, *writer.warnings], relaxed)
