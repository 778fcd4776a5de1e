"""The dialect's calls: Regex("[0-9]+"), Substring("a", "b"), TagDispatch(("<tag>", rule), ...),
Token(5), ..."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from completions.grammars.ebnf import escapes, regular_expressions
from completions.grammars.ebnf.expressions import EMPTY, Expression, Expressions
from completions.grammars.ebnf.lexer import Cursor, Token
from completions.grammars.ebnf.vocabulary import Vocabulary
from completions.grammars.messages import truncate
from completions.grammars.tokens import TokenSource
from completions.regular import code_points

MAX_TAG_CHARACTERS = 2_000
"""Characters in all tags and excluded strings of one TagDispatch."""
_MAX_NESTING = 2


class Name(NamedTuple):
    """The name of a rule."""

    text: str


Value = str | int | bool | Name | list["Argument"]


class Argument(NamedTuple):
    value: Value
    token: Token
    """Its first token."""


@dataclass(slots=True)
class _MacroCall:
    name: Token
    positional: list[Argument] = field(default_factory=list)
    named: dict[str, Argument] = field(default_factory=dict)


class Macros:
    """Reader of the calls of one grammar."""

    def __init__(
        self,
        cursor: Cursor,
        make: Expressions,
        reference: Callable[[Token], Expression],
        source: TokenSource | None,
    ) -> None:
        self._cursor = cursor
        self._make = make
        self._reference = reference
        self.lookaheads: list[int] = []
        """The offsets of look-aheads in patterns."""
        self._vocabulary = Vocabulary(cursor, make, source)

    def is_macro(self, name: Token) -> bool:
        """Return whether the name just read begins a call."""
        return name.text in MACROS and self._cursor.token.text == "("

    def parse(self, name: Token) -> Expression:
        """Return the expression of the call whose name was read. Raises GrammarError."""
        has_arguments, meaning = MACROS[name.text]
        call = self._parse_call(name)
        for key, argument in call.named.items():
            if key not in has_arguments:
                accepted = f"; it takes {', '.join(has_arguments)}" if has_arguments else ""
                message = f"{name.text} takes no argument {truncate(key)}{accepted}"
                raise self._cursor.make_error(argument.token, message)
        return meaning(self, call)

    def _parse_call(self, name: Token) -> _MacroCall:
        call = _MacroCall(name)
        opening = self._cursor.next()
        while not self._cursor.take(")"):
            token = self._cursor.token
            if token.kind == "name" and self._cursor.peek(1).text == "=":
                self._cursor.next()
                self._cursor.next()
                call.named[token.text] = Argument(self._parse_value(0), token)
            else:
                call.positional.append(Argument(self._parse_value(0), token))
            self._parse_separator(opening)
        return call

    def _parse_separator(self, opening: Token) -> None:
        if not self._cursor.take(",") and self._cursor.token.text != ")":
            if self._cursor.token.kind == "end":
                raise self._cursor.make_error(opening, "this ( is not closed; write a )")
            raise self._cursor.make_error(self._cursor.token, "separate arguments by commas")

    def _parse_value(self, nesting: int) -> Value:
        token = self._cursor.next()
        if token.kind == "literal":
            return escapes.parse_literal(self._cursor.text, token.start + 1, token.end - 1)
        if token.kind == "name":
            return token.text == "true" if token.text in ("true", "false") else Name(token.text)
        if token.kind == "number" and len(token.text) < 10:
            return int(token.text)
        if token.text == "(" and nesting < _MAX_NESTING:
            values = []
            while not self._cursor.take(")"):
                start = self._cursor.token
                values.append(Argument(self._parse_value(nesting + 1), start))
                self._parse_separator(token)
            return values
        message = 'an argument is a "text", a number, true, false, a rule, or (...) of those'
        raise self._cursor.make_error(token, message)

    def _make_regex(self, call: _MacroCall) -> Expression:
        pattern = call.positional[0] if len(call.positional) == 1 else None
        if pattern is None or not isinstance(pattern.value, str):
            raise self._cursor.make_error(
                call.name, 'Regex takes one pattern, as in Regex("[0-9]+")'
            )
        json_string = call.named.get("json_string", Argument(False, call.name))
        if not isinstance(json_string.value, bool):
            raise self._cursor.make_error(json_string.token, "json_string must be true or false")
        # `.` matches a newline if flags are not given, or if they contain an s.
        flags = call.named.get("flags", Argument("s", call.name))
        if not isinstance(flags.value, str) or set(flags.value) - set("isu"):
            raise self._cursor.make_error(flags.token, "flags are a text of the letters i, s and u")
        start, end = pattern.token.start + 1, pattern.token.end - 1
        positions = escapes.find_positions(self._cursor.text, start, end)
        read = regular_expressions.parse(
            regular_expressions.Pattern(pattern.value, self._cursor.text, positions),
            self._make,
            flags.value,
            json_string=json_string.value,
        )
        self.lookaheads += [positions[offset] for offset in read.lookaheads]
        return read.expression

    def _make_substring(self, call: _MacroCall) -> Expression:
        return self._make.make_substring(tuple(filter(None, self._check_texts(call.positional))))

    def _check_texts(self, arguments: list[Argument]) -> list[str]:
        texts = []
        for value, token in arguments:
            if not isinstance(value, str):
                raise self._cursor.make_error(token, "this must be a text in double quotes")
            texts.append(value)
        return texts

    def _make_tag_dispatch(self, call: _MacroCall) -> Expression:
        pairs = [self._parse_pair(argument) for argument in call.positional]
        excludes, items = self._parse_excludes(call, '("</answer>",)')
        excluded = self._check_texts(items)
        loops = self._is_looping(call)
        self._check_strings([(tag, token) for tag, token, _ in pairs], excludes, excluded)
        avoided = tuple(dict.fromkeys([*(tag for tag, _, _ in pairs), *excluded]))
        make = self._make
        if not avoided:
            return make.make_repeat(make.make_characters(code_points.ALL), 0, None)
        dispatches = [
            make.make_concatenation([make.make_free_text(avoided, tag), rule])
            for tag, _, rule in pairs
        ]
        rest = make.make_free_text(avoided)
        if not dispatches:
            return rest
        if loops:
            return make.make_concatenation(
                [make.make_repeat(make.make_alternation(dispatches), 0, None), rest]
            )
        return make.make_alternation([*dispatches, rest])

    def _parse_excludes(self, call: _MacroCall, example: str) -> tuple[Token, list[Argument]]:
        """Return the place and the items of the argument `excludes`."""
        excludes = call.named.get("excludes", Argument([], call.name))
        if not isinstance(excludes.value, list):
            raise self._cursor.make_error(
                excludes.token, f"excludes must be a tuple, as in {example}"
            )
        return excludes.token, excludes.value

    def _is_looping(self, call: _MacroCall) -> bool:
        loops = call.named.get("loop_after_dispatch", Argument(True, call.name))
        if not isinstance(loops.value, bool):
            raise self._cursor.make_error(loops.token, "loop_after_dispatch must be true or false")
        return loops.value

    def _parse_pair(self, argument: Argument) -> tuple[str, Token, Expression]:
        """Return a tag, its token, and the rule that follows it."""
        pair = argument.value
        if isinstance(pair, list) and len(pair) == 2:
            (tag, tag_token), (rule, rule_token) = pair
            if isinstance(tag, str) and isinstance(rule, Name):
                return tag, tag_token, self._reference(rule_token)
        message = 'TagDispatch takes pairs of a tag and a rule, as in ("<tag>", rule)'
        raise self._cursor.make_error(argument.token, message)

    def _check_strings(
        self, tags: list[tuple[str, Token]], excludes: Token, excluded: list[str]
    ) -> None:
        """Refuse a string inside another, which would make the end of the free text ambiguous."""
        strings = [*tags, *((string, excludes) for string in excluded)]
        if sum(len(string) for string, _ in strings) > MAX_TAG_CHARACTERS:
            message = (
                f"tags and excludes are longer than {MAX_TAG_CHARACTERS} characters together; "
                "shorten them"
            )
            raise self._cursor.make_error(excludes, message)
        for string, token in strings:
            if not string:
                raise self._cursor.make_error(
                    token, "a tag or an excluded string cannot be empty; give its text"
                )
            for other, _ in strings:
                if other != string and other in string:
                    both = f"{truncate(string)!r} contains {truncate(other)!r}"
                    message = f"{both}; leave one of them out"
                    raise self._cursor.make_error(token, message)
        for tag, token in tags:
            if tag in excluded:
                raise self._cursor.make_error(
                    token, f"{truncate(tag)!r} is both a tag and excluded; leave one of them out"
                )

    def _make_token(self, call: _MacroCall) -> Expression:
        return self._vocabulary.make_tokens(self._parse_ids(call, self._vocabulary.parse_id))

    def _make_exclude_token(self, call: _MacroCall) -> Expression:
        return self._vocabulary.make_other_tokens(
            call.name, self._parse_ids(call, self._vocabulary.resolve_id)
        )

    def _parse_ids(self, call: _MacroCall, id: Callable[[Value, Token], int]) -> list[int]:
        """Return the tokens of a call that takes at least one."""
        if not call.positional:
            name = call.name.text
            message = f'{name} takes token ids or texts, as in {name}(5, "<|im_start|>")'
            raise self._cursor.make_error(call.name, message)
        return [id(*argument) for argument in call.positional]

    def _make_token_tag_dispatch(self, call: _MacroCall) -> Expression:
        triggers = [self._parse_trigger(argument) for argument in call.positional]
        token, items = self._parse_excludes(call, "(5,)")
        excluded = [self._vocabulary.resolve_id(*argument) for argument in items]
        loops, make = self._is_looping(call), self._make
        for id, _ in triggers:
            if id in excluded:
                message = f"the token {id} is both a trigger and excluded; leave one of them out"
                raise self._cursor.make_error(token, message)
        free = self._vocabulary.make_other_tokens(
            call.name, [*(id for id, _ in triggers), *excluded]
        )
        dispatches = [
            make.make_concatenation([self._vocabulary.make_tokens([id]), rule])
            for id, rule in triggers
        ]
        if loops:
            return make.make_repeat(make.make_alternation([free, *dispatches]), 0, None)
        ways = make.make_alternation([EMPTY, *dispatches])
        return make.make_concatenation([make.make_repeat(free, 0, None), ways])

    def _parse_trigger(self, argument: Argument) -> tuple[int, Expression]:
        """Return a token, and the rule that follows it."""
        pair = argument.value
        if isinstance(pair, list) and len(pair) == 2:
            trigger, (rule, rule_token) = pair
            if isinstance(trigger.value, int | str) and isinstance(rule, Name):
                return self._vocabulary.parse_id(*trigger), self._reference(rule_token)
        message = "TokenTagDispatch takes pairs of a token and a rule, as in (5, rule)"
        raise self._cursor.make_error(argument.token, message)


MACROS: dict[str, tuple[tuple[str, ...], Callable[[Macros, _MacroCall], Expression]]] = {
    "Regex": (("flags", "json_string"), Macros._make_regex),
    "Substring": ((), Macros._make_substring),
    "TagDispatch": (("loop_after_dispatch", "excludes"), Macros._make_tag_dispatch),
    "TokenTagDispatch": (("loop_after_dispatch", "excludes"), Macros._make_token_tag_dispatch),
    "Token": ((), Macros._make_token),
    "ExcludeToken": ((), Macros._make_exclude_token),
}
"""For each call, its named arguments and the method that reads it."""
