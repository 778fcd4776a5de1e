"""Clients' structural tags, and the tree of a chat's answer, as llguidance grammars."""

from collections.abc import Callable, Mapping
from typing import Any

from completions.grammars.compiler import DEFAULT_COMPILER, Compiler, Translated
from completions.grammars.complaints import brief
from completions.grammars.constraint import Constraint
from completions.grammars.exceptions import GrammarError
from completions.grammars.json_schema import dump, load
from completions.grammars.limits import COMPACT, Limits, check_bytes, check_depth
from completions.grammars.structural_tag.json_object import JSONObject
from completions.grammars.structural_tag.lowering import Lowering, Node
from completions.grammars.structural_tag.nodes import ANSWER_READERS, READERS, json_node
from completions.grammars.structural_tag.tags import Tag, legacy_tags
from completions.grammars.structural_tag.writer import Writer

ANSWER = "answer"
"""The kind of constraint that a chat completion makes: {"format": tree, "marks": texts,
"constraint": the client's own, as a list, or null}. No client can send it."""


def translate(
    value: Mapping[str, Any] | str, compiler: Compiler = DEFAULT_COMPILER, whitespace: str = COMPACT
) -> Translated:
    """The grammar of a structural tag, as an object or as text. Raises GrammarError."""
    root = screen(value, compiler.limits)
    return _translated(root, Lowering(compiler, whitespace))


def screen(value: Mapping[str, Any] | str, limits: Limits) -> Node:
    """The tree, legacy or not, read within the static caps. Raises GrammarError."""
    check_bytes(value if isinstance(value, str) else dump(value), limits)
    given = load(value) if isinstance(value, str) else value
    check_depth(given, limits)
    node = JSONObject(given, "", READERS)
    if node.text("type", "structural_tag") != "structural_tag":
        raise node.error("type must be structural_tag", "/type")
    root = node.node("format") if node.has("format") else _legacy(node)
    node.end()
    return root


def translate_answer(
    value: Mapping[str, Any],
    compiler: Compiler,
    whitespace: str,
    translate: Callable[[Constraint, Compiler], Translated],
) -> Translated:
    """The grammar of a chat's answer. `translate` is for the client's constraint in it.

    Raises GrammarError with the field of the schema or the constraint that is wrong.
    """
    node = JSONObject(value, "", ANSWER_READERS)
    given, marks, root = node.array("constraint", None), node.texts("marks"), node.node("format")
    node.end()
    lowering = Lowering(
        compiler, whitespace, marks, lambda: translate(Constraint(*given), compiler)
    )
    return _translated(root, lowering)


def _legacy(node: JSONObject) -> Node:
    """{"structures": [{"begin", "schema", "end"}], "triggers"}: tags that hold JSON."""
    if not node.has("structures"):
        raise node.error("needs `format`, or `structures` and `triggers`", "")
    tags = []
    for structure in node.objects("structures"):
        content = json_node(_legacy_schema(structure), f"{structure.pointer}/schema")
        begin, end = structure.text("begin"), structure.text("end")
        structure.end()
        tags.append(Tag(structure.pointer, begin, content, [end]))
    return legacy_tags(node, tags)


def _legacy_schema(node: JSONObject) -> Any:
    """An object, a boolean, text that holds one, or null for any JSON."""
    value = node.take("schema", None)
    if isinstance(value, str):
        try:
            value = load(value)
        except GrammarError as error:
            raise node.error(error.message, "/schema") from error
    if value is not None and not isinstance(value, dict | bool):
        raise node.error("schema must be an object, or text that holds one", "/schema")
    return value


def _translated(root: Node, lowering: Lowering) -> Translated:
    part = root(lowering, ())
    writer = Writer(lowering.compiler)
    grammar = writer.write(part, lowering.grammars)
    if message := lowering.compiler.complaint(grammar):
        raise GrammarError(brief(message))
    # A node that occurs in the tree twice is lowered twice.
    loosened = tuple(dict.fromkeys(lowering.loosened))
    return Translated(grammar, [*lowering.warnings, *writer.warnings], loosened)
