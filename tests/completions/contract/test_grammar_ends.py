"""Ways to the end of grammars: whatever the search returns is an end, and it finds usual ones."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from completions.contract import llguidance_tokenizer
from completions.contract.grammar_ends import (
    NO_TEXTS,
    EndTokens,
    adapt_way,
    find_suffix,
    find_way,
    leads_to_end,
    reuse_way,
)
from completions.contract.grammar_ends.samples import iter_samples
from completions.contract.llguidance_limits import ENGINE_LIMITS
from completions.contract.token_bytes import TokenBytes, count_ids
from tests.completions.contract.tokenizers_of_each_kind import END, TOOL, byte_level

TOKENIZER = byte_level()
READ = TokenBytes(TOKENIZER)
TABLE = READ.make_table(count_ids(TOKENIZER))
END_ID = TOKENIZER.token_to_id(END)
BUILT = llguidance_tokenizer.build(READ, TABLE, [END_ID])
TOKENS = EndTokens(BUILT, TABLE, READ.special_ids, [END_ID])
STEPS = 400


def write(**schema: object) -> str:
    options = {"x-guidance": {"whitespace_flexible": False}}
    return json.dumps({"grammars": [{"json_schema": {**schema, **options}}]})


def lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


KEYS = write(
    type="object",
    patternProperties={"^[A-H][0-9]+$": {"type": "integer"}},
    additionalProperties=False,
    minProperties=1,
)
UUID = write(type="string", pattern="^[0-9a-f]{8}\\-?[0-9a-f]{4}\\-?[0-9a-f]{12}$")
FILE = write(type="string", pattern="^file:[^\\n]+\\.geodatabase?$")
THOUGHT = 'T: (/(?s:.*)/ & ~(/(?s:.*)/ ("</t>") /(?s:.*)/)) "</t>"'
PERSON = write(
    type="object",
    properties={"name": {"type": "string"}, "born": {"type": "string", "format": "date"}},
    required=["name", "born"],
    additionalProperties=False,
)
CASES = [
    (PERSON, "", '{"name":"","born":"0000-01-01"}'),
    (PERSON, '{"name":"Ada', '","born":"0000-01-01"}'),
    (write(type="object"), '{"a":[{"b":[["c', '"]]}]}'),
    (write(type="array", items={"enum": ["x"]}, minItems=3), "[", '"x","x","x"]'),
    (lark('start: "a"+'), "a", ""),
    (lark('start: /[0-9]{4}/ "-" /[0-9]{2}/'), "20", "00-00"),
    (lark(f"start: T\n{THOUGHT}"), "so ab", "</t>"),
    (lark(f'start: T "[" /[0-9]+/ "]"\n{THOUGHT}'), "so </", "</t>[0]"),
    (lark("start: <tool> /a*/ <tool>"), "", "<tool><tool>"),
    (UUID, '"0123', '00000000000000000000"'),
    (FILE, "", '"file:a.geodatabas"'),
    (FILE, '"file:./some', '.geodatabas"'),
    (KEYS, '{"', 'A0":0}'),
    (write(type="array", items={"type": "number"}, minItems=9), "[0.5", ",0" * 8 + "]"),
]


def begin(grammar: str, text: str) -> LLMatcher:
    matcher = LLMatcher(BUILT, grammar, log_level=0, limits=ENGINE_LIMITS)
    ids = [TABLE.index(bytes((byte,))) for byte in text.encode()]
    assert matcher.try_consume_tokens(ids) == len(ids), text
    return matcher


def search(grammar: str, matcher: LLMatcher, enough: int = STEPS) -> tuple[int, ...] | None:
    return find_way(matcher, TOKENS, TOKENS.read_texts(grammar), STEPS, enough)


def leads(matcher: LLMatcher, way: tuple[int, ...]) -> bool:
    """Whether tokens lead to an accepted end, as a copy that consumes them says and as the matcher
    says without one."""
    copy = matcher.deep_copy()
    leads = copy.try_consume_tokens(list(way)) == len(way) and copy.is_accepting()
    assert matcher.is_stopped() or leads_to_end(matcher, TOKENS, way) is leads
    return leads


@pytest.mark.parametrize(("grammar", "begun", "rest"), CASES)
def test_what_is_open_is_closed(grammar: str, begun: str, rest: str) -> None:
    matcher = begin(grammar, begun)
    way = search(grammar, matcher)
    assert way is not None
    assert b"".join(TABLE[token_id] for token_id in way).decode() == rest
    assert leads(matcher, way)
    assert search(grammar, matcher) == way, "the matcher stays where it is"


@given(st.sampled_from([grammar for grammar, _, _ in CASES]), st.randoms(use_true_random=False))
def test_from_any_text_a_way_is_an_end_and_can_be_adapted(grammar: str, random: object) -> None:
    matcher = begin(grammar, "")
    way = search(grammar, matcher)
    for _ in range(12):
        if matcher.is_stopped():
            break
        mask = matcher.compute_bitmask()
        ids = [i for i in range(len(TABLE)) if mask[i // 8] >> i % 8 & 1 and i != END_ID]
        if not ids:
            break
        token_id = random.choice(ids)  # type: ignore[attr-defined]
        reused = None if way is None else reuse_way(matcher, TOKENS, way, token_id)
        matcher.consume_token(token_id)
        assert reused is None or leads(matcher, reused)
        adapted = None if way is None else adapt_way(matcher, TOKENS, way)
        assert adapted is None or leads(matcher, adapted)
        way = search(grammar, matcher)
        assert way is None or leads(matcher, way)


def test_the_search_goes_on_until_a_way_is_short_enough() -> None:
    grammar = lark('start: "0" "xyxyxyxyxyxy" | "b"')
    matcher = begin(grammar, "")
    first = search(grammar, matcher)
    best = search(grammar, matcher, enough=1)
    assert first is not None
    assert best is not None
    assert len(best) == 1 < len(first)


def test_a_bounded_search_may_find_nothing() -> None:
    matcher = begin(write(type="array", items=json.loads("{}"), minItems=9), "")
    assert find_way(matcher, TOKENS, NO_TEXTS, 3, STEPS) is None


def test_what_is_left_of_a_way_is_found_within_its_tokens() -> None:
    """A way as its tokenizer splits it need not have a border where the text now is."""
    whole = '"b":"/@#0"}'
    grammar = lark(
        'start: "{" ["\\"a\\":\\"" /[^"]*/ "\\","] "\\"b\\":\\"" /[^\\/#"]*/ "/" /[^#"]+/ "#0\\"}"'
    )
    way = TOKENS.tokenize(b"{" + whole.encode())
    for begun, rest in [("{", whole), ('{"b":"x', '/@#0"}'), ('{"b":"x/y', '#0"}')]:
        end = find_suffix(begin(grammar, begun), TOKENS, way)
        assert end is not None
        assert TOKENS.spell(end).decode() == rest


@pytest.mark.parametrize(
    ("pattern", "sample"),
    [
        ("^[0-9A-F]{3}$", "000"),
        ("^(?:https?://)?[^/#]+(?:/|#)$", "a/"),
        ('^(?s:.*)say "hi"(?s:.*)$', 'say \\"hi\\"'),
        (r"^\d+x\u{e9}?$", "0x"),
        ("^a{300}$", None),
        ("^(?=a)\\1$", None),
    ],
)
def test_the_shortest_text_of_a_pattern(pattern: str, sample: str | None) -> None:
    found = [text.decode() for text in iter_samples({"items": [{"pattern": pattern}]})]
    assert found == ([] if sample is None else [f'{sample}"'])


class Counted:
    """A matcher that counts the tokens that it and its copies are handed without a copy."""

    def __init__(self, matcher: LLMatcher, counts: Counter[str] | None = None) -> None:
        self._matcher = matcher
        self.counts: Counter[str] = Counter() if counts is None else counts

    def validate_tokens(self, ids: list[int]) -> int:
        self.counts["tokens"] += len(ids)
        return int(self._matcher.validate_tokens(ids))

    def deep_copy(self) -> "Counted":
        self.counts["copies"] += 1
        return Counted(self._matcher.deep_copy(), self.counts)

    def __getattr__(self, name: str) -> object:
        return getattr(self._matcher, name)


def begin_exact(length: int, begun: str, **others: object) -> tuple[str, Counted]:
    """A grammar with a string of an exact length before others, and a matcher within it."""
    exact = {"type": "string", "pattern": f"^[a-zA-Z0-9 .,;:!?]{{{length}}}$"}
    properties = {"v": exact, **others}
    grammar = write(
        type="object", properties=properties, required=["v", "w"], additionalProperties=False
    )
    return grammar, Counted(begin(grammar, '{"v":"' + begun))


def test_what_a_long_text_hands_to_the_matcher_is_bounded() -> None:
    """Each end of the constant is a beginning of the string."""
    text = '{"v":"' + "a" * 250 + '","w":"' + "a" * 20_000 + '"}'
    _, matcher = begin_exact(250, "bbb", w={"const": "a" * 20_000})
    find_suffix(matcher, TOKENS, TOKENS.split_text(text.encode()))
    assert 0 < matcher.counts["tokens"] < 50_000


def test_the_end_of_a_long_text_is_found_behind_its_quote() -> None:
    prose = "It was the best of times, it was the worst of times. " * 40
    ending = '","w":' + json.dumps(prose) + "}"
    _, matcher = begin_exact(250, "b" * 250, w={"const": prose})
    way = TOKENS.split_text(b'{"v":"' + b"a" * 250 + ending.encode())
    end = find_suffix(matcher, TOKENS, way)
    assert end is not None
    assert TOKENS.spell(end) == ending.encode()


def test_samples_count_as_work() -> None:
    """Sixteen samples that begin as the string goes on, and end too early."""
    others = {f"p{n}": {"type": "string", "pattern": f"^a{{{256 - n}}}$"} for n in range(16)}
    grammar, matcher = begin_exact(2000, "aaa", w={"const": 1}, **others)
    assert find_way(matcher, TOKENS, TOKENS.read_texts(grammar), 32, 1) is None
    assert 0 < matcher.counts["tokens"] < 200_000
    assert matcher.counts["copies"] <= 32 + 1


def test_few_patterns_of_a_schema_are_read() -> None:
    many = {f"p{n}": {"type": "string", "pattern": f"^{n}$"} for n in range(10_000, 20_000)}
    assert len(list(iter_samples({"properties": many}))) == 32_000 // 7


NAMED = [
    ('start: "a" <tool>? "b"?', "a", True),
    ('start: "a" <tool> "b"', "a", False),
    ('start: "a" <tool>', "a", False),
    ('start: "a" </s>? "b"', "a", False),
    ('start: "a" </s>?', "a", True),
    ('start: "a" <[*]> "b"', "a", False),
    ('start: x "b"\nx[stop=""]: /a*/', "a", False),
    ('start: "a"+', "", False),
    ('start: "a"+', "a", True),
]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("grammar", "begun", "is_end"), NAMED)
def test_each_of_several_ends_says_whether_the_grammar_accepts(
    grammar: str, begun: str, is_end: bool, order: int
) -> None:
    """Also where the grammar names one of them."""
    ends = [TOKENIZER.token_to_id(text) for text in (END, TOOL)][::order]
    built = llguidance_tokenizer.build(READ, TABLE, ends)
    matcher = LLMatcher(built, lark(grammar), log_level=0, limits=ENGINE_LIMITS)
    ids = [TABLE.index(bytes((byte,))) for byte in begun.encode()]
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting() is is_end
    for end in ends:
        assert leads_to_end(matcher, EndTokens(built, TABLE, READ.special_ids, [end]), ()) is is_end
    tokens = EndTokens(built, TABLE, READ.special_ids, ends)
    way = find_way(matcher, tokens, tokens.read_texts(lark(grammar)), STEPS, STEPS)
    if way is not None:
        assert leads_to_end(matcher, tokens, way)
        assert matcher.try_consume_tokens(list(way)) == len(way)
        assert matcher.is_accepting()
