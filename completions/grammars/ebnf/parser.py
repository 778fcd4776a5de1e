"""EBNF text to rules, in the dialect of XGrammar and SGLang with GBNF's additions.

The parser is iterative and keeps open groups on a stack of its own, so deep nesting does not
overflow Python's stack.
"""

from completions.grammars.compiler import Compiler
from completions.grammars.ebnf import escapes, options
from completions.grammars.ebnf.expressions import Expression, Expressions, Group
from completions.grammars.ebnf.lexer import Cursor, Token
from completions.grammars.ebnf.macros import MACROS, Macros
from completions.grammars.ebnf.rules import ROOT, Grammar, Option
from completions.grammars.exceptions import GrammarError
from completions.grammars.messages import truncate
from completions.regular import code_points

_BOUNDS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_QUANTIFIERS = (*_BOUNDS, "{")


def parse(text: str, compiler: Compiler) -> Grammar:
    """Return the rules of a text for the compiler's model. Raises GrammarError with line and
    column."""
    return _Parser(text, compiler).parse()


class _Parser:
    def __init__(self, text: str, compiler: Compiler) -> None:
        self._text = text
        self._limits = compiler.limits
        self._max_nesting = 4 * compiler.limits.max_depth
        self._cursor = Cursor(text)
        self._make = Expressions()
        self._macros = Macros(self._cursor, self._make, self._parse_name, compiler.tokens)
        self._grammar = Grammar(text, self._make, start=self._make.make_reference(ROOT))
        self._used: dict[str, Token] = {}

    def parse(self) -> Grammar:
        while self._cursor.token.kind != "end":
            self._parse_rule()
        rules = self._grammar.rules
        for name, token in self._used.items():
            if name not in rules:
                raise self._cursor.make_error(token, self._explain_undefined(name, token))
        if ROOT not in rules:
            raise GrammarError(
                f"there is no rule named {ROOT}; add the rule that the whole text matches"
            )
        self._grammar.lookaheads += self._macros.lookaheads
        return self._grammar

    def _parse_rule(self) -> None:
        name = self._cursor.next()
        options = self._parse_options(name)
        if name.kind != "name" or self._cursor.token.kind != "define":
            raise self._cursor.make_error(name, "write a rule as name ::= ...")
        if name.text in self._grammar.rules:
            raise self._cursor.make_error(
                name, f"the rule {truncate(name.text)} is defined twice; write one with | between"
            )
        define = self._cursor.next()
        if self._is_at_rule_end():
            raise self._cursor.make_error(
                define, 'this rule has no body; write the empty text as ""'
            )
        self._grammar.rules[name.text] = self._parse_body(define)
        self._grammar.positions[name.text] = name.start
        if options:
            self._grammar.options[name.text] = options
        if self._cursor.token.kind == "lookahead":
            self._skip_lookahead()

    def _parse_options(self, name: Token) -> list[Option]:
        """Return the options between a rule's name and ::=, if there are any."""
        brackets = self._cursor.token
        if (brackets.kind, self._cursor.peek(1).kind) != ("class", "define"):
            return []
        if name.kind != "name":
            raise self._cursor.make_error(name, "write a rule as name ::= ...")
        self._cursor.next()
        return options.read(self._cursor, brackets)

    def _is_at_rule_end(self) -> bool:
        """Return whether the text ends here, or the next `name ::=` follows."""
        token = self._cursor.token
        if token.kind == "end":
            return True
        if token.kind != "name":
            return False
        if self._cursor.peek(1).kind != "define":
            has_options = (
                self._cursor.peek(1).kind == "class" and self._cursor.peek(2).kind == "define"
            )
            return has_options and token.begins_line
        if not token.begins_line:
            raise self._cursor.make_error(
                token, f"the rule {token.text} must begin on a line of its own"
            )
        return True

    def _parse_body(self, opening: Token, *, in_lookahead: bool = False) -> Expression:
        """Return the body, up to the end of the rule or to its look-ahead; in a look-ahead, up to
        its parenthesis."""
        groups = [Group(self._make)]
        openings = [opening]
        while not self._is_at_rule_end():
            token = self._cursor.token
            if token.kind == "lookahead" or (token.text == ")" and len(groups) == in_lookahead):
                break
            if token.text == "(":
                if len(groups) > self._max_nesting:
                    message = (
                        f"nested deeper than {self._max_nesting} parentheses; make a part a rule "
                        "of its own"
                    )
                    raise self._cursor.make_error(token, message)
                groups.append(Group(self._make))
                openings.append(self._cursor.next())
            elif token.text == "|":
                self._cursor.next()
                groups[-1].end_option()
            elif token.text == ")" and len(groups) > 1:
                self._cursor.next()
                openings.pop()
                closed = groups.pop().close()
                groups[-1].parts.append(self._parse_quantifier(closed))
            else:
                groups[-1].parts.append(self._parse_quantifier(self._parse_element()))
        if len(groups) > 1:
            raise self._make_unclosed_error(openings[-1])
        return groups[0].close()

    def _make_unclosed_error(self, opening: Token) -> GrammarError:
        if self._cursor.token.kind == "lookahead":
            return self._cursor.make_error(
                self._cursor.token, "look-ahead (= ...) may stand only at the end of a rule"
            )
        return self._cursor.make_error(opening, f"this {opening.text} is not closed; write a )")

    def _parse_element(self) -> Expression:
        token = self._cursor.next()
        start, end = token.start + 1, token.end - 1
        if token.kind == "literal":
            return self._make.make_literal(escapes.parse_literal(self._text, start, end))
        if token.kind == "class":
            return self._make.make_characters(escapes.parse_class(self._text, start, end))
        if token.kind == "name":
            return (
                self._macros.parse(token)
                if self._macros.is_macro(token)
                else self._parse_name(token)
            )
        raise self._cursor.make_error(token, self._explain_unexpected(token))

    def _explain_undefined(self, name: str, token: Token) -> str:
        quoted = truncate(name)
        if name[0].isupper() and self._text[token.end :].startswith("("):
            return f"there is no macro {quoted}; use one of: {', '.join(MACROS)}"
        return f"the rule {quoted} is not defined; define it, or write text in double quotes"

    def _parse_name(self, token: Token) -> Expression:
        if token.text == ".":
            return self._make.make_characters(code_points.ALL)
        self._used.setdefault(token.text, token)
        return self._make.make_reference(token.text)

    @staticmethod
    def _explain_unexpected(token: Token) -> str:
        if token.text in _QUANTIFIERS:
            return f"{token.text} has nothing to repeat; write what it repeats before it"
        if token.text == ")":
            return "this ) has no matching (; remove it"
        if token.kind == "define":
            return "::= must follow the name of a rule"
        return f"unexpected {token.text}; write text to match in double quotes"

    def _parse_quantifier(self, element: Expression) -> Expression:
        token = self._cursor.token
        if token.text in _BOUNDS:
            self._cursor.next()
            low, high = _BOUNDS[token.text]
        elif token.text == "{":
            low, high = self._parse_counts()
        else:
            return element
        if self._cursor.token.text in _QUANTIFIERS:
            message = "two repetitions in a row; put the first one in parentheses"
            raise self._cursor.make_error(self._cursor.token, message)
        return self._make.make_repeat(element, low, high)

    def _parse_counts(self) -> tuple[int, int | None]:
        """Return the bounds of {m}, {m,n} or {m,}; {m,-1} means {m,}."""
        opening = self._cursor.next()
        inside: list[Token] = []
        while self._cursor.token.kind in ("number", "name") or self._cursor.token.text == ",":
            inside.append(self._cursor.next())
        closing = self._cursor.next()
        texts = [token.text for token in inside]
        numbers = [self._parse_number(token) for token in inside if token.kind == "number"]
        shape = ["n" if token.kind == "number" else token.text for token in inside]
        if closing.text != "}" or shape not in (
            ["n"],
            ["n", ","],
            ["n", ",", "n"],
            ["n", ",", "-1"],
        ):
            raise self._cursor.make_error(
                opening, "write a repetition as {m}, {m,} or {m,n}; m may be 0"
            )
        low = numbers[0]
        high = numbers[-1] if texts[-1] not in (",", "-1") else None
        if high is not None and high < low:
            raise self._cursor.make_error(
                opening,
                f"the repetition {{{low},{high}}} has a minimum above its maximum; exchange them",
            )
        return low, high

    def _parse_number(self, token: Token) -> int:
        maximum = self._limits.max_repetition
        if len(token.text) > len(str(maximum)) or int(token.text) > maximum:
            raise self._cursor.make_error(
                token, f"the count {token.text[:12]} is too large; the most is {maximum}"
            )
        return int(token.text)

    def _skip_lookahead(self) -> None:
        """Read (= ...) after a body. It restricts no text in this dialect, so it is left out."""
        opening = self._cursor.next()
        self._parse_body(opening, in_lookahead=True)
        if self._cursor.token.text != ")":
            raise self._make_unclosed_error(opening)
        self._cursor.next()
        if not self._is_at_rule_end():
            raise self._cursor.make_error(
                self._cursor.token,
                "nothing may follow the look-ahead (= ...) of a rule; move it to the end",
            )
        self._grammar.lookaheads.append(opening.start)
