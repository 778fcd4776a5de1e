from collections.abc import Iterator

import pytest

from tests.workers.engine import tiny_models
from tests.workers.engine.grammar.matchers import EOS_IDS, PADDING
from workers.engine.grammar.structured_output import StructuredOutput
from workers.engine.text.detokenizer import Vocabulary


@pytest.fixture(scope="module")
def structured_output() -> Iterator[StructuredOutput]:
    tokenizer = tiny_models.byte_level_tokenizer()
    vocabulary = Vocabulary(tokenizer, tokenizer.get_vocab_size() + PADDING)
    structured_output = StructuredOutput(vocabulary, EOS_IDS, num_threads=1)
    yield structured_output
    structured_output.close()
