"""Closing: what it may cost, and when it begins."""

import json
from collections.abc import Sequence as Rows
from types import SimpleNamespace
from typing import Any, cast

import pytest
from llguidance import LLMatcher

from completions.contract import grammar_ends
from completions.grammars import Constraint, translate
from tests.workers.engine import tiny_models
from tests.workers.engine.grammar.matchers import EOS_IDS
from workers.engine.exceptions import EngineError, GrammarError
from workers.engine.grammar import closing
from workers.engine.grammar.structured_output import GrammarMatcher, StructuredOutput

AMBIGUOUS = 'start: s "#"\ns: s s | "[" s | /[^#]{1,9}/ "#"'
TOKENIZER = tiny_models.byte_level_tokenizer()


def encode(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text).ids
    return ids


def begin(
    structured_output: StructuredOutput,
    grammar: str,
    limits: Rows[int],
    banned: frozenset[int] = frozenset(),
) -> list[GrammarMatcher]:
    result = structured_output.compile_now(grammar, len(limits), limits, banned)
    assert not isinstance(result, EngineError), result
    return result


def write(matcher: GrammarMatcher, wanted: str, limit: int) -> list[int]:
    """Append the first wanted token that may come next, as sampling would, until the grammar or the
    limit ends the choice."""
    ids, written = encode(wanted), list[int]()
    while len(written) < limit:
        forced = matcher.forced
        allowed = (token_id for token_id in ids if matcher.allows(token_id))
        appended = matcher.review(next(allowed)) if forced is None else forced
        written.append(appended)
        if matcher.consume(appended):
            break
    return written


def test_a_step_searches_little_and_the_compiler_once(
    structured_output: StructuredOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []
    find_way = grammar_ends.find_way

    def count(*args: Any) -> Any:
        copies.append(args[3])
        return find_way(*args)

    monkeypatch.setattr(closing, "find_way", count)
    choices = begin(structured_output, AMBIGUOUS, [40] * 16)
    assert copies == [2000]
    for token_id in encode("abc[#") * 6:
        for matcher in choices:
            copies.clear()
            appended = matcher.review(token_id) if matcher.allows(token_id) else None
            if appended is not None:
                matcher.consume(appended)
            assert sum(copies) <= 600


def test_a_request_whose_searches_are_slow_fails_as_with_slow_masks(
    structured_output: StructuredOutput,
) -> None:
    first, second = begin(structured_output, AMBIGUOUS, [40, 40])
    assert first.closing is not None
    first.closing.plan.slow_seconds = 1.0
    for matcher in (first, second):
        with pytest.raises(GrammarError, match="too ambiguous"):
            matcher.consume(encode("a")[0])


@pytest.mark.parametrize("name", ["reuse_way", "adapt_way", "find_suffix", "find_way"])
def test_whatever_a_token_waits_for_counts(
    structured_output: StructuredOutput, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    [matcher] = begin(structured_output, AMBIGUOUS, [40])
    assert matcher.closing is not None
    plan, seconds = matcher.closing.plan, [0.0]

    def wait(*_: Any) -> None:
        seconds[0] += 1

    monkeypatch.setattr(closing, "time", SimpleNamespace(thread_time=lambda: seconds[0]))
    monkeypatch.setattr(closing, name, wait)
    if name == "reuse_way":
        plan.reuse(cast(LLMatcher, None), (), 0)
    elif name == "adapt_way":
        plan.adapt(cast(LLMatcher, None), ())
    elif name == "find_suffix":
        plan.find_suffix(cast(LLMatcher, None), ())
    else:
        plan.search(cast(LLMatcher, None), 1, 1)
    assert plan.is_slow
    with pytest.raises(GrammarError, match="too ambiguous"):
        matcher.consume(encode("a")[0])


@pytest.mark.parametrize("limit", [300, 500])
def test_an_end_that_moves_away_is_noticed_in_time(
    structured_output: StructuredOutput, limit: int
) -> None:
    """An array may be empty, but an object that is begun needs nearly 300 tokens."""
    names = [f"name{number}" for number in range(30)]
    record: dict[str, object] = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
    }
    record |= {"required": names, "additionalProperties": False}
    options = {"x-guidance": {"whitespace_flexible": False}}
    schema = {"type": "array", "items": record, **options}
    grammar = json.dumps({"grammars": [{"json_schema": schema}]})
    [matcher] = begin(structured_output, grammar, [limit])
    written = write(matcher, 'a{[",:}]', limit)
    assert len(written) <= limit
    assert matcher.is_accepting
    assert matcher.closed_at is not None


def test_a_grammar_whose_lexer_breaks_in_the_search_is_followed_without_closing(
    structured_output: StructuredOutput,
) -> None:
    """All copies of a matcher share a lexer: the search failed the request for the sake of an
    address that the model may never write."""
    address = {"type": "string", "format": "email", "maxLength": 1024}
    schema = {"type": "object", "properties": {"email": address}, "additionalProperties": False}
    grammar = translate(Constraint("json_schema", schema)).grammar
    [matcher] = begin(structured_output, grammar, [20])
    assert matcher.closing is not None
    assert matcher.closing.plan.gives_up
    assert TOKENIZER.decode(write(matcher, "}{", 20)) == "{}"
    assert matcher.is_accepting
    assert matcher.closed_at is None


def test_a_way_has_no_banned_token_unless_it_must(structured_output: StructuredOutput) -> None:
    bad = frozenset(encode("}"))
    for ends, expected in (('"}" | "]"', "<aaaa]"), ('"}"', "<aaaa}")):
        [matcher] = begin(structured_output, f'start: "<" /[a-z]+/ ({ends})', [6], bad)
        assert TOKENIZER.decode(write(matcher, "a<", 6)) == expected


def test_an_end_is_one_that_is_not_banned_if_the_model_has_another(
    structured_output: StructuredOutput,
) -> None:
    ends = sorted(EOS_IDS)
    for banned in ([], ends[:1], ends[1:], ends):
        [matcher] = begin(
            structured_output, 'start: "a" ("b" /[a-z]{30}/)?', [6], frozenset(banned)
        )
        matcher.consume(encode("a")[0])
        left = [end for end in ends if end not in banned] or ends
        assert matcher.review(encode("b")[0]) == left[0]


def test_a_replayed_choice_counts_the_same_tokens_as_forced(
    structured_output: StructuredOutput,
) -> None:
    grammar = 'start: "<" /[a-z]+/ ">"'
    whole, resumed = begin(structured_output, grammar, [6, 6])
    counts = []
    for token_id in encode("<aaaa>"):
        if whole.forced is None and whole.review(encode("a")[0]) != encode("a")[0]:
            whole.force(token_id)
        counts.append((whole.leaves_only(token_id), resumed.leaves_only(token_id)))
        whole.consume(token_id)
        resumed.consume(token_id)
    assert all(first == second for first, second in counts)
    assert counts[-1] == (True, True)
