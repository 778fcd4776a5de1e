"""What a job asks of a worker: the type that the web tier makes, the job holds as JSON, and the
engine takes. No torch."""

from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct, field

from completions.contract.sampling import (
    MAX_LOGPROB_TOKEN_IDS,
    MAX_SUPPORT_IDS,
    MAX_TOP_LOGPROBS,
    SamplingParams,
)


class Task(StrEnum):
    """What a job asks of the model."""

    GENERATE = "generate"
    """Choices that continue its prompts. The scores of a prompt come with its first choice."""
    SCORE = "score"
    """The log probabilities of given continuations of its prompts, one choice for each."""


class LogprobsMode(StrEnum):
    """Under which distribution output tokens are scored."""

    RAW = "raw"
    """The model's own: before penalties, bias, temperature, the grammar and filters."""
    PROCESSED = "processed"
    """The one that tokens are drawn from, after all of these."""


class LogprobParams(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which log probabilities a request wants for one prompt and its choices.

    Each output token comes with its own log probability. The names are those of SGLang's API.
    """

    top_logprobs_num: int = 0
    """How many of the likeliest tokens to return at each position."""
    logprob_start_len: int = -1
    """The position from which the prompt's tokens are scored too; if negative, none are."""
    token_ids_logprob: tuple[int, ...] = ()
    """Token ids whose log probabilities are returned at every position."""
    mode: LogprobsMode = LogprobsMode.RAW
    """Of output tokens. A prompt's tokens were not drawn, so their scores are always raw."""
    support_ids: int | None = None
    """Asks for the support of each output token, with at most this many ids."""
    ranks: bool = False
    """Asks for the rank of each prompt token."""

    @property
    def scores_draws(self) -> bool:
        """Whether it asks what the output's tokens are drawn from."""
        return self.mode is LogprobsMode.PROCESSED or self.support_ids is not None

    def __post_init__(self) -> None:
        if not 0 <= self.top_logprobs_num <= MAX_TOP_LOGPROBS:
            raise ValueError(f"top_logprobs_num is out of range: {self.top_logprobs_num}")
        if self.support_ids is not None and not 0 <= self.support_ids <= MAX_SUPPORT_IDS:
            raise ValueError(f"support_ids is out of range: {self.support_ids}")
        if len(self.token_ids_logprob) > MAX_LOGPROB_TOKEN_IDS:
            raise ValueError(f"token_ids_logprob has more than {MAX_LOGPROB_TOKEN_IDS} ids")


class JobRequest(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One or more prompts, each completed ``sampling.n`` times.

    Choice ``i * n + j`` is the ``j``-th choice of prompt ``i``. Hidden states, routed experts and
    log probabilities need logits for every token, so a grammar's forced tokens then take a step
    each.
    """

    prompts: tuple[tuple[int, ...], ...] = ()
    """Token ids. Empty in SQL once the job has ended."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    grammar: str | None = None
    """A grammar in llguidance's own text format."""
    close: bool = False
    """Each choice under the grammar ends with a whole text of it, also at ``max_tokens``."""
    priority: int = 0
    """A larger one runs sooner."""
    cache_salt: str = ""
    """Requests share cached prefixes if organization, salt and adapter are equal."""
    adapters: tuple[str | None, ...] | None = None
    """One LoRA adapter of the model, or None, for each prompt. If None, no prompt uses one. A
    registered one is named by its reference (see `contract/adapters.py`)."""
    return_hidden_states: bool = False
    """Asks for each choice's last hidden state (see ``ChoiceDelta``)."""
    return_routed_experts: bool = False
    routed_experts_start_len: int = 0
    """The position from which experts are returned."""
    report_constraint: bool = False
    """Asks for each choice's ``ChoiceDelta.effect``, if it has a grammar, and for
    ``TokenLogprobs.forced`` in its log probabilities."""
    logprobs: tuple[LogprobParams | None, ...] | None = None
    """One entry for every prompt, or None."""
    task: Task = Task.GENERATE
    continuations: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """For each prompt the continuations to score. Their choices are numbered in this order."""

    @property
    def prompt_tokens(self) -> int:
        """All tokens that the client gives."""
        scored = (each for continuations in self.continuations for each in continuations)
        return sum(map(len, self.prompts)) + sum(map(len, scored))

    @property
    def num_sequences(self) -> int:
        """How many outputs it computes: each prompt's choices, or candidates of `best_of`, or the
        continuations to score."""
        if self.task is Task.SCORE:
            return sum(map(len, self.continuations))
        return self.sampling.num_candidates * len(self.prompts)

    @property
    def max_completion_tokens(self) -> int:
        return self.num_sequences * self.sampling.max_tokens

    @property
    def max_total_tokens(self) -> int:
        """The most tokens that it can use: every given one once, every choice at its longest."""
        return self.prompt_tokens + self.max_completion_tokens


_DECODER: Final = msgspec.json.Decoder(JobRequest)
encode_job_request: Final = msgspec.json.Encoder().encode


def decode_job_request(document: bytes) -> JobRequest:
    """Return the request that a job holds as JSON. Raises ValueError, which names the field, for
    what is not a request, or has a field that this version does not know."""
    try:
        request = _DECODER.decode(document)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    if not request.prompts:
        raise ValueError("the request has no prompts")
    return request
