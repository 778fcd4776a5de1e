"""EBNF text to rules, in the dialect of XGrammar and SGLang with GBNF's additions.

The parser is iterative and keeps open groups on a stack of its own, so deep nesting does not
overflow Python's stack.
"""

from completions.grammars import code_points
from completions.grammars.compiler import Compiler
from completions.grammars.complaints import shortened
from completions.grammars.ebnf import escapes, options
from completions.grammars.ebnf.expressions import Expression, Expressions, Group
from completions.grammars.ebnf.lexer import Cursor, Token
from completions.grammars.ebnf.macros import MACROS, Macros
from completions.grammars.ebnf.rules import ROOT, Grammar, Option
from completions.grammars.exceptions import GrammarError

_BOUNDS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_QUANTIFIERS = (*_BOUNDS, "{")


def parse(text: str, compiler: Compiler) -> Grammar:
    """The rules of a text for the compiler's model. Raises GrammarError with line and column."""
    return _Parser(text, compiler).grammar()


class _Parser:
    def __init__(self, text: str, compiler: Compiler) -> None:
        self._text = text
        self._limits = compiler.limits
        self._max_nesting = 4 * compiler.limits.max_depth
        self._cursor = Cursor(text)
        self._make = Expressions()
        self._macros = Macros(self._cursor, self._make, self._name, compiler.tokens)
        self._grammar = Grammar(text, self._make, start=self._make.reference(ROOT))
        self._used: dict[str, Token] = {}

    def grammar(self) -> Grammar:
        while self._cursor.token.kind != "end":
            self._rule()
        rules = self._grammar.rules
        for name, token in self._used.items():
            if name not in rules:
                raise self._cursor.error(token, self._undefined(name, token))
        if ROOT not in rules:
            raise GrammarError(
                f"there is no rule named {ROOT}; add the rule that the whole text matches"
            )
        self._grammar.lookaheads += self._macros.lookaheads
        return self._grammar

    def _rule(self) -> None:
        name = self._cursor.next()
        given = self._options(name)
        if name.kind != "name" or self._cursor.token.kind != "define":
            raise self._cursor.error(name, "write a rule as name ::= ...")
        if name.text in self._grammar.rules:
            raise self._cursor.error(
                name, f"the rule {shortened(name.text)} is defined twice; write one with | between"
            )
        define = self._cursor.next()
        if self._at_rule_end():
            raise self._cursor.error(define, 'this rule has no body; write the empty text as ""')
        self._grammar.rules[name.text] = self._body(define)
        self._grammar.places[name.text] = name.start
        if given:
            self._grammar.options[name.text] = given
        if self._cursor.token.kind == "lookahead":
            self._lookahead()

    def _options(self, name: Token) -> list[Option]:
        """The options between a rule's name and ::=, if there are any."""
        brackets = self._cursor.token
        if (brackets.kind, self._cursor.ahead(1).kind) != ("class", "define"):
            return []
        if name.kind != "name":
            raise self._cursor.error(name, "write a rule as name ::= ...")
        self._cursor.next()
        return options.read(self._cursor, brackets)

    def _at_rule_end(self) -> bool:
        """Whether the text ends here, or the next `name ::=` follows."""
        token = self._cursor.token
        if token.kind == "end":
            return True
        if token.kind != "name":
            return False
        if self._cursor.ahead(1).kind != "define":
            has_options = (
                self._cursor.ahead(1).kind == "class" and self._cursor.ahead(2).kind == "define"
            )
            return has_options and token.begins_line
        if not token.begins_line:
            raise self._cursor.error(
                token, f"the rule {token.text} must begin on a line of its own"
            )
        return True

    def _body(self, opening: Token, *, in_lookahead: bool = False) -> Expression:
        """The body, up to the end of the rule or to its look-ahead; in a look-ahead, up to its
        parenthesis."""
        groups = [Group(self._make)]
        openings = [opening]
        while not self._at_rule_end():
            token = self._cursor.token
            if token.kind == "lookahead" or (token.text == ")" and len(groups) == in_lookahead):
                break
            if token.text == "(":
                if len(groups) > self._max_nesting:
                    message = (
                        f"nested deeper than {self._max_nesting} parentheses; make a part a rule "
                        "of its own"
                    )
                    raise self._cursor.error(token, message)
                groups.append(Group(self._make))
                openings.append(self._cursor.next())
            elif token.text == "|":
                self._cursor.next()
                groups[-1].end_option()
            elif token.text == ")" and len(groups) > 1:
                self._cursor.next()
                openings.pop()
                closed = groups.pop().closed()
                groups[-1].parts.append(self._quantified(closed))
            else:
                groups[-1].parts.append(self._quantified(self._element()))
        if len(groups) > 1:
            raise self._never_closed(openings[-1])
        return groups[0].closed()

    def _never_closed(self, opening: Token) -> GrammarError:
        if self._cursor.token.kind == "lookahead":
            return self._cursor.error(
                self._cursor.token, "look-ahead (= ...) may stand only at the end of a rule"
            )
        return self._cursor.error(opening, f"this {opening.text} is not closed; write a )")

    def _element(self) -> Expression:
        token = self._cursor.next()
        start, end = token.start + 1, token.end - 1
        if token.kind == "literal":
            return self._make.literal(escapes.literal(self._text, start, end))
        if token.kind == "class":
            return self._make.characters(escapes.character_class(self._text, start, end))
        if token.kind == "name":
            return (
                self._macros.expression(token) if self._macros.begins(token) else self._name(token)
            )
        raise self._cursor.error(token, self._unexpected(token))

    def _undefined(self, name: str, token: Token) -> str:
        shown = shortened(name)
        if name[0].isupper() and self._text[token.end :].startswith("("):
            return f"there is no macro {shown}; use one of: {', '.join(MACROS)}"
        return f"the rule {shown} is not defined; define it, or write text in double quotes"

    def _name(self, token: Token) -> Expression:
        if token.text == ".":
            return self._make.characters(code_points.ALL)
        self._used.setdefault(token.text, token)
        return self._make.reference(token.text)

    @staticmethod
    def _unexpected(token: Token) -> str:
        if token.text in _QUANTIFIERS:
            return f"{token.text} has nothing to repeat; write what it repeats before it"
        if token.text == ")":
            return "this ) has no matching (; remove it"
        if token.kind == "define":
            return "::= must follow the name of a rule"
        return f"unexpected {token.text}; write text to match in double quotes"

    def _quantified(self, element: Expression) -> Expression:
        token = self._cursor.token
        if token.text in _BOUNDS:
            self._cursor.next()
            low, high = _BOUNDS[token.text]
        elif token.text == "{":
            low, high = self._counts()
        else:
            return element
        if self._cursor.token.text in _QUANTIFIERS:
            message = "two repetitions in a row; put the first one in parentheses"
            raise self._cursor.error(self._cursor.token, message)
        return self._make.repeat(element, low, high)

    def _counts(self) -> tuple[int, int | None]:
        """The bounds of {m}, {m,n} or {m,}; {m,-1} means {m,}."""
        opening = self._cursor.next()
        inside: list[Token] = []
        while self._cursor.token.kind in ("number", "name") or self._cursor.token.text == ",":
            inside.append(self._cursor.next())
        closing = self._cursor.next()
        texts = [token.text for token in inside]
        numbers = [self._number(token) for token in inside if token.kind == "number"]
        shape = ["n" if token.kind == "number" else token.text for token in inside]
        if closing.text != "}" or shape not in (
            ["n"],
            ["n", ","],
            ["n", ",", "n"],
            ["n", ",", "-1"],
        ):
            raise self._cursor.error(
                opening, "write a repetition as {m}, {m,} or {m,n}; m may be 0"
            )
        low = numbers[0]
        high = numbers[-1] if texts[-1] not in (",", "-1") else None
        if high is not None and high < low:
            raise self._cursor.error(
                opening,
                f"the repetition {{{low},{high}}} has a minimum above its maximum; exchange them",
            )
        return low, high

    def _number(self, token: Token) -> int:
        most = self._limits.max_repetition
        if len(token.text) > len(str(most)) or int(token.text) > most:
            raise self._cursor.error(
                token, f"the count {token.text[:12]} is too large; the most is {most}"
            )
        return int(token.text)

    def _lookahead(self) -> None:
        """Read (= ...) after a body. It restricts no text in this dialect, so it is left out."""
        opening = self._cursor.next()
        self._body(opening, in_lookahead=True)
        if self._cursor.token.text != ")":
            raise self._never_closed(opening)
        self._cursor.next()
        if not self._at_rule_end():
            raise self._cursor.error(
                self._cursor.token,
                "nothing may follow the look-ahead (= ...) of a rule; move it to the end",
            )
        self._grammar.lookaheads.append(opening.start)
