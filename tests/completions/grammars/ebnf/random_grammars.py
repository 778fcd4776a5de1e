"""Random small grammars over few characters, so that their parts run into each other."""

import random

_RULES = ("root", "a", "b", "c")
_LITERALS = ('"a"', '"b"', '"ab"', '"ba"', '"aab"', '"c"', '"é"', '"è"', '""')
_CLASSES = ("[a]", "[ab]", "[a-c]", "[^a]", "[^]", "[bé]")
_CALLS = (
    'Regex("a+b?|c")',
    'Regex("^(?:[^b]|bc){{1,2}}$")',
    'Regex("A.", flags="i")',
    'Regex("(?i)A[^B]", json_string=true)',
    'Regex("a(?=b)c?|.", flags="u")',
    'Substring("a", "b", "ab")',
    'TagDispatch(("ab", {}))',
    'TagDispatch(("a", {}), ("cb", {}))',
    'TagDispatch(("bc", {}), loop_after_dispatch=false, excludes=("d",))',
)
_QUANTIFIERS = ("*", "+", "?", "{2}", "{0,2}", "{1,3}", "{2,}", "{0}")
CHARACTERS = "abcéèd"


def random_grammar(rng: random.Random, names: int = 0) -> str:
    """Of up to `names` rules, or of a random number of them."""
    rules = _RULES[: names or rng.randint(1, len(_RULES))]
    return "\n".join(f"{name} ::= {_choice(rng, rules, 2)}" for name in rules)


def random_text(rng: random.Random, most: int = 6) -> str:
    return "".join(rng.choice(CHARACTERS) for _ in range(rng.randint(0, most)))


def _choice(rng: random.Random, rules: tuple[str, ...], depth: int) -> str:
    options = rng.choice((1, 1, 2, 2, 3))
    return " | ".join(_sequence(rng, rules, depth) for _ in range(options))


def _sequence(rng: random.Random, rules: tuple[str, ...], depth: int) -> str:
    parts = rng.choice((1, 1, 2, 2, 3, 4))
    return " ".join(_element(rng, rules, depth) for _ in range(parts))


def _element(rng: random.Random, rules: tuple[str, ...], depth: int) -> str:
    kind = rng.random()
    if kind < 0.4:
        element = rng.choice(_LITERALS)
    elif kind < 0.6:
        element = rng.choice(_CLASSES)
    elif kind < 0.65:
        element = rng.choice(_CALLS).format(*rng.choices(rules, k=2))
    elif kind < 0.8 or not depth:
        element = rng.choice(rules)
    else:
        element = f"({_choice(rng, rules, depth - 1)})"
    return element + rng.choice(_QUANTIFIERS) if rng.random() < 0.3 else element
