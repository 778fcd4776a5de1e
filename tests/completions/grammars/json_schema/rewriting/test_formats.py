"""Every format, with examples from the RFCs, as llguidance enforces it."""

import json
import random
from collections.abc import Mapping

import pytest
from llguidance import LLMatcher, LLTokenizer

from completions.contract.llguidance_limits import ENGINE_LIMITS
from completions.grammars import json_schema
from completions.grammars.json_schema.rewriting.formats import NATIVE, PATTERNS, get_pattern
from tests.completions.grammars.byte_matcher import accepts
from tests.completions.grammars.test_tokens import DEMO

_LONG = "a" + ".a" * 126 + "b"
"""A hostname of 254 characters."""
EXAMPLES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "date": (
        ("2024-02-29", "2000-02-29", "1999-12-31", "0001-01-01"),
        ("2023-02-29", "1900-02-29", "2024-02-30", "2024-04-31", "2024-13-01", "24-01-01", ""),
    ),
    "date-time": (
        ("2024-02-29T23:59:59Z", "1985-04-12T23:20:50.52Z", "1996-12-19t16:39:57-08:00"),
        (
            "2023-02-29T00:00:00Z",
            "1998-12-31T23:58:60Z",
            "2024-01-01 00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01",
        ),
    ),
    "time": (
        (
            "12:00:00Z",
            "23:59:60Z",
            "23:59:60.5+00:00",
            "00:59:60+01:00",
            "15:59:60-08:00",
            "05:29:60+05:30",
            "05:44:60+05:45",
            "14:29:60-09:30",
            "23:29:60+23:30",
        ),
        (
            "12:00:00",
            "24:00:00Z",
            "12:60:00Z",
            "23:59:60+01:00",
            "22:59:60Z",
            "23:58:60Z",
            "23:59:60-00:30",
            "12:00:60Z",
            "12:00:61Z",
        ),
    ),
    "duration": (("P1Y2M3DT4H5M6S", "PT36H", "P4W", "P1D"), ("P", "1D", "P1Y1D", "PT", "P1D2W")),
    "email": (
        (
            "a@b.example",
            "a.b+c@x-y.z",
            "a@[127.0.0.1]",
            "a@[IPv6:::1]",
            '"a b"@c',
            '"a..b@c"@d',
            r'"a\"b\\"@c',
        ),
        ("a", "@b", "a@", "a..b@c", "a@-b", '"a"b"@c', '"a@b', "a@[::1]", "a@[IPv6:1]"),
    ),
    "idn-email": (("ä@ö.example", "a@b", '"ä ö"@ü'), ("ä", "ä@", "a b@c")),
    "hostname": (
        ("example.com", "a-b.c1", "x" * 63, "a", "ab", "a-b", "a-bc", "ab-c", "a-b--c", _LONG[:-1]),
        ("-a", "a-", "a..b", "x" * 64, "ä.example", "ab--c", "xn--x", "a.ab--"),
    ),
    "idn-hostname": (
        (
            "ä.example",
            "例え.jp",
            "a-b",
            "例え。jp",
            "l·l",
            "al·l·la",
            "\u03b1\u0375\u03b2",
            "\u05d0\u05f3",
            "\u05d0\u05f4\u05d1",
            "\u30fb\u3041",
            "\u4e08\u30fb",
            "a-\u30fb\u30a1",
            "\u0915\u094d\u200d\u0937",
            "\u0915\u094d\u200c\u0937",
            "a\u0301",
        ),
        (
            "-ä",
            "ä..b",
            "a b",
            "",
            "。",
            "a。",
            "ää--ä",
            "l·a",
            "a\u0640",
            "\u200dä",
            "\u0300a",
            "\u0903a",
            "a.\u0488a",
            "l·",
            "a·l",
            "\u0375",
            "\u0375\u0375\u03b1",
            "\u03b1\u0375a",
            "\u05f3\u05d0",
            "a\u05f3",
            "\u05d0\u05f3\u05f3",
            "\u30fba",
            "\u0915\u200d",
            "\u094d\u200d",
            "\u05d0\u05f3--a",
            "a\u05d0\u05f3-",
            "-\u05d0\u05f3",
        ),
    ),
    "ipv4": (("0.0.0.1", "255.255.255.255"), ("256.0.0.0", "1.2.3", "01.2.3.4", "1.2.3.4.5")),
    "ipv6": (
        (
            "::",
            "::1",
            "2001:db8::8:800:200c:417a",
            "1:2:3:4:5:6:7:8",
            "::ffff:192.168.0.1",
            "1:2::192.168.0.1",
            "1:2:3:4:5:6:255.255.255.255",
        ),
        (":::", "1:2", "12345::", "::1.2.3", "::256.1.1.1", "1:2:3:4:5:6:7:1.2.3.4"),
    ),
    "uri": (
        ("https://a.example/b?c#d", "urn:a:b", "mailto:a@b", "http://[::1]:80/"),
        ("a/b", "//a", "http://a b", "http://[::1", "1:a", "a"),
    ),
    "uri-reference": (
        ("/a/b", "a", "", "#x", "?q", "//a.example/b", "https://a"),
        ("a b", "\\", "1:a"),
    ),
    "iri": (
        ("https://ä.example/ö", "urn:ä", "http://[V1.fe]", "a:/\U00010300", "a:?\U000f0000\ue000"),
        ("ä/b", "http://a b", "a:/\U000f0000", "a:\U0001ffff"),
    ),
    "iri-reference": (("/ä", "ä", "https://ä"), ("ä b", "<ä>")),
    "uuid": (("123e4567-e89b-12d3-a456-426614174000",), ("123e4567", "x" * 36)),
    "uri-template": (("/a/{b}{?c,d*}", "{+x:3}", "a", "", "a'b"), ("{", "{}", "a b", "{a", "}")),
    "json-pointer": (("", "/a/0", "/a~1b/~0"), ("a", "/~2", "/a~", "#/a")),
    "relative-json-pointer": (
        ("0", "1/a", "2#", "0-1/x", "306+10"),
        ("/a", "01", "-1", "#", "3-0", "3+01"),
    ),
    "regex": (
        (
            "^a+[b-d]{2,3}$",
            "(?:a|b)*?",
            r"\d\.\w",
            "",
            "[^a]",
            "a(b(c))",
            r"(?<n>a)\k<n>",
            "(?<=a+)b",
            "(?<!a)b",
            r"\cA",
        ),
        ("(", "a)", "[a", "*a", "\\", "a{2,1", "(?<1>a)", r"\k<n", r"\c1"),
    ),
}


