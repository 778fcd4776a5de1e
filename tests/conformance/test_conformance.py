"""A sample of the corpus, written by a tiny model that knows nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from completions.grammars import TokenSource, json_schema
from completions.grammars.compiler import Compiler
from tests.conformance.check import fault, write
from tests.conformance.corpus import Schema, everything
from tests.workers.engine import tiny_models
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine

SAMPLE = everything()[::13]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(model: Path) -> Iterator[Engine]:
    threads = torch.get_num_threads()
    yield build_engine(model, EngineConfig(dtype="float32", max_num_seqs=64, num_threads=1))
    torch.set_num_threads(threads)


def test_what_is_finished_is_an_instance(model: Path, engine: Engine) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ends = tuple(sorted(engine.eos_token_ids))
    words = TokenSource(str(model / "tokenizer.json"), engine.vocab_size, ends)
    outcomes = list(write(engine, tokenizer, Compiler(words), SAMPLE, max_tokens=48))
    engine.stop()
    assert [outcome for outcome in outcomes if outcome.fault] == []
    assert len(SAMPLE) >= 40
    assert sum(outcome.finished for outcome in outcomes) >= len(SAMPLE) // 3


@pytest.mark.wide
def test_the_whole_corpus_is_taken() -> None:
    corpus = everything()
    assert len(corpus) >= 500
    assert [schema for schema in corpus if json_schema.translate(schema).warnings] == []


@pytest.mark.parametrize(
    ("schema", "text", "right"),
    [
        ({"type": "integer"}, "1", True),
        ({"type": "integer"}, '"1"', False),
        ({"type": "integer"}, "1,", False),
        ({"type": "number"}, "NaN", False),
        ({"type": "string", "format": "ipv4"}, '"1.2.3"', False),
        ({"items": [{"type": "null"}], "$schema": "http://json-schema.org/draft-07/schema#"},
         "[1]", False),
    ],
)  # fmt: skip
def test_the_check_can_fail(schema: Schema, text: str, right: bool) -> None:
    assert (fault(schema, text) == "") is right
