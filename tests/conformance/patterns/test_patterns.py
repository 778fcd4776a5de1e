"""Patterns in every place where they can stand, against Node's RegExp and Python's `re`."""

import json
import random
import re
from collections.abc import Sequence
from contextlib import suppress

import pytest
from llguidance import LLMatcher

from completions.contract.llguidance_limits import VALIDATION_LIMITS
from completions.grammars import Constraint, translate
from completions.grammars.exceptions import GrammarError
from completions.grammars.patterns.language import build_network
from completions.regular.network import UnreadablePatternError
from tests.completions.grammars.byte_matcher import BYTES
from tests.conformance.patterns import node
from tests.conformance.patterns.places import PLACES, Place
from tests.conformance.patterns.random_patterns import Pattern, random_pattern, random_text

TEXTS = 12
LEFT_OUT = "\x01"
"""What a class of all control characters lacks in JSON (docs/json-schema.md)."""
UNWRITABLE = re.compile("[\x00-\x07\x0b\x0e-\x1f\x7f]")
REFUSALS = ("too complex", "too many states", "write a general category")
Case = tuple[Pattern, list[str], list[bool]]

needs_node = pytest.mark.skipif(node.NODE is None, reason="Node is not installed")


def cases(count: int, seed: int) -> list[Case]:
    """Random patterns with texts, and whether Node finds each pattern in each text."""
    rng = random.Random(seed)  # noqa: S311
    made = [(random_pattern(rng), [random_text(rng) for _ in range(TEXTS)]) for _ in range(count)]
    found = node.matches([(pattern.ecma, texts) for pattern, texts in made])
    return [(*each, answers) for each, answers in zip(made, found, strict=True)]


def accepted(constraint: Constraint, texts: Sequence[str]) -> list[bool]:
    """Which texts the grammar of a constraint matches. Raises GrammarError."""
    grammar = translate(constraint).grammar
    start = LLMatcher(BYTES, grammar, log_level=0, limits=VALIDATION_LIMITS)
    assert not start.is_error(), start.get_error()
    answers = []
    for text in texts:
        matcher, encoded = start.deep_copy(), text.encode()
        whole = matcher.try_consume_tokens(list(encoded)) == len(encoded)
        assert not matcher.is_error(), matcher.get_error()
        answers.append(whole and bool(matcher.is_accepting()))
    return answers


def differences(place: Place, case: Case) -> list[str]:
    """The texts that a place takes and should not, or does not take and should. Raises
    GrammarError."""
    pattern, texts, found = case
    wrong = []
    taken = accepted(place.constraint(pattern.ecma), list(map(place.write, texts)))
    for text, match, is_taken in zip(texts, found, taken, strict=True):
        expected = match != place.excludes
        is_lost = LEFT_OUT in text or (not place.controls and UNWRITABLE.search(text))
        if is_taken and not expected:
            wrong.append(f"{pattern.ecma!r} takes {text!r}")
        elif expected and not is_taken and not is_lost:
            wrong.append(f"{pattern.ecma!r} lacks {text!r}")
    return wrong


def is_unmatched(place: Place, case: Case) -> bool:
    """Whether no text of a case may be written, as where no value can match at all."""
    return all(
        match == place.excludes or LEFT_OUT in text
        for match, text in zip(case[2], case[1], strict=True)
    )


def hold(count: int, seed: int, places_of_each: int) -> int:
    """Holds random patterns against Node, each in some of the places in turn. Returns how many
    texts were compared."""
    compared, refused, wrong = 0, [], []
    names = list(PLACES)
    for index, case in enumerate(cases(count, seed)):
        for step in range(places_of_each):
            name = names[(index * places_of_each + step) % len(names)]
            try:
                wrong += [f"{name}: {each}" for each in differences(PLACES[name], case)]
                compared += TEXTS
            except GrammarError as error:
                reason = f"{name}: {case[0].ecma!r}: {error.message}"
                if "no value can match" not in reason:
                    refused.append(reason)
                elif not is_unmatched(PLACES[name], case):
                    wrong.append(reason)
    assert wrong == []
    assert [each for each in refused if not any(known in each for known in REFUSALS)] == []
    assert len(refused) < count * places_of_each / 8
    return compared


@needs_node
def test_a_sample_agrees_with_node_everywhere() -> None:
    assert hold(42, seed=1, places_of_each=1) > 30 * TEXTS


@needs_node
@pytest.mark.long
def test_20_000_texts_agree_with_node_everywhere() -> None:
    assert hold(1_750, seed=2, places_of_each=4) > 3 * 20_000


@pytest.mark.wide
@needs_node
def test_node_python_and_the_network_agree() -> None:
    """They check one another: Python's spelling was made independently."""
    of_python = 0
    for pattern, texts, found in cases(500, seed=3):
        if pattern.python is not None:
            machine = re.compile(pattern.python, re.ASCII)
            assert [bool(machine.search(text)) for text in texts] == found, pattern
            of_python += len(texts)
        with suppress(UnreadablePatternError):  # it names a property
            assert [build_network(pattern.ecma).accepts(text) for text in texts] == found, pattern
    assert of_python > 2_500


def test_regular_expressions_of_rust_agree_with_python() -> None:
    """`regex`, vLLM's and mistral.rs's names, structural tags, and EBNF's `Regex`."""
    rng = random.Random(4)  # noqa: S311
    for _ in range(25):
        items = "".join(
            rng.choice(("\\d", "\\w", "\\s", re.escape(rng.choice('"\\ab\x1f\u2028\x85é٣'))))
            for _ in range(rng.choice((1, 2, 3)))
        )
        pattern = f"[{rng.choice(('', '^'))}{items}]" + rng.choice(("", "+", "{0,2}"))
        shorthand = rng.choice(("\\d", "\\W", "\\S", "\\s"))
        pattern = rng.choice((pattern, f"(?:{pattern}|{shorthand})"))
        texts = [random_text(rng) for _ in range(TEXTS)] + ["٣", "é", "\x85", "\xa0", "3", "_", " "]
        machine = re.compile(pattern, re.ASCII)
        found = [bool(machine.fullmatch(text)) for text in texts]
        tag = {"type": "structural_tag", "format": {"type": "regex", "pattern": pattern}}
        escaped = json.dumps(pattern, ensure_ascii=True)
        for constraint in (
            Constraint("regex", pattern),
            Constraint("grammar", {"type": "regex", "value": pattern}),
            Constraint("structural_tag", tag),
            Constraint("ebnf", f"root ::= Regex({escaped})"),
        ):
            assert accepted(constraint, texts) == found, (constraint, texts)
        in_json = Constraint("ebnf", f'root ::= "\\"" Regex({escaped}, json_string=true) "\\""')
        plain = [not re.search(r'["\\\x00-\x1f]', text) for text in texts]
        with suppress(GrammarError):  # the class has no other characters
            taken = accepted(in_json, [f'"{text}"' for text in texts])
            assert taken == [match and each for match, each in zip(found, plain, strict=True)]
