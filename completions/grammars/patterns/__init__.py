"""The patterns of JSON Schema: regular expressions of ECMA-262 with the flag u.

`reader` reads a pattern into the nodes of `syntax`, with the character sets of `classes`. `network`
runs them on a text, look-around included; `rust` writes those without look-around for llguidance.
"""
