"""A session's trajectory as lines with receipts: whole prompts, and other files refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from completions.batches.receipts.source import SourceError, read_receipted
from completions.batches.receipts.trajectory import make_constraint

RECEIPT = {
    "model": "m", "weights": None, "dtype": "float32", "tokenizer": "t", "grammar": None,
    "prompt": "p", "seed": 1, "engine": None,
}  # fmt: skip


def turn(name: str, after: str | None, given: list[int], *answers: list[int], **more: Any) -> Any:
    ends = {"text": "x", "message": None, "finish_reason": "stop", "matched_stop": None}
    return {
        "session": "session_1",
        "turn": name,
        "after": after,
        "model": "m",
        "given": {"token_ids": given},
        "rebased": False,
        "choices": [{"token_ids": ids, "token_mask": [1] * len(ids), **ends} for ids in answers],
        "request": {"max_tokens": 3},
        "grammar": None,
        "receipt": {**RECEIPT, "output_ids": list(answers)},
        **more,
    }


def read(folder: Path, *turns: Any) -> dict[str, Any]:
    file = folder / "trajectory.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in turns))
    return {each.custom_id: each.body for each in read_receipted(file, None)}


def test_a_prompt_is_all_that_comes_before(tmp_path: Path) -> None:
    bodies = read(
        tmp_path,
        turn("c", "b:0", [7], [8]),  # in any order
        turn("a", None, [1], [2], [3]),
        turn("b", "a:1", [4], [5]),
        turn("d", "b:0", [9], [9], rebased=True),
        turn("e", "d:0", [6], [6], receipt=None),
    )
    assert {name: body["prompt"] for name, body in bodies.items()} == {
        "a": [1],
        "b": [1, 3, 4],
        "c": [1, 3, 4, 5, 7],
        "d": [9],
    }
    assert bodies["a"] == {"max_tokens": 3, "model": "m", "prompt": [1]}


def test_the_prompt_of_a_turn_holds_what_the_receipts_before_it_do(tmp_path: Path) -> None:
    changed = turn("a", None, [1], [2])
    changed["choices"][0]["token_ids"] = [9]
    assert read(tmp_path, changed, turn("b", "a:0", [4], [5]))["b"]["prompt"] == [1, 2, 4]


@pytest.mark.parametrize(
    "turns",
    [
        [turn("a", "b:0", [1], [2]), turn("b", "a:0", [1], [2])],
        [turn("b", "a:0", [1], [2])],
        [turn("a", None, [1], [2]), turn("b", "a:1", [1], [2])],
        [{"session": "s", "turn": "a"}],
        [turn("a", None, [1], [-2])],
    ],
)
def test_what_is_no_trajectory_is_refused(tmp_path: Path, turns: list[Any]) -> None:
    with pytest.raises(SourceError):
        read(tmp_path, *turns)


def test_a_grammar_becomes_a_constraint_without_what_is_null() -> None:
    text = json.dumps(
        {"grammars": [{"lark_grammar": "s", "json_schema": None}], "max_tokens": None}
    )
    value = {"grammars": [{"lark_grammar": "s"}]}
    assert make_constraint(text) == {"type": "llguidance", "value": value}
