import json
import random
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from tokenizers import Tokenizer

from tests.workers.engine import tiny_models
from tests.workers.engine.grammar.matchers import EOS_IDS, allowed, compile_now, mask, matcher
from tests.workers.engine.rows import row
from workers.engine.exceptions import EngineError, GrammarError
from workers.engine.grammar import structured_output as module
from workers.engine.grammar.structured_output import GrammarMatcher, StructuredOutput


def accepts(structured_output: StructuredOutput, grammar: str, token_ids: list[int]) -> bool:
    """Whether every token is allowed where it stands; checked mask by mask."""
    state = matcher(structured_output, grammar)
    for token_id in token_ids:
        if not allowed(structured_output, row(grammar=state))[0, token_id]:
            return False
        state.consume(token_id)
    return True


def schema(**properties: Any) -> str:
    body = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": False},
    }
    return json.dumps({"grammars": [{"json_schema": body}]})


@pytest.mark.parametrize(
    ("grammar", "text", "accepted"),
    [
        ('start: "A" | "B"', "A", True),
        ('start: "A" | "B"', "C", False),
        (r"start: /[0-9]{3}-[0-9]{2}/", "123-45", True),
        (r"start: /[0-9]{3}-[0-9]{2}/", "12-345", False),
        ('start: item+\nitem: "<" /[a-z]+/ ">"', "<ab><c>", True),
        (schema(age={"type": "integer"}), '{"age":36}', True),
        (schema(age={"type": "integer"}), '{"age":"x"}', False),
        (schema(name={"enum": ["東京", "Ελλάδα"]}), '{"name":"東京"}', True),
    ],
)
def test_masks_admit_what_the_grammar_says(
    structured_output: StructuredOutput,
    tokenizer: Tokenizer,
    grammar: str,
    text: str,
    accepted: bool,
) -> None:
    assert accepts(structured_output, grammar, tokenizer.encode(text).ids) is accepted


def test_nothing_may_follow_a_complete_grammar(
    structured_output: StructuredOutput, tokenizer: Tokenizer
) -> None:
    state = matcher(structured_output, 'start: "A" | "B"')
    assert not state.is_complete
    assert state.consume(tokenizer.token_to_id("A"))
    assert state.is_complete


def test_every_end_of_sequence_is_allowed_where_the_grammar_may_end(
    structured_output: StructuredOutput, tokenizer: Tokenizer
) -> None:
    state = matcher(structured_output, "start: /[ab]+/")
    assert not allowed(structured_output, row(grammar=state))[0, list(EOS_IDS)].any()
    assert not state.consume(tokenizer.token_to_id("a"))
    assert allowed(structured_output, row(grammar=state))[0, list(EOS_IDS)].all()


def test_padding_of_the_vocabulary_is_never_allowed(
    structured_output: StructuredOutput, tokenizer: Tokenizer
) -> None:
    state = matcher(structured_output, "start: /(.|\\n)*/")
    assert not allowed(structured_output, row(grammar=state))[0, tokenizer.get_vocab_size() :].any()


@pytest.mark.parametrize(
    "grammar",
    ['start: "<tool>"', json.dumps({"grammars": [{"json_schema": {"const": "<tool>"}}]})],
)
def test_text_that_spells_a_special_token_stays_text(
    structured_output: StructuredOutput, grammar: str
) -> None:
    state = matcher(structured_output, grammar)
    complete = False
    while not complete:
        possible = allowed(structured_output, row(grammar=state))[0]
        complete = state.consume(int(possible.nonzero()[-1]))


def test_a_special_token_can_be_asked_for_by_name(
    structured_output: StructuredOutput, tokenizer: Tokenizer
) -> None:
    ids = [tokenizer.token_to_id(token) for token in ("a", tiny_models.TOOL, "b")]
    assert accepts(structured_output, 'start: "a" <tool> "b"', ids)


@pytest.mark.parametrize("grammar", ['start: "a" nope', "", "{", "start: /(/"])
def test_a_bad_grammar_is_that_requests_error(
    structured_output: StructuredOutput, grammar: str
) -> None:
    assert isinstance(compile_now(structured_output, grammar), GrammarError)


