"""What is refused, where, and what the message advises."""

import pytest

from completions.grammars import Constraint, ebnf, translate
from completions.grammars.exceptions import GrammarError


@pytest.mark.parametrize(
    ("text", "line", "column", "reason"),
    [
        ('start: "a"', 1, 1, "Lark"),
        ('  %llguidance {}\nstart: "a"', 1, 3, "Lark"),
        ('root = "a"', 1, 1, "write a rule as name ::="),
        ('root : "a"', 1, 6, "write a rule as name ::="),
        ('"a"', 1, 1, "write a rule as name ::="),
        ('root ::= "a" ::= "b"', 1, 14, "::= must follow"),
        ("root ::=", 1, 6, 'write the empty text as ""'),
        ('root ::=\na ::= "x"', 1, 6, 'write the empty text as ""'),
        ('root ::= a\na ::= "b"\na ::= "c"', 3, 1, "a is defined twice"),
        ('root ::= a b ::= "x"', 1, 12, "b must begin on a line of its own"),
        ('root ::= "a"\n\n  b', 3, 3, "b is not defined"),
        ('root ::= "a"\nunused ::= b', 2, 12, "b is not defined"),
        ('root ::= "a"i', 1, 13, "i is not defined"),
        ('root ::= "x" | a\na ::= b "y"\nb ::= a', 2, 1, "a can never end"),
        ("root ::= root", 1, 1, "root can never end"),
        ("root ::= 'a'", 1, 10, "double quotes"),
        ("root ::= é", 1, 10, "ASCII"),
        ('root ::= "a" $', 1, 14, "unexpected '$'"),
        ('root ::= Foo("a")', 1, 10, "no macro Foo; use one of: Regex, Substring"),
        ("root ::= /abc/", 1, 10, 'write a pattern as Regex("...")'),
        ("root ::= <a>", 1, 10, 'write a token as Token("<...>")'),
        ('%ignore " "\nroot ::= "a"', 1, 1, "send Lark as grammar"),
        ('root ::= "a" & "b"', 1, 14, "this dialect has no such operator"),
        ("root[max_chars=x] ::= [a]+", 1, 6, "from 0 to 100000, not x"),
        ('root ::= "a" 12', 1, 14, "unexpected 12"),
        ('root ::= "a', 1, 10, "does not end"),
        ('root ::= "a\nb"', 1, 10, "newline as \\n"),
        ("root ::= [a", 1, 10, "does not end"),
        ("root ::= []", 1, 10, "names no characters"),
        ("root ::= [z-a]", 1, 11, "reversed"),
        ("root ::= [ab--c]", 1, 12, "reversed"),
        (r"root ::= [\d]", 1, 11, "write [0-9]"),
        (r'root ::= "\d"', 1, 11, "escape \\d"),
        (r'root ::= "\x"', 1, 11, "hexadecimal digits, as in"),
        (r'root ::= "\u12"', 1, 11, "exactly 4"),
        (r'root ::= "\U1F600"', 1, 11, "exactly 8"),
        (r'root ::= "\ud83d\ude00"', 1, 11, "as \\U"),
        (r'root ::= "\x1F6000000"', 1, 11, "takes all the digits"),
        ('root ::= ("a"', 1, 10, "( is not closed"),
        ('root ::= ("a"\na ::= "b"', 1, 10, "( is not closed"),
        ('root ::= "a")', 1, 13, "has no matching"),
        ('root ::= * "a"', 1, 10, "nothing to repeat"),
        ('root ::= "a" | {2}', 1, 16, "nothing to repeat"),
        ('root ::= "a"++', 1, 14, "in parentheses"),
        ('root ::= "a"{2}{3}', 1, 16, "in parentheses"),
        ('root ::= "a"{,4}', 1, 13, "write a repetition as {m}"),
        ('root ::= "a"{1,2,3}', 1, 13, "write a repetition as {m}"),
        ('root ::= "a"{1', 1, 13, "write a repetition as {m}"),
        ('root ::= "a"{b}', 1, 13, "write a repetition as {m}"),
        ('root ::= "a"{3,2}', 1, 13, "minimum above its maximum"),
        ('root ::= "a"{100001}', 1, 14, "the most is 100000"),
        ('root ::= "a"{1,' + "9" * 5000 + "}", 1, 16, "the most is 100000"),
        ('root ::= a{1000}\na ::= b{1000}\nb ::= "x"', 1, 1, "multiply to more than 100000"),
        ("root ::= " + "(" * 257 + '"a"' + ")" * 257, 1, 266, "nested deeper than 256"),
        ('root ::= "a" (= "b") "c"', 1, 22, "nothing may follow"),
        ('root ::= ("a" (= "b"))', 1, 15, "only at the end of a rule"),
        ('root ::= "a" (= "b"', 1, 14, "(= is not closed"),
        ('root ::= "a" (= b)', 1, 17, "b is not defined"),
        ('root[max_tokens=2] ::= "a"', 1, 6, "repeats tokens by id"),
        ('root ::= "x"\na[capture="y"] ::= "a"', 2, 3, "the option capture: llguidance"),
        ("root[lazy, temperature=0.5] ::= [a]+", 1, 12, "the option temperature: llguidance does"),
        ("root[lazy, lazy] ::= [a]+", 1, 12, "given twice"),
        ("root[max_chars=-1] ::= [a]+", 1, 6, "an integer from 0 to 100000"),
        ("root[max_chars] ::= [a]+", 1, 6, "an integer from 0 to 100000"),
        ("root[lazy=3] ::= [a]+", 1, 6, "no option lazy=3"),
        ("root[lasy] ::= [a]+", 1, 6, "no option lasy; use one of"),
        ("root[lazy;] ::= [a]+", 1, 5, "write options as"),
        ('root ::= a\na[max_chars=3] ::= "(" a ")" | "b"', 2, 3, "rules without recursion"),
        ('root ::= "a" Token(5)', 1, 20, "tokens by id need a model"),
        ("root ::= ExcludeToken()", 1, 10, "ExcludeToken takes token ids or texts"),
        ("root ::= Token(true)", 1, 16, "a token's id or its text"),
        ('root ::= TokenTagDispatch("a")', 1, 27, "pairs of a token and a rule"),
        ("root ::= TokenTagDispatch(excludes=5)", 1, 27, "excludes must be a tuple"),
        ("root ::= Regex()", 1, 10, "takes one pattern"),
        ('root ::= Regex("a", "b")', 1, 10, "takes one pattern"),
        ("root ::= Regex(5)", 1, 10, "takes one pattern"),
        ('root ::= Regex("a", flags="x")', 1, 21, "letters i, s and u"),
        ('root ::= Regex("a", json_string=1)', 1, 21, "true or false"),
        (r'root ::= Regex("ab\"", json_string=true)', 1, 19, "only as an escape"),
        (r'root ::= Regex("\\p{Xy}")', 1, 17, "not a Unicode category"),
        ('root ::= Regex("a", dotall=true)', 1, 21, "takes no argument dotall; it takes flags"),
        ('root ::= Regex("a" "b")', 1, 20, "separate arguments by commas"),
        ('root ::= Regex("a"', 1, 15, "not closed"),
        ("root ::= Regex([a])", 1, 16, "an argument is"),
        (r'root ::= Regex("\"a(")', 1, 20, "( is not closed"),
        ('root ::= Regex("a)")', 1, 18, ") has no matching"),
        ('root ::= Regex("a]")', 1, 18, "] has no matching"),
        ('root ::= Regex("a|*")', 1, 19, "nothing to repeat"),
        ('root ::= Regex("a{,3}")', 1, 18, "write a repetition as {m}"),
        ('root ::= Regex("a{3,2}")', 1, 18, "minimum above its maximum"),
        ('root ::= Regex("a{1000000}")', 1, 26, "the most is 100000"),
        ('root ::= Regex("(a{1000}){1000}")', 1, 1, "multiply to more than 100000"),
        ('root ::= Regex("[z-a]")', 1, 18, "this range is reversed"),
        (r'root ::= Regex("[a-\\d]")', 1, 18, "has a shorthand as its end"),
        ('root ::= Regex("[]a]")', 1, 17, "character class is empty"),
        ('root ::= Regex("[a")', 1, 17, "is not closed"),
        ('root ::= Regex("a^b")', 1, 18, "edge of the pattern"),
        ('root ::= Regex("a(?=b")', 1, 18, "( is not closed"),
        ('root ::= Regex("a(?<=b)")', 1, 18, "look-behind"),
        ('root ::= Regex("a(?i)b")', 1, 18, "flags inside a pattern"),
        (r'root ::= Regex("a\\bc")', 1, 18, "\\b is not supported"),
        (r'root ::= Regex("(a)\\1")', 1, 20, "\\1 is not supported"),
        (r'root ::= Regex("\\ud800")', 1, 17, "not a Unicode character"),
        (r'root ::= Regex("a\\")', 1, 18, "escapes nothing"),
        ('root ::= Regex("' + "(" * 251 + '")', 1, 267, "nested deeper than 250"),
        ("root ::= Substring(5)", 1, 20, "text in double quotes"),
        ('root ::= TagDispatch(("x", "y"))', 1, 22, "pairs of a tag and a rule"),
        ('root ::= TagDispatch("x")', 1, 22, "pairs of a tag and a rule"),
        ('root ::= TagDispatch(("x", b))', 1, 28, "b is not defined"),
        ('root ::= TagDispatch(("", root))', 1, 23, "cannot be empty"),
        ('root ::= TagDispatch(("x", root), excludes="y")', 1, 35, "excludes must be a tuple"),
        ('root ::= TagDispatch(("x", root), excludes=("x",))', 1, 23, "both a tag and excluded"),
        ('root ::= TagDispatch(("x", root), ("xy", root))', 1, 36, "'xy' contains 'x'"),
        ('root ::= TagDispatch(("ab", root), excludes=("a",))', 1, 23, "'ab' contains 'a'"),
        ('root ::= TagDispatch(("a", root), loop_after_dispatch=2)', 1, 35, "true or false"),
        ('root ::= TagDispatch(("' + "x" * 2001 + '", root))', 1, 10, "longer than 2000"),
    ],
)
def test_with_place(text: str, line: int, column: int, reason: str) -> None:
    with pytest.raises(GrammarError) as caught:
        ebnf.translate(text)
    assert reason in caught.value.message
    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.parametrize("text", ["", "# nothing", 'x ::= "a"', 'Root ::= "a"'])
def test_without_a_root(text: str) -> None:
    with pytest.raises(GrammarError, match="no rule named root"):
        ebnf.translate(text)


@pytest.mark.wide
def test_chains_are_bounded() -> None:
    rules = "".join(f'r{i} ::= "a" r{i + 1} | "b" root "c"\n' for i in range(3000))
    with pytest.raises(GrammarError, match="a chain of more than 500 rules"):
        translate(Constraint("ebnf", f'root ::= r0\n{rules}r3000 ::= "x"'))
