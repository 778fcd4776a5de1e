"""Regular languages: one library for every pattern that Quire reads itself.

`reader` reads a pattern into the tree of `syntax`. Each dialect is a subclass of it, beside what
uses it: ECMA-262 (`grammars/patterns`), Regex of EBNF (`grammars/ebnf`), stop regexes
(`contract/stop_regex`). `nfa` makes a tree an automaton, `network` follows one with look-around,
`dfa` complements and intersects, `elimination` makes an automaton a tree again, and `writer` writes
that. `code_points` and `classes` have sets of characters. Nothing else of Quire is imported.
"""