def test_every_format_of_2020_12_has_examples() -> None:
    assert EXAMPLES.keys() == PATTERNS.keys()
    assert NATIVE - {"unknown"} <= PATTERNS.keys()


@pytest.mark.parametrize("name", sorted(EXAMPLES))
@pytest.mark.parametrize("as_pattern", [False, True])
def test_a_format_accepts_its_right_examples_and_no_wrong_one(name: str, as_pattern: bool) -> None:
    """As `format`, and as the pattern in rewritten schemas."""
    wanted = {"pattern": get_pattern(name)} if as_pattern else {"format": name}
    grammar = json_schema.translate({"type": "string", **wanted}).grammar
    right, wrong = EXAMPLES[name]
    assert [
        text for text in right if not accepts(grammar, json.dumps(text, ensure_ascii=False))
    ] == []
    assert [text for text in wrong if accepts(grammar, json.dumps(text, ensure_ascii=False))] == []


@pytest.mark.parametrize("bounds", [{}, {"maxLength": 300}, {"pattern": "^a"}])
def test_a_hostname_has_at_most_253_characters(bounds: Mapping[str, object]) -> None:
    grammar = json_schema.translate({"type": "string", "format": "hostname", **bounds}).grammar
    assert accepts(grammar, f'"{_LONG[:-1]}"')
    assert not accepts(grammar, f'"{_LONG}"')


@pytest.mark.represented_by("3")
@pytest.mark.parametrize("seed", [3, 18])
def test_a_text_of_a_format_can_be_generated_to_its_end(seed: int) -> None:
    """With a length beside the format's large classes, these two ended in llguidance's limits."""
    grammar = json_schema.translate({"type": "string", "format": "idn-hostname"}).grammar
    matcher = LLMatcher(LLTokenizer(DEMO.read_text()), grammar, log_level=0, limits=ENGINE_LIMITS)
    chance = random.Random(seed)  # noqa: S311
    for _ in range(60):
        bias = matcher.compute_logit_bias()
        allowed = [token for token, value in enumerate(bias) if value]
        if not allowed or matcher.is_stopped():
            break
        matcher.consume_token(chance.choice(allowed))
    assert not matcher.is_error(), matcher.get_error()


def test_a_format_beside_a_pattern_and_other_types() -> None:
    schema = {"type": ["string", "null"], "format": "date", "pattern": "^2"}
    grammar = json_schema.translate(schema).grammar
    assert accepts(grammar, '"2024-02-29"')
    assert accepts(grammar, "null")
    assert not accepts(grammar, '"1999-01-01"')
    assert not accepts(grammar, '"2x"')
    grammar = json_schema.translate({"format": "date", "pattern": "^2"}).grammar
    assert accepts(grammar, "3")
    assert not accepts(grammar, '"2x"')


def test_the_negation_of_a_format() -> None:
    grammar = json_schema.translate({"type": "string", "not": {"format": "ipv4"}}).grammar
    assert accepts(grammar, '"a"')
    assert not accepts(grammar, '"1.2.3.4"')
