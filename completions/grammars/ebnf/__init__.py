"""EBNF in the dialect of XGrammar and SGLang, with GBNF's additions, translated to Lark.

`parse` reads the text into rules. `write` writes the same language in llguidance's Lark: linear
recursion becomes loops, regular parts become terminals, and terminals that llguidance's lexer would
confuse are split. The output contains no names of the client.

The syntax is in `lexer` and `parser`; calls such as Regex("...") are in `macros`, and the options
of rules in `options`.
"""

from completions.grammars.compiler import DEFAULT_COMPILER, Compiler
from completions.grammars.ebnf import left_recursion, options, rules, writer
from completions.grammars.ebnf.lexemes import make_safe_productions
from completions.grammars.ebnf.parser import parse
from completions.grammars.ebnf.rules import Grammar
from completions.grammars.limits import DEFAULT_LIMITS, Limits

__all__ = ["Grammar", "parse", "translate", "write"]


def translate(text: str, compiler: Compiler = DEFAULT_COMPILER) -> str:
    """Return the same language in llguidance's Lark. Raises GrammarError with line and column."""
    return write(parse(text, compiler), compiler.limits)


def write(grammar: Grammar, limits: Limits = DEFAULT_LIMITS) -> str:
    """Return the Lark of a grammar, which is simplified on the way. Raises GrammarError."""
    rules.prune(grammar)
    rules.check_repetition(grammar, limits)
    rules.remove_linear_recursion(grammar)
    left_recursion.remove(grammar)
    options.apply(grammar)
    facts = rules.Facts(grammar.rules, grammar.start)
    safe = make_safe_productions(grammar.make, grammar.rules, grammar.start, facts)
    return writer.write(safe, grammar.rules)