def test_a_deep_grammar_does_not_overflow_the_stack(structured_output: StructuredOutput) -> None:
    depth = 3_000
    chain = "\n".join(f'r{i}: "(" r{i + 1} ")"' for i in range(depth))
    compile_now(structured_output, f'start: r0\n{chain}\nr{depth}: "x"')
    assert not isinstance(compile_now(structured_output, 'start: "A"'), EngineError)


def test_a_token_that_was_not_allowed_is_an_error_and_not_an_end(
    structured_output: StructuredOutput, tokenizer: Tokenizer
) -> None:
    state = matcher(structured_output, 'start: "A" | "B"')
    with pytest.raises(GrammarError):
        state.consume(tokenizer.token_to_id("C"))
    with pytest.raises(GrammarError):
        _ = state.is_complete


def test_a_matcher_in_error_is_named_and_its_neighbours_are_not(
    structured_output: StructuredOutput, tokenizer: Tokenizer
) -> None:
    good, bad = (matcher(structured_output, 'start: "A" "B"') for _ in range(2))
    with pytest.raises(GrammarError):
        bad.consume(tokenizer.token_to_id("C"))
    filled = mask(structured_output, row(), row(grammar=bad), row(grammar=good))
    assert filled.rows == [1, 2]
    assert list(filled.faults) == [1]
    assert (~filled.forbidden[1]).nonzero().flatten().tolist() == [tokenizer.token_to_id("A")]


def test_choices_of_a_request_advance_apart(
    structured_output: StructuredOutput, tokenizer: Tokenizer
) -> None:
    states = compile_now(structured_output, 'start: "A" "B" | "B" "A"', count=2)
    assert not isinstance(states, EngineError)
    a, b = (tokenizer.token_to_id(char) for char in "AB")
    assert [states[0].consume(a), states[1].consume(b)] == [False, False]
    assert [states[0].consume(b), states[1].consume(a)] == [True, True]


def test_a_grammar_that_stops_before_it_accepts_is_an_error(
    structured_output: StructuredOutput,
) -> None:
    stopped = Mock(spec=["is_error", "is_stopped", "is_accepting", "stop_reason"])
    stopped.is_error.return_value = stopped.is_accepting.return_value = False
    stopped.stop_reason.return_value = "LexerTooComplex"
    with pytest.raises(GrammarError, match="LexerTooComplex"):
        _ = GrammarMatcher(stopped).is_complete


def test_unconstrained_rows_need_no_mask(structured_output: StructuredOutput) -> None:
    assert structured_output.start_mask([row(), row()]) is None


def test_min_tokens_and_ignore_eos_keep_ends_out_while_anything_else_may_follow(
    structured_output: StructuredOutput, tokenizer: Tokenizer
) -> None:
    a = tokenizer.token_to_id("a")
    states = [matcher(structured_output, "start: /[a]{0,1}/") for _ in range(2)]
    rows = [row(grammar=states[0], min_tokens=2), row(grammar=states[1], ignore_eos=True)]
    ends = list(EOS_IDS)
    before = allowed(structured_output, *rows)
    assert before[:, a].all()
    assert not before[0, 0]
    assert not before[1, 0]
    for state in states:
        if not state.consume(a):
            assert allowed(structured_output, row(grammar=state, min_tokens=9))[0, ends].any()


def test_a_wildcard_does_not_mean_padding(
    structured_output: StructuredOutput, tokenizer: Tokenizer
) -> None:
    state = matcher(structured_output, "start: <[*]>")
    ids = allowed(structured_output, row(grammar=state))[0].nonzero().flatten().tolist()
    assert ids == list(range(tokenizer.get_vocab_size()))


