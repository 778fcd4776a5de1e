"""The web tier's limits against the engine's."""

import json

import pytest
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from completions.contract.llguidance_limits import ENGINE_LIMITS, VALIDATION_LIMITS


def test_the_engine_can_follow_what_the_web_tier_accepts() -> None:
    for name in (
        "max_items_in_row",
        "initial_lexer_fuel",
        "step_lexer_fuel",
        "step_max_items",
        "max_lexer_states",
        "max_grammar_size",
    ):
        assert getattr(ENGINE_LIMITS, name) >= getattr(VALIDATION_LIMITS, name), name


@pytest.mark.parametrize("limits", [ENGINE_LIMITS, VALIDATION_LIMITS])
def test_many_large_patterns_lose_no_text(limits: LLParserLimits) -> None:
    """llguidance prepares large patterns in advance. Where it stopped on the way, texts were
    refused that match."""
    words = {"type": "string", "pattern": r"^(?:\S+\s+){0,49}\S+$"}
    names = [f"p{index}" for index in range(20)]
    schema = {
        "x-guidance": {"whitespace_flexible": False},
        "type": "object",
        "properties": {
            name: {**words, "maxLength": 100 * index} for index, name in enumerate(names, 1)
        },
    }
    grammar = json.dumps({"grammars": [{"json_schema": schema}]})
    text = json.dumps(dict.fromkeys(names, "a summary of it all"), separators=(",", ":")).encode()
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0, limits=limits)
    assert matcher.try_consume_tokens(list(text)) == len(text)
    assert matcher.is_accepting()
