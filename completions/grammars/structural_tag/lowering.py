"""From the nodes of a structural tag to regular pieces and what lies between them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from completions.grammars import regex, tokens
from completions.grammars.compiler import Compiler, Translated
from completions.grammars.constraint import Constraint
from completions.grammars.exceptions import Finding, GrammarError
from completions.grammars.structural_tag import json_values, nodes
from completions.grammars.structural_tag.nodes import Node, Tree
from completions.grammars.structural_tag.parameters import Parameters
from completions.grammars.structural_tag.parts import (
    ANY,
    EMPTY,
    NONE,
    Embedded,
    Mark,
    Opaque,
    Part,
    Terminal,
    alternatives,
    chain,
    loop,
    tags_in_text,
)
from completions.grammars.structural_tag.reader import triggers_of
from completions.grammars.structural_tag.spelling import Spelling, token
from completions.grammars.structural_tag.writer import named

Ends = tuple[str, ...]
"""Strings that end the nearest tag around: free text inside cannot hold them."""


class Lowering:
    """Lowers one tree, and collects what it finds on the way."""

    def __init__(
        self,
        tree: Tree,
        compiler: Compiler,
        whitespace: str,
        translate: Callable[[Constraint, Compiler], Translated] | None = None,
    ) -> None:
        """`translate` translates the constraint of a tree that has one."""
        self._tree = tree
        self._compiler = compiler
        self._whitespace = whitespace
        self._translate = translate
        self._spelling = Spelling(tree.marks, compiler)
        self.warnings: list[Finding] = []
        """What has no effect in the tree."""
        self.grammars: list[dict[str, Any]] = []
        """Grammars that the parts use by name, as entries of llguidance's list."""

    def part(self) -> Part:
        """The whole tree. Raises GrammarError."""
        return self.lower(self._tree.root)

    def lower(self, node: Node, ends: Ends = ()) -> Part:
        return _LOWERINGS[type(node)](self, node, ends)

    def _const_string(self, node: nodes.ConstString, ends: Ends) -> Part:
        return self._spelling.text(node.value)

    def _json_schema(self, node: nodes.JSONSchema, ends: Ends) -> Part:
        whitespace = self._whitespace if node.spaces is None else node.spaces
        try:
            schema = json_values.check(node.json_schema, node.pointer, self._compiler, whitespace)
            self.warnings += schema.warnings
            if node.style == "json":
                return json_values.symbol(schema.compiled, schema.compiled.get("type"))
            return Parameters(schema, node, self._spelling, self._compiler).lower()
        except GrammarError as error:
            error.field = node.place
            raise

    def _grammar(self, node: nodes.Grammar, ends: Ends) -> Part:
        return Embedded(node.grammar, f"{node.pointer}/grammar")

    def _regex(self, node: nodes.Regex, ends: Ends) -> Part:
        try:
            body, nullable = regex.fragment(node.pattern, self._compiler)
        except GrammarError as error:
            error.pointer = f"{node.pointer}/pattern"
            raise
        return Terminal(body, nullable, is_open=True, pointer=node.pointer)

    def _any_text(self, node: nodes.AnyText, ends: Ends) -> Part:
        excludes = (*node.excludes, *ends)
        return self._spelling.free_text(node.pointer, excludes, node.max_chars, mixed=node.mixed)

    def _sequence(self, node: nodes.Sequence, ends: Ends) -> Part:
        return chain([self.lower(element, ends) for element in node.elements])

    def _or(self, node: nodes.Or, ends: Ends) -> Part:
        return alternatives([self.lower(element, ends) for element in node.elements])

    def _repeat(self, node: nodes.Repeat, ends: Ends) -> Part:
        bound = self._compiler.limits.max_repetition
        if max(node.least, node.most or 0) > bound:
            raise GrammarError(f"repeated more than {bound} times", pointer=node.pointer)
        return loop(self.lower(node.content, ends), node.least, node.most)

    def _tag(self, node: nodes.Tag, ends: Ends) -> Part:
        return chain([self._edge(node.begin), self._rest_of(node)])

    def _rest_of(self, tag: nodes.Tag) -> Part:
        """A tag without its beginning."""
        if isinstance(tag.ends, nodes.Tokens):
            return chain([self.lower(tag.content), self.lower(tag.ends)])
        own = tuple(filter(None, tag.ends))
        end = alternatives([self._spelling.text(end) for end in tag.ends])
        return chain([self.lower(tag.content, own), end])

    def _edge(self, edge: str | nodes.Tokens) -> Part:
        return self._spelling.text(edge) if isinstance(edge, str) else self.lower(edge)

    def _mark(self, node: nodes.Mark, ends: Ends) -> Part:
        spelled = self._spelling.text(node.text)
        return spelled if isinstance(spelled, Opaque) else Mark(node.text, node.cuts)

    def _constrained(self, node: nodes.Constrained, ends: Ends) -> Part:
        constraint = self._tree.constraint
        assert constraint is not None
        assert self._translate is not None
        translated = self._translate(constraint, self._compiler)
        self.warnings += translated.warnings
        self.grammars += named("constraint", translated.grammar)
        return Opaque("@constraint", ANY)

    def _separated_tags(self, node: nodes.SeparatedTags, ends: Ends) -> Part:
        tag = alternatives([self.lower(each) for each in node.tags])
        found = tag
        if not node.stop_after_first:
            found = chain([tag, loop(chain([self._spelling.text(node.separator), tag]), 0, None)])
        return found if node.at_least_one else alternatives([found, EMPTY])

    def _tagged_text(self, node: nodes.TaggedText, ends: Ends) -> Part:
        text = self._text_around(node, node.triggers, node.excludes, ends, mixed=node.mixed)
        triggered = []
        for trigger in node.triggers:
            tags = [tag for tag in node.tags if trigger in triggers_of(node, tag)]
            rests = [
                chain([self._spelling.text(str(tag.begin)[len(trigger) :]), self._rest_of(tag)])
                if isinstance(trigger, str)
                else self._rest_of(tag)
                for tag in tags
            ]
            if rests:
                triggered.append(chain([text, self._edge(trigger), alternatives(rests)]))
        once = alternatives(triggered)
        if not node.at_least_one:
            return alternatives([once, text]) if node.stop_after_first else tags_in_text(once, text)
        first = alternatives([self.lower(tag) for tag in node.tags])
        return first if node.stop_after_first else chain([first, tags_in_text(once, text)])

    def _dispatch(self, node: nodes.Dispatch, ends: Ends) -> Part:
        patterns = tuple(pattern for pattern, _ in node.rules)
        text = self._text_around(node, patterns, node.excludes, ends)
        once = alternatives(
            [
                chain([text, self._edge(pattern), self.lower(content)])
                for pattern, content in node.rules
            ]
        )
        return tags_in_text(once, text) if node.loop else alternatives([once, text])

    def _text_around(
        self,
        node: Node,
        marks: Sequence[str | nodes.Tokens],
        excludes: Sequence[str | int],
        ends: Ends,
        *,
        mixed: bool = False,
    ) -> Part:
        """Free text, or free tokens, that hold none of the marks."""
        named = [mark.tokens[0] for mark in marks if isinstance(mark, nodes.Tokens)]
        if named:
            return self._token_run(node, [*named, *excludes], 0, None)
        strings = [string for string in (*marks, *excludes, *ends) if isinstance(string, str)]
        return self._spelling.free_text(node.pointer, strings, mixed=mixed)

    def _tokens(self, node: nodes.Tokens, ends: Ends) -> Part:
        if node.excluded:
            return self._token_run(node, node.tokens, node.least, node.most)
        return token(self._ids(node, node.tokens)[0])

    def _token_run(
        self, node: Node, excluded: Sequence[int | str], least: int, most: int | None
    ) -> Part:
        ranges = self._table(node).all_but(self._ids(node, excluded))
        if not ranges:
            raise GrammarError("no token is left", pointer=node.pointer)
        spans = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
        return loop(Opaque(f"<[{spans}]>", NONE), least, most)

    def _ids(self, node: Node, named: Sequence[int | str]) -> list[int]:
        table = self._table(node)
        found = []
        for each in named:
            id = each if isinstance(each, int) else table.id_of(each)
            if id is None or not table.exists(id):
                message = f"this model has no token {str(each)[:64]}"
                raise GrammarError(message, pointer=node.pointer)
            found.append(id)
        return found

    def _table(self, node: Node) -> tokens.TokenTable:
        if self._compiler.tokens is None:
            raise GrammarError("tokens need a model", pointer=node.pointer)
        return tokens.load_table(self._compiler.tokens)


_LOWERINGS: Mapping[type[Node], Callable[[Lowering, Any, Ends], Part]] = {
    nodes.ConstString: Lowering._const_string,
    nodes.JSONSchema: Lowering._json_schema,
    nodes.Grammar: Lowering._grammar,
    nodes.Regex: Lowering._regex,
    nodes.AnyText: Lowering._any_text,
    nodes.Sequence: Lowering._sequence,
    nodes.Or: Lowering._or,
    nodes.Repeat: Lowering._repeat,
    nodes.Tag: Lowering._tag,
    nodes.SeparatedTags: Lowering._separated_tags,
    nodes.TaggedText: Lowering._tagged_text,
    nodes.Dispatch: Lowering._dispatch,
    nodes.Tokens: Lowering._tokens,
    nodes.Mark: Lowering._mark,
    nodes.Constrained: Lowering._constrained,
}
