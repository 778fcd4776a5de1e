"""An engine over a family's vocabulary, with constraints as the API takes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from completions.contract.token_bytes import TokenBytes
from completions.grammars import Constraint, TokenSource, translate
from completions.grammars.compiler import Compiler
from tests.conformance.tokenizers.families import Family
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.output import ChoiceDelta
from workers.engine.core.request import Request
from workers.engine.engine import Engine

_CONFIG = EngineConfig(
    device="cpu", dtype="float32", max_model_len=512, max_num_seqs=24, block_size=4,
    kv_cache_bytes=2**22, num_threads=1,
)  # fmt: skip
LOGPROBS = (LogprobParams(top_logprobs_num=3),)


@dataclass(frozen=True)
class Driven:
    """A family, its engine, and its tokenizer as the `tokenizers` library reads it."""

    family: Family
    engine: Engine
    tokenizer: Tokenizer
    compiler: Compiler
    prompt: tuple[int, ...]
    table: Sequence[bytes]
    """The bytes of each token."""

    @classmethod
    def load(cls, family: Family, folder: Path) -> Self:
        engine = build_engine(folder, _CONFIG)
        file = folder / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(file))
        ends = tuple(sorted(engine.eos_token_ids))
        compiler = Compiler(TokenSource(str(file), engine.vocab_size, ends))
        prompt = tuple(tokenizer.encode("Say: x").ids)
        table = TokenBytes(tokenizer).make_table(family.rows)
        return cls(family, engine, tokenizer, compiler, prompt, table)

    def request(
        self, request_id: object, constraint: tuple[str, Any] | None = None, **params: Any
    ) -> Request:
        """A request at temperature 1, with a seed of its own."""
        logprobs = params.pop("logprobs", ())
        grammar = None
        if constraint is not None:
            grammar = translate(Constraint(*constraint), self.compiler).grammar
        sampling = SamplingParams(**{"max_tokens": 120, "temperature": 1.0, "seed": 1, **params})
        return Request(
            (self.prompt,),
            sampling,
            grammar,
            logprobs=logprobs,
            request_id=str(request_id),
        )

    def write(self, requests: Sequence[Request]) -> list[ChoiceDelta]:
        """The only choice of each request, in one batch."""
        completions = self.engine.generate(requests)
        assert [completion.error for completion in completions] == [None] * len(requests)
        return [choice for completion in completions for choice in completion.choices]

    def decoded(self, token_ids: Sequence[int], *, skip: bool = True) -> str:
        """What the tokenizer decodes after the prompt."""
        before = self.tokenizer.decode(list(self.prompt), skip_special_tokens=skip)
        whole = self.tokenizer.decode([*self.prompt, *token_ids], skip_special_tokens=skip)
        assert whole.startswith(before)
        return str(whole[len(before) :])
