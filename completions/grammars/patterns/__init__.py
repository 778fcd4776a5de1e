"""The patterns of JSON Schema: regular expressions of ECMA-262 with the flag u.

`reader` reads them, `language` has the automata of the texts in which they are found, and `rust`
writes those without look-around for llguidance.
"""