@pytest.mark.parametrize("threaded", [False, True])
def test_a_mask_that_cannot_be_filled_is_a_fault_of_its_row_only(
    structured_output: StructuredOutput, monkeypatch: pytest.MonkeyPatch, threaded: bool
) -> None:
    broken, sound = (matcher(structured_output, "start: /[ab]+/") for _ in range(2))
    monkeypatch.setattr(broken, "matcher", Mock(spec=broken.matcher))
    broken.matcher.unsafe_compute_mask_ptr.side_effect = ValueError("Invalid buffer size")
    broken.matcher.is_error.return_value = False
    monkeypatch.setattr(structured_output, "_slow_steps", int(threaded))
    filled = mask(structured_output, row(grammar=sound), row(grammar=broken))
    [(failed, error)] = filled.faults.items()
    assert failed == 1
    assert isinstance(error, (ValueError, TypeError))
    assert (~filled.forbidden[0]).any()


def test_a_choice_whose_masks_are_slow_ends_and_its_neighbours_do_not(
    structured_output: StructuredOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLOW_FILL_SECONDS", 0.0)
    slow, quick = (matcher(structured_output, "start: /[ab]+/") for _ in range(2))
    assert mask(structured_output, row(grammar=slow)).faults == {}
    monkeypatch.setattr(slow, "slow_seconds", module._PATIENCE_SECONDS + 0.1)
    filled = mask(structured_output, row(grammar=quick), row(grammar=slow))
    assert list(filled.faults) == [1]
    with pytest.raises(GrammarError, match="takes too long to follow"):
        slow.check()
    quick.check()


def test_masks_are_filled_beside_the_forward_after_slow_ones_only(
    structured_output: StructuredOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    compute = structured_output._compute  # what runs on one thread or the other

    def note(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return compute(*args)

    monkeypatch.setattr(structured_output, "_compute", note)
    monkeypatch.setattr(structured_output, "_slow_steps", 0)
    monkeypatch.setattr(module, "_SLOW_STEPS", 2)
    constrained = row(grammar=matcher(structured_output, "start: /[ab]+/"))
    monkeypatch.setattr(module, "_QUICK_FILL_SECONDS", -1.0)
    mask(structured_output, constrained)
    monkeypatch.setattr(module, "_QUICK_FILL_SECONDS", 60.0)
    for _ in range(4):
        mask(structured_output, constrained)
    own = threading.current_thread().name
    assert [name == own for name in threads] == [True, False, False, True, True]


def test_rows_are_timed_after_a_slow_mask_only(
    structured_output: StructuredOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLOW_SECONDS", 0.0)
    state = matcher(structured_output, "start: /[ab]+/")
    monkeypatch.setattr(module, "_SLOW_FILL_SECONDS", 10.0)
    mask(structured_output, row(grammar=state))  # timed or not as the one before was slow
    before = state.slow_seconds
    mask(structured_output, row(grammar=state))
    assert state.slow_seconds == before
    monkeypatch.setattr(module, "_SLOW_FILL_SECONDS", 0.0)
    mask(structured_output, row(grammar=state))
    mask(structured_output, row(grammar=state))
    assert state.slow_seconds > before


@pytest.mark.represented_by("start: /(.*a.{18}b|.*b.{18}c|.*c.{18}d|.*d.{18}e)/")
@pytest.mark.parametrize(
    "grammar",
    ["start: /(.*a.{18}b|.*b.{18}c|.*c.{18}d|.*d.{18}e)/", 'start: s\ns: s s s | /[a-e]/ | ""'],
)
def test_a_limit_hit_on_the_way_is_named(
    structured_output: StructuredOutput, tokenizer: Tokenizer, grammar: str
) -> None:
    """Grammars that the web tier refuses; an engine used by itself may meet them."""
    state = matcher(structured_output, grammar)
    chosen = random.Random(0).choices("abcde", k=2_000)  # noqa: S311
    with pytest.raises(GrammarError, match=r"too complex on the way|takes too long"):
        follow(structured_output, state, map(tokenizer.token_to_id, chosen))


def follow(
    structured_output: StructuredOutput, state: GrammarMatcher, token_ids: Iterator[int]
) -> None:
    """Mask and consume, as a step does. Raises GrammarError."""
    for token_id in token_ids:
        if fault := mask(structured_output, row(grammar=state)).faults.get(0):
            raise fault
        state.consume(token_id)
