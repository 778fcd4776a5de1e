"""What the responses of a job are built from, in addition to its events."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import msgspec

_FORMER_NAMES = {"thinking_marks": "think_tags", "thinking_open": "is_reasoning_open"}
"""Fields of stored contexts that had another name in version 0.1; until version 0.3."""


class OpenEnd(NamedTuple):
    """The end of a prompt that ends within a character. JSON has its values, as an array."""

    before: str
    """The prompt's text before the character."""
    begun: str
    """The character's first bytes, in hexadecimal."""


class SGLangLogprobs(NamedTuple):
    """The log probabilities of one prompt that SGLang's fields (`return_logprob` and the like) ask
    for. JSON has its values, as an array."""

    tokens: bool
    """Whether those of the sampled tokens are wanted."""
    top: int
    """The number of likeliest tokens listed at each position."""
    ids: Sequence[int]
    """The tokens that are scored at each position."""
    start: int
    """The first scored position of the prompt; -1 if the prompt is not scored."""


class SessionReference(msgspec.Struct, frozen=True):
    """Where in a session a response belongs, as it says itself."""

    id: str
    after: str | None
    """The choice that it comes after."""
    drift: Mapping[str, object] | None
    """From which message on the chat template writes the session in another way, and what was done
    about it."""


class ResponseFields(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields of a response context, stored with the job so that any process can build its
    responses. To add one, give it a default: contexts of earlier versions lack it, and theirs
    ignore it."""

    id_prefix: ClassVar[str]
    object: ClassVar[str]
    chunk_object: ClassVar[str]
    path: ClassVar[str]
    """The route that made the job."""
    not_found: ClassVar[str] = "completion_not_found"
    """The error of a job that is unknown, has expired or belongs to others."""

    id: str
    model: str
    """The model as the request names it."""
    created: int
    n: int
    """Choices per prompt."""
    prompt_lengths: Sequence[int]
    base_model: str | None = None
    """The served model, if `model` names an adapter too."""
    prompts: Sequence[Sequence[int]] | None = None
    """Given only if something in the response needs them; see `get_prompt`."""
    prompt_places: Sequence[int] = ()
    """The place in `prompts` of each scored continuation's prompt: several have the same one. Empty
    where each of `prompt_lengths` has a prompt of its own."""
    is_batch: bool = False
    """Whether SGLang's own route answers with an array."""
    return_token_ids: bool = False
    echo: Sequence[str] | None = None
    """The prompts' texts, if they come before the completions' texts."""
    open_ends: Sequence[OpenEnd | None] = ()
    """By echoed prompt; empty if no prompt ends within a character."""
    skip_special_tokens: bool = True
    """Whether an echo leaves out special tokens."""
    logprobs: int | None = None
    """Alternatives per token in `choices[].logprobs`."""
    sglang_logprobs: Sequence[SGLangLogprobs | None] | None = None
    """By prompt."""
    text_in_logprobs: bool = False
    prompt_logprobs: int | None = None
    """Likeliest tokens at each position of the prompts, for vLLM's `prompt_logprobs`."""
    sampling_support: bool = False
    scored: bool = False
    """Whether the choices are continuations that the client gave. Each has a prompt of its own."""
    meta_info: bool = False
    hidden_states: bool = False
    routed_experts: bool = False
    cached_tokens_details: bool = False
    rid: str | Sequence[str] | None = None
    """The client's own id: one for the request, or one per prompt."""
    truncated_tokens: int = 0
    include_usage: bool = False
    continuous_usage_stats: bool = False
    obfuscation: bool = False
    prices: Mapping[str, float] | None = None
    """Prices per million tokens when the job was submitted."""
    constrained: bool = False
    closes: bool = False
    """Whether choices end with whole texts of their constraint."""
    default_length: bool = False
    """Whether the route's default, not the request, bounds the choices' lengths."""
    grammar_compile_ms: float | None = None
    weight_version: str | None = None
    session: SessionReference | None = None
    """Given for a turn of a session."""
    ignored_params: Sequence[str] = ()
    """Paths of the fields in the request that had no effect."""

    @classmethod
    def read(cls, stored: bytes) -> Self:
        """Read what :meth:`to_json` wrote, perhaps in another version."""
        fields = msgspec.json.decode(stored, type=dict[str, object])
        return msgspec.convert(
            {_FORMER_NAMES.get(name, name): value for name, value in fields.items()}, cls
        )

    def to_json(self) -> bytes:
        """Return the fields that differ from their defaults, in JSON."""
        return msgspec.json.encode(self)

    @property
    def rids(self) -> Sequence[str]:
        """The ids that the client gave to the request or to its prompts."""
        return (self.rid,) if isinstance(self.rid, str) else self.rid or ()

    @property
    def served_model(self) -> str:
        return self.base_model or self.model

    def get_prompt(self, choice: int) -> Sequence[int] | None:
        """Return the token ids of a choice's prompt; None if nothing in the response needs them."""
        if self.prompts is None:
            return None
        place = choice // self.n
        return self.prompts[self.prompt_places[place] if self.prompt_places else place]

    @property
    def num_choices(self) -> int:
        return len(self.prompt_lengths) * self.n

    @property
    def location(self) -> str:
        """The URL path of this completion; empty if it has none."""
        return f"{self.path}/{self.id}"

    def make_envelope(self) -> dict[str, Any]:
        """Return the keys that every object of this completion begins with."""
        envelope: dict[str, object] = {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"fp_{self.weight_version}" if self.weight_version else None,
        }
        if self.rid is not None:
            envelope["rid"] = self.rid
        if self.session is not None:
            envelope["session"] = msgspec.to_builtins(self.session)
        return envelope

    def get_rid(self, choice: int) -> str | None:
        """Return the client's id of one choice, numbered if several choices share one."""
        if self.rid is None:
            return None
        if isinstance(self.rid, str):
            return self.rid if self.num_choices == 1 else f"{self.rid}_{choice}"
        prompt, number = divmod(choice, self.n)
        return self.rid[prompt] if self.n == 1 else f"{self.rid[prompt]}_{number}"
