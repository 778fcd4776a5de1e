"""The tokens of text that a grammar leaves no choice about."""

import json

from tokenizers import Tokenizer

from tests.workers.engine import tiny_models
from tests.workers.engine.grammar.matchers import EOS_IDS, PADDING, allowed, matcher, plan
from tests.workers.engine.rows import row
from workers.engine.grammar.structured_output import StructuredOutput
from workers.engine.text.detokenizer import Vocabulary


def test_words_that_begin_with_a_mark() -> None:
    tokenizer = tiny_models.sentencepiece_tokenizer()
    vocabulary = Vocabulary(tokenizer, tokenizer.get_vocab_size() + PADDING)
    words = StructuredOutput(vocabulary, frozenset({1}), num_threads=1)
    for text in (tiny_models.EOS, "a b"):
        state = matcher(words, f'start: "{text}"')
        forced = plan(state)
        assert state.is_complete
        assert 1 not in forced
        assert tokenizer.decode(forced) == text
    words.close()


def test_forced_text_is_cut_as_the_tokenizer_cuts_it(
    structured_output: StructuredOutput, tokenizer: Tokenizer
) -> None:
    text = 'the quick brown fox; "naïve" café'
    state = matcher(structured_output, f"start: {json.dumps(text, ensure_ascii=False)}")
    assert plan(state) == tokenizer.encode(text).ids
    assert state.is_complete


def test_nothing_is_forced_where_the_text_may_end_or_fork(
    structured_output: StructuredOutput,
) -> None:
    for grammar in ('start: "A" | "B"', 'start: "A"?', "start: /[é東]/", 'start: ""'):
        assert matcher(structured_output, grammar).forced is None


def test_a_plan_is_followed_to_its_end_or_dropped(
    structured_output: StructuredOutput, tokenizer: Tokenizer
) -> None:
    grammar = 'start: "the quick brown " /[a-z]/'
    whole = plan(matcher(structured_output, grammar))
    assert len(whole) > 2
    state = matcher(structured_output, grammar)
    state.consume(whole[0])
    assert plan(state) == whole[1:]
    other = matcher(structured_output, grammar)
    other.consume(tokenizer.token_to_id("t"))  # allowed by the grammar, but another cut
    assert other.forced not in (None, whole[0])


def test_without_jump_forward_nothing_is_planned(tokenizer: Tokenizer) -> None:
    vocabulary = Vocabulary(tokenizer, tokenizer.get_vocab_size())
    structured_output = StructuredOutput(vocabulary, EOS_IDS, num_threads=1, jump_forward=False)
    assert matcher(structured_output, 'start: "the quick"').forced is None
    structured_output.close()


def test_a_row_inside_a_plan_may_sample_nothing_else(structured_output: StructuredOutput) -> None:
    grammar = 'start: "the quick brown " /[a-z]/'
    state = matcher(structured_output, grammar)
    for token_id in plan(matcher(structured_output, grammar)):
        assert allowed(structured_output, row(grammar=state))[0].nonzero().flatten() == token_id
        state.consume(token_id)
    assert allowed(structured_output, row(grammar=state))[0].sum() > 1


def test_half_characters_that_are_forced_are_left_open(
    structured_output: StructuredOutput,
) -> None:
    state = matcher(structured_output, 'start: "é" | "è"')
    assert state.forced is None
    assert allowed(structured_output, row(grammar=state))[0].any()
