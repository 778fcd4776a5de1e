"""Constraints, stops and streams over whole vocabularies, through the engine."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from tests.conformance.tokenizers import texts
from tests.conformance.tokenizers.driving import LOGPROBS, Driven
from tests.workers.engine.driving import advance
from workers.engine.core.output import TokenLogprobs
from workers.engine.text.finish import FinishReason

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),  # of transformers, on tiny configurations
]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "n": {"type": "integer", "minimum": -5, "maximum": 100},
        "tags": {
            "type": "array", "items": {"enum": ["a", "é東京", "😀"]}, "minItems": 2, "maxItems": 3,
        },
        "ok": {"type": "boolean"},
    },
    "required": ["name", "n", "tags", "ok"],
    "additionalProperties": False,
}  # fmt: skip
SPACES = r"[a-z]{1,3}( {1,40}|\t{1,9}|\n{1,9})[東京é😀▁]{3}"
SUM = 'root ::= value ("+" value){2,4}\nvalue ::= [0-9]{1,3} | "(" [a-z]{1,9} " 東" ")"'
WILD = "root ::= ExcludeToken(5, 6){6}"
MANY_BYTES = "[é東京😀👩\u200d ▁a-z\n]{30,50}"
STOPPED = "start 東京 naïve café 👩\u200d👩\u200d👧 two  spaces\n\n and x end"


def test_masks_hold_the_tokens_that_may_come_next(driven: Driven) -> None:
    table = driven.table
    special = {driven.tokenizer.token_to_id(token) for token in driven.family.special}
    for text in (20 * " " + "x", "東京é", "\n\n\n\n\nx", *(f"{t}!" for t in driven.family.added)):
        grammar = driven.request("r", ("regex", f"({literal(text)}|Q)")).grammar
        compiled = driven.engine.structured_output.compile_now(grammar or "", 1)
        assert isinstance(compiled, list)
        allowed = ids_of(compiled[0].matcher.compute_bitmask())
        data = text.encode()
        may_come = {i for i, token in enumerate(table) if token and data.startswith(token)}
        assert allowed - special == (may_come | {i for i, t in enumerate(table) if t == b"Q"})


def test_text_is_of_its_language(driven: Driven) -> None:
    requests = [
        driven.request((kind, seed), (kind, value), seed=seed, logprobs=LOGPROBS)
        for kind, value in (("json_schema", SCHEMA), ("regex", SPACES), ("ebnf", SUM))
        for seed in (1, 2)
    ]
    free = driven.request("free", max_tokens=12, ignore_eos=True)
    *written, beside = driven.write([*requests, free])
    assert len(beside.token_ids) == 12
    for choice in written:
        assert choice.finish_reason is FinishReason.STOP
        assert max(choice.token_ids) < driven.family.tokens
        assert choice.text == driven.decoded(choice.token_ids)
        assert isinstance(choice.logprobs, TokenLogprobs)
        assert len(choice.logprobs.chosen) == len(choice.token_ids)
        ends = driven.engine.eos_token_ids
        told = b"".join(driven.table[i] for i in choice.token_ids if i not in ends)
        assert told.decode() == choice.text
    for choice in written[:2]:
        jsonschema.validate(json.loads(choice.text), SCHEMA)
    assert all(re.fullmatch(SPACES, choice.text) for choice in written[2:4])
    value = r"([0-9]{1,3}|\([a-z]{1,9} 東\))"
    assert all(re.fullmatch(rf"{value}(\+{value}){{2,4}}", choice.text) for choice in written[4:])


def test_forced_text_is_written_as_it_stands(driven: Driven) -> None:
    requests = [driven.request(i, ("regex", literal(text))) for i, text in enumerate(texts.ALL)]
    constant = {"const": {"text": texts.COMPOSED + texts.MARKS + texts.SPELLED}}
    requests.append(driven.request("const", ("json_schema", constant), max_tokens=300))
    *written, value = driven.write(requests)
    assert [choice.text for choice in written] == list(texts.ALL)
    assert json.loads(value.text) == constant["const"]
    assert {choice.finish_reason for choice in written} == {FinishReason.STOP}


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_by_name_and_by_id(driven: Driven, skip: bool) -> None:
    named = [*driven.family.special, *driven.family.added]
    requests, expected = [], []
    for name in named:
        token_id = driven.tokenizer.token_to_id(name)
        for token in (str(token_id), json.dumps(name, ensure_ascii=False)):
            ebnf = f'root ::= "a b" Token({token}) [c-e]{{2}} Token({token}) "é"'
            request_id = (name, token)
            requests.append(driven.request(request_id, ("ebnf", ebnf), skip_special_tokens=skip))
            expected.append(token_id)
    for choice, token_id in zip(driven.write(requests), expected, strict=True):
        assert choice.finish_reason is FinishReason.STOP
        assert choice.token_ids.count(token_id) == 2
        assert choice.text == driven.decoded(choice.token_ids, skip=skip)


def test_stop_strings_across_characters(driven: Driven) -> None:
    stops = ["東", "京 n", "é", "👩\u200d👧", "\u200d", "  ", "\n\n", " x", "t 東京 na"]
    requests = [driven.request(stop, ("regex", literal(STOPPED)), stop=(stop,)) for stop in stops]
    for stop, choice in zip(stops, driven.write(requests), strict=True):
        assert choice.text == STOPPED.partition(stop)[0]
        assert choice.matched_stop == stop


def test_deltas_join_to_the_decoded_text(driven: Driven) -> None:
    for seed in (1, 2):
        driven.engine.submit(driven.request(seed, ("regex", MANY_BYTES), seed=seed, max_tokens=200))
    pieces: dict[str, list[str]] = {"1": [], "2": []}
    token_ids: dict[str, list[int]] = {"1": [], "2": []}
    while driven.engine.live:
        for output in advance(driven.engine):
            assert output.error is None
            for delta in output.deltas:
                pieces[output.request_id].append(delta.text)
                token_ids[output.request_id] += delta.token_ids
    for name, parts in pieces.items():
        text = "".join(parts)
        assert re.fullmatch(MANY_BYTES, text)
        assert text == driven.decoded(token_ids[name])
        assert len([part for part in parts if part]) > 5


@pytest.fixture
def prefers_padding(driven: Driven) -> Iterator[None]:
    """Let the model prefer the rows that have no token."""
    if driven.family.tokens == driven.family.rows:
        pytest.skip("each row of this family's output layer has a token")
    runner: Any = driven.engine.runner
    forward = runner.forward

    def raised(batch: object) -> torch.Tensor:
        logits: torch.Tensor = forward(batch)
        logits[:, driven.family.tokens :] += 100
        return logits

    runner.forward = raised
    yield
    runner.forward = forward


@pytest.mark.usefixtures("prefers_padding")
def test_no_constraint_takes_a_row_without_a_token(driven: Driven) -> None:
    constraints = (("ebnf", WILD), ("regex", r"(.|\n){3,9}"), ("json_schema", SCHEMA))
    requests = [
        driven.request((kind, temperature), (kind, value), temperature=temperature,
                       max_tokens=40, logprobs=LOGPROBS)
        for kind, value in constraints
        for temperature in (0, 1)
    ]  # fmt: skip
    free = driven.request("free", max_tokens=8, ignore_eos=True, logprobs=LOGPROBS)
    *written, beside = driven.write([*requests, free])
    assert len(beside.token_ids) == 8
    assert beside.text == driven.decoded(beside.token_ids)
    for choice in written:
        assert len(choice.token_ids) > 0
        assert max(choice.token_ids) < driven.family.tokens
        assert choice.logprobs is not None


def literal(text: str) -> str:
    """A pattern of this text alone."""
    return re.sub(r"([][\\.^$*+?{}|()/])", r"\\\1", text).replace("\n", r"\n").replace("\t", r"\t")


def ids_of(bits: bytes) -> set[int]:
    """The ids whose bits are set."""
    marked = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return set(marked.nonzero()[0].tolist())
