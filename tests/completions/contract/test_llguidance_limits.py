"""The web tier's limits against the engine's."""

from completions.contract.llguidance_limits import ENGINE_LIMITS, JUDGE_LIMITS


def test_the_engine_can_follow_what_the_web_tier_accepts() -> None:
    for name in (
        "max_items_in_row", "initial_lexer_fuel", "step_lexer_fuel", "step_max_items",
        "max_lexer_states", "max_grammar_size",
    ):  # fmt: skip
        assert getattr(ENGINE_LIMITS, name) >= getattr(JUDGE_LIMITS, name), name
