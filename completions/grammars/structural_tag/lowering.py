"""From the nodes of a structural tag to regular pieces and what lies between them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from completions.grammars import regex, tokens
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import Finding, GrammarError
from completions.grammars.structural_tag import formats, json_values
from completions.grammars.structural_tag.formats import Format
from completions.grammars.structural_tag.parameters import Parameters
from completions.grammars.structural_tag.parts import (
    EMPTY,
    NONE,
    Embedded,
    Part,
    Symbol,
    Terminal,
    chain,
    choice,
    free_text,
    literal,
    literals,
    loop,
)
from completions.grammars.structural_tag.reader import triggers_of

Ends = tuple[str, ...]
"""Strings that end the nearest tag around: free text inside cannot hold them."""


class Lowering:
    """Of one tree. Collects what has no effect in it."""

    def __init__(self, compiler: Compiler, whitespace: str) -> None:
        self._compiler = compiler
        self._whitespace = whitespace
        self.warnings: list[Finding] = []

    def lower(self, node: Format, ends: Ends = ()) -> Part:
        return _LOWERINGS[type(node)](self, node, ends)

    def _const_string(self, node: formats.ConstString, ends: Ends) -> Part:
        return literal(node.value)

    def _json_schema(self, node: formats.JSONSchema, ends: Ends) -> Part:
        whitespace = self._whitespace if node.spaces is None else node.spaces
        schema = json_values.check(node.json_schema, node.pointer, self._compiler, whitespace)
        self.warnings += schema.warnings
        if node.style != "json":
            return Parameters(schema, node.pointer, node.style, self._compiler).lower()
        return json_values.symbol(schema.compiled, schema.compiled.get("type"))

    def _grammar(self, node: formats.Grammar, ends: Ends) -> Part:
        return Embedded(node.grammar, f"{node.pointer}/grammar")

    def _regex(self, node: formats.Regex, ends: Ends) -> Part:
        try:
            body, nullable = regex.fragment(node.pattern, self._compiler)
        except GrammarError as error:
            error.pointer = f"{node.pointer}/pattern"
            raise
        return Terminal(body, nullable, is_open=True, pointer=node.pointer)

    def _any_text(self, node: formats.AnyText, ends: Ends) -> Part:
        return free_text(node.pointer, (*node.excludes, *ends), node.max_chars)

    def _sequence(self, node: formats.Sequence, ends: Ends) -> Part:
        return chain([self.lower(element, ends) for element in node.elements])

    def _or(self, node: formats.Or, ends: Ends) -> Part:
        return choice([self.lower(element, ends) for element in node.elements])

    def _repeat(self, node: formats.Repeat, ends: Ends) -> Part:
        bound = self._compiler.limits.max_repetition
        if max(node.least, node.most or 0) > bound:
            raise GrammarError(f"repeated more than {bound} times", pointer=node.pointer)
        return loop(self.lower(node.content, ends), node.least, node.most)

    def _tag(self, node: formats.Tag, ends: Ends) -> Part:
        return chain([self._mark(node.begin), self._rest_of(node)])

    def _rest_of(self, tag: formats.Tag) -> Part:
        """A tag without its beginning."""
        if isinstance(tag.ends, formats.Tokens):
            return chain([self.lower(tag.content), self.lower(tag.ends)])
        own = tuple(filter(None, tag.ends))
        return chain([self.lower(tag.content, own), literals(tag.ends)])

    def _mark(self, mark: str | formats.Tokens) -> Part:
        return literal(mark) if isinstance(mark, str) else self.lower(mark)

    def _separated_tags(self, node: formats.SeparatedTags, ends: Ends) -> Part:
        tag = choice([self.lower(each) for each in node.tags])
        found = tag
        if not node.stop_after_first:
            found = chain([tag, loop(chain([literal(node.separator), tag]), 0, None)])
        return found if node.at_least_one else choice([found, EMPTY])

    def _tagged_text(self, node: formats.TaggedText, ends: Ends) -> Part:
        text = self._text_around(node, node.triggers, node.excludes, ends)
        triggered = []
        for trigger in node.triggers:
            tags = [tag for tag in node.tags if trigger in triggers_of(node, tag)]
            rests = [
                chain([literal(str(tag.begin)[len(trigger) :]), self._rest_of(tag)])
                if isinstance(trigger, str)
                else self._rest_of(tag)
                for tag in tags
            ]
            if rests:
                triggered.append(chain([text, self._mark(trigger), choice(rests)]))
        once = choice(triggered)
        first = choice([self.lower(tag) for tag in node.tags])
        if node.stop_after_first:
            return first if node.at_least_one else choice([once, text])
        more = chain([loop(once, 0, None), text])
        return chain([first, more]) if node.at_least_one else more

    def _dispatch(self, node: formats.Dispatch, ends: Ends) -> Part:
        patterns = tuple(pattern for pattern, _ in node.rules)
        text = self._text_around(node, patterns, node.excludes, ends)
        once = choice(
            [
                chain([text, self._mark(pattern), self.lower(content)])
                for pattern, content in node.rules
            ]
        )
        return chain([loop(once, 0, None), text]) if node.loop else choice([once, text])

    def _text_around(
        self,
        node: Format,
        marks: Sequence[str | formats.Tokens],
        excludes: Sequence[str | int],
        ends: Ends,
    ) -> Part:
        """Free text, or free tokens, that hold none of the marks."""
        named = [mark.tokens[0] for mark in marks if isinstance(mark, formats.Tokens)]
        if named:
            return self._token_run(node, [*named, *excludes], 0, None)
        strings = [string for string in (*marks, *excludes, *ends) if isinstance(string, str)]
        return free_text(node.pointer, strings, None)

    def _tokens(self, node: formats.Tokens, ends: Ends) -> Part:
        if node.excluded:
            return self._token_run(node, node.tokens, node.least, node.most)
        return Symbol(f"<[{self._ids(node, node.tokens)[0]}]>", NONE)

    def _token_run(
        self, node: Format, excluded: Sequence[int | str], least: int, most: int | None
    ) -> Part:
        ranges = self._table(node).all_but(self._ids(node, excluded))
        if not ranges:
            raise GrammarError("no token is left", pointer=node.pointer)
        spans = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
        return loop(Symbol(f"<[{spans}]>", NONE), least, most)

    def _ids(self, node: Format, tokens: Sequence[int | str]) -> list[int]:
        table = self._table(node)
        found = []
        for token in tokens:
            id = token if isinstance(token, int) else table.id_of(token)
            if id is None or not table.exists(id):
                message = f"this model has no token {str(token)[:64]}"
                raise GrammarError(message, pointer=node.pointer)
            found.append(id)
        return found

    def _table(self, node: Format) -> tokens.TokenTable:
        if self._compiler.tokens is None:
            raise GrammarError("tokens need a model", pointer=node.pointer)
        return tokens.load_table(self._compiler.tokens)


_LOWERINGS: Mapping[type[Format], Callable[[Lowering, Any, Ends], Part]] = {
    formats.ConstString: Lowering._const_string,
    formats.JSONSchema: Lowering._json_schema,
    formats.Grammar: Lowering._grammar,
    formats.Regex: Lowering._regex,
    formats.AnyText: Lowering._any_text,
    formats.Sequence: Lowering._sequence,
    formats.Or: Lowering._or,
    formats.Repeat: Lowering._repeat,
    formats.Tag: Lowering._tag,
    formats.SeparatedTags: Lowering._separated_tags,
    formats.TaggedText: Lowering._tagged_text,
    formats.Dispatch: Lowering._dispatch,
    formats.Tokens: Lowering._tokens,
}
