"""Checks a request against the model, and splits it into sequences."""

import hashlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from completions.contract.adapters import read_digest, read_name
from completions.contract.job_request import LogprobParams, Task
from completions.contract.stop_regex.syntax import RegexError
from workers.engine.core.choice import Choice
from workers.engine.core.continuation import Continuation
from workers.engine.core.logprob_record import LogprobRecord, PromptLogprobs
from workers.engine.core.output import ConstraintEffect
from workers.engine.core.record import Record
from workers.engine.core.request import Request
from workers.engine.core.sequence import Sequence
from workers.engine.core.sequence_parts import Origin, Prefix, PromptHashes, SamplingRules
from workers.engine.core.shared_ids import SharedIds
from workers.engine.exceptions import (
    ContextLengthExceeded,
    InvalidRequest,
    ProcessorError,
    UnsupportedAdapter,
)
from workers.engine.live_requests import RequestState
from workers.engine.sampling.custom_processors import (
    ChoiceContext,
    CustomProcessor,
    Factory,
    make_processor,
)
from workers.engine.sampling.dry import breaker_ids
from workers.engine.scheduling.prefix_cache import chain_salt
from workers.engine.text.detokenizer import Vocabulary
from workers.engine.text.stop_checker import StopChecker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Intake:
    """The limits of one model and its KV cache."""

    vocabulary: Vocabulary
    vocab_size: int
    eos_token_ids: frozenset[int]
    max_model_len: int
    max_cached_tokens: int
    """The size of the KV cache in tokens."""
    tasks: frozenset[Task] = frozenset(Task)
    """What requests may ask for."""
    adapters: frozenset[str] = frozenset()
    """Those that are loaded with the model."""
    takes_registered: bool = False
    """Whether requests may use adapters that are registered while the engine runs."""
    sees_experts: bool = False
    processors: Mapping[str, Factory] = field(default_factory=dict)
    penalizes_prompt: bool = False
    """The repetition penalty counts the prompt's tokens too."""

    def accept(self, request: Request) -> RequestState:
        """Return the request as sequences that can run to their end. Raises InvalidRequest."""
        if request.task not in self.tasks:
            known = ", ".join(sorted(self.tasks))
            raise InvalidRequest(f"this model cannot {request.task}; what it can: {known}")
        self._check(request)
        match request.task:
            case Task.GENERATE:
                sequences = self._make_sequences(request)
            case Task.SCORE:
                sequences = self._make_scored(request)
            case _ as unreachable:
                assert_never(unreachable)
        return RequestState(request, sequences)

    def _make_sequences(self, request: Request) -> list[Sequence]:
        """Return one sequence for each candidate of each prompt."""
        candidates = range(request.sampling.num_candidates)
        try:
            return [
                self._sequence(request, i, j, hashes)
                for i, prompt in enumerate(request.prompts)
                for hashes in [PromptHashes(len(prompt))]
                for j in candidates
            ]
        except RegexError as error:
            raise InvalidRequest(str(error)) from error

    def _make_scored(self, request: Request) -> list[Sequence]:
        """One sequence for each continuation of each prompt, with nothing to sample. Those of one
        prompt share its blocks."""
        sequences: list[Sequence] = []
        sampling = request.sampling
        for i, (prompt, params) in enumerate(
            zip(request.prompts, request.logprobs or (), strict=True)
        ):
            assert params is not None
            params = structs.replace(params, logprob_start_len=len(prompt) - 1)
            adapter = request.adapters[i] if request.adapters else None
            salt = chain_salt(request.organization, request.cache_salt, adapter, False)
            hashes = PromptHashes(len(prompt))
            behind_prompt = self.vocabulary.detokenizer(
                prompt, sampling.skip_special_tokens, sampling.spaces_between_special_tokens
            )
            for j, token_ids in enumerate(request.continuations[i]):
                detokenizer = behind_prompt.copy()
                checker = StopChecker(sampling, self.eos_token_ids, 0)
                whole = SharedIds(prompt, token_ids)
                sequences.append(
                    Sequence(
                        sampling=sampling,
                        choice=Choice(len(sequences), detokenizer, checker),
                        token_ids=whole,
                        prompt_len=len(whole),
                        max_total_tokens=len(whole),
                        origin=Origin(
                            i,
                            j,
                            priority=request.priority,
                            audience=request.audience,
                            organization=request.organization,
                        ),
                        rules=SamplingRules(every_position=True),
                        adapter=adapter,
                        logprobs=LogprobRecord(params, PromptLogprobs(params, len(whole))),
                        continuation=Continuation.read(token_ids, detokenizer),
                        prefix=Prefix(salt, len(prompt) - 1, hashes),
                    )
                )
        return sequences

    def _sequence(
        self, request: Request, prompt_index: int, choice_index: int, hashes: PromptHashes
    ) -> Sequence:
        sampling = request.sampling
        prompt = request.prompts[prompt_index]
        index = prompt_index * sampling.num_candidates + choice_index
        selects = sampling.num_candidates > sampling.n  # candidates are never published
        published = () if selects else request.published.get(index, ())
        max_total = min(len(prompt) + sampling.max_tokens, self.max_model_len)
        choice = Choice(
            index,
            self.vocabulary.detokenizer(
                prompt, sampling.skip_special_tokens, sampling.spaces_between_special_tokens
            ),
            StopChecker(sampling, self.eos_token_ids, max_total - len(prompt)),
        )
        if request.report_constraint and request.grammar is not None:
            choice.effect = ConstraintEffect()
        adapter = request.adapters[prompt_index] if request.adapters else None
        record = _record(request, max_total)
        salt = chain_salt(request.organization, request.cache_salt, adapter, record is not None)
        logprobs = _logprobs(request, prompt_index, choice_index)
        prompt_scores = logprobs.prompt if logprobs is not None else None
        processor = self._processor(request, len(prompt))
        reuse_limits = [
            *([] if record is None or record.experts_from is None else [record.experts_from]),
            *([] if prompt_scores is None else [prompt_scores.start]),
        ]
        return Sequence(
            sampling=sampling,
            choice=choice,
            token_ids=[*prompt, *published],
            prompt_len=len(prompt),
            max_total_tokens=max_total,
            origin=Origin(
                prompt_index,
                choice_index,
                priority=request.priority,
                audience=request.audience,
                organization=request.organization,
                family=None if request.grammar is None else _family(request.grammar, salt),
            ),
            rules=SamplingRules(
                every_position=any(x is not None for x in (record, logprobs, processor)),
                processor=processor,
                dry_breakers=self._dry_breakers(request),
                penalizes_prompt=self.penalizes_prompt and sampling.repetition_penalty != 1,
                allowed_bits=_pack_bits(sampling.allowed_token_ids, self.vocab_size),
            ),
            adapter=adapter,
            record=record,
            logprobs=logprobs,
            prefix=Prefix(salt, min(reuse_limits, default=None), hashes),
        )

    def _processor(self, request: Request, prompt_len: int) -> CustomProcessor | None:
        name = request.sampling.custom_logit_processor
        if name is None:
            return None
        if name not in self.processors:
            known = ", ".join(sorted(self.processors)) or "none"
            raise InvalidRequest(
                f"custom_logit_processor {name!r} does not exist; registered: {known}"
            )
        context = ChoiceContext(
            self.vocabulary.tokenizer, self.vocab_size, self.eos_token_ids, prompt_len
        )
        try:
            return make_processor(
                name, self.processors[name], request.sampling.custom_params, context
            )
        except ProcessorError as error:
            extra = {"engine_request": request.request_id}
            logger.error("a processor cannot be made", exc_info=error.__cause__, extra=extra)
            raise

    def _dry_breakers(self, request: Request) -> frozenset[int]:
        if not request.sampling.dry_multiplier:
            return frozenset()
        return breaker_ids(self.vocabulary.tokenizer, request.sampling.dry_sequence_breakers)

    def _check(self, request: Request) -> None:
        sampling = request.sampling
        self._check_adapters(request)
        if not request.prompts:
            raise InvalidRequest("prompts is empty: send at least one prompt")
        for prompt in request.prompts:
            if not prompt:
                raise InvalidRequest("A prompt is empty: send at least one token id")
            self._check_ids("prompt", prompt)
            self._check_length(len(prompt), sampling.max_tokens)
        if request.task is Task.SCORE:
            self._check_continuations(request)
        self._check_routed_experts(request)
        self._check_logprobs(request)
        self._check_ids("stop_token_ids", sampling.stop_token_ids)
        self._check_ids("logit_bias", sampling.logit_bias)
        self._check_ids("allowed_token_ids", sampling.allowed_token_ids)
        for word in sampling.bad_words:
            self._check_ids("bad_words", word)
        if request.task is Task.GENERATE:
            self._check_published(request)

    def _check_published(self, request: Request) -> None:
        sampling = request.sampling
        for index, token_ids in request.published.items():
            if not 0 <= index < len(request.prompts) * sampling.n:
                raise InvalidRequest(f"published names choice {index}, which does not exist")
            self._check_ids("published", token_ids)
            room = self.max_model_len - len(request.prompts[index // sampling.n])
            if len(token_ids) > min(sampling.max_tokens, room):
                raise InvalidRequest(f"published holds more tokens than choice {index} may have")

    def _check_continuations(self, request: Request) -> None:
        if len(request.continuations) != len(request.prompts):
            raise InvalidRequest("continuations must have one entry for every prompt")
        if not request.logprobs or None in request.logprobs:
            raise InvalidRequest("continuations need logprobs for every prompt")
        if request.sampling.max_tokens:
            raise InvalidRequest("continuations need max_tokens 0, since nothing is sampled")
        for prompt, continuations in zip(request.prompts, request.continuations, strict=True):
            for token_ids in continuations:
                if not token_ids:
                    raise InvalidRequest("A continuation is empty: send at least one token id")
                self._check_ids("continuations", token_ids)
                self._check_length(len(prompt) + len(token_ids), 0)

    def _check_adapters(self, request: Request) -> None:
        if request.adapters and len(request.adapters) != len(request.prompts):
            raise InvalidRequest("adapters must have one entry, a name or None, for every prompt")
        for adapter in request.adapters or ():
            if adapter is None or adapter in self.adapters:
                continue
            if read_digest(adapter) is None:
                known = ", ".join(sorted(self.adapters)) or "none"
                raise InvalidRequest(f"adapter {adapter!r} does not exist; the model has: {known}")
            if not self.takes_registered:
                raise UnsupportedAdapter(
                    f"The adapter {read_name(adapter)!r} needs the whole model in one process: "
                    "its worker needs tensor_parallel_size = 1"
                )

    def _check_routed_experts(self, request: Request) -> None:
        if not request.return_routed_experts:
            return
        if not self.sees_experts:
            raise InvalidRequest("return_routed_experts: this model has no experts")
        shortest = min(map(len, request.prompts))
        if not 0 <= request.routed_experts_start_len <= shortest:
            raise InvalidRequest(
                f"routed_experts_start_len must be from 0 to the prompt's {shortest} tokens, not "
                f"{request.routed_experts_start_len}"
            )

    def _check_logprobs(self, request: Request) -> None:
        if request.logprobs and len(request.logprobs) != len(request.prompts):
            raise InvalidRequest("logprobs must be given for every prompt, or for none")
        for prompt, params in zip(request.prompts, request.logprobs or (), strict=False):
            if params is None:
                continue
            self._check_ids("token_ids_logprob", params.token_ids_logprob)
            if params.logprob_start_len > len(prompt):
                raise InvalidRequest(
                    f"logprob_start_len must be at most the prompt's {len(prompt)} tokens, not "
                    f"{params.logprob_start_len}"
                )

    def _check_length(self, prompt_len: int, max_tokens: int) -> None:
        if prompt_len + min(max_tokens, 1) > self.max_model_len:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {self.max_model_len} tokens. However, the "
                f"prompt has {prompt_len} tokens."
            )
        if min(prompt_len + max_tokens, self.max_model_len) > self.max_cached_tokens:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {self.max_cached_tokens} tokens, since "
                f"the KV cache of its worker holds no more. However, you requested "
                f"{prompt_len + max_tokens} tokens ({prompt_len} in the prompt, {max_tokens} in "
                "the completion)."
            )

    def _check_ids(self, name: str, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise InvalidRequest(
                    f"{name}: token id {token_id} is outside the vocabulary "
                    f"(0-{self.vocab_size - 1})"
                )


def _pack_bits(token_ids: tuple[int, ...], vocab_size: int) -> NDArray[np.int32] | None:
    if not token_ids:
        return None
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def _family(grammar: str, salt: bytes) -> bytes:
    return hashlib.sha256(salt + grammar.encode()).digest()


def _record(request: Request, capacity: int) -> Record | None:
    experts_from = request.routed_experts_start_len if request.return_routed_experts else None
    if not request.return_hidden_states and experts_from is None:
        return None
    return Record(request.return_hidden_states, experts_from, capacity)


def _logprobs(request: Request, prompt_index: int, choice_index: int) -> LogprobRecord | None:
    """Return the record of one choice. The prompt is scored once, with its first choice."""
    params = request.logprobs[prompt_index] if request.logprobs else None
    if params is None:
        selects = request.sampling.num_candidates > request.sampling.n
        return LogprobRecord(LogprobParams(), is_returned=False) if selects else None
    is_scored = choice_index > 0 or prompt_index * request.sampling.n in request.published
    if is_scored or params.logprob_start_len < 0:
        return LogprobRecord(params)
    return LogprobRecord(params, PromptLogprobs(params, len(request.prompts[prompt_index])))
