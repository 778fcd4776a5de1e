"""The field `continuation_token_ids`: token ids whose log probabilities are asked for, and what a
request with them may not have."""

from collections.abc import Mapping, Sequence
from typing import Final

from completions.contract.job_request import LogprobsMode
from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.fields.base import Field, expect, get_files, read_each
from completions.requests.fields.lists import check_count
from completions.requests.fields.sampling import SamplingFields
from completions.requests.fields.tokens import TOKEN_ID, TokenIdsField

MAX_CONTINUATIONS: Final = 1024
Continuations = Sequence[Sequence[Sequence[int]]]
"""By prompt, then by continuation: token ids."""
_NEEDS_SAMPLING: Final[Mapping[str, object]] = {
    "echo": False,
    "suffix": None,
    "best_of": None,
    "n": 1,
    "return_logprob": None,
    "token_ids_logprob": None,
    "prompt_logprobs": None,
    "logprobs_mode": LogprobsMode.RAW,
    "return_sampling_support": False,
    "return_hidden_states": False,
    "return_routed_experts": False,
    "close": None,
}
"""Fields that a request with continuations leaves at these values."""
_OF_TEXT: Final = ("skip_special_tokens", "spaces_between_special_tokens", "n")
"""Fields among those of sampling that have an effect on scores too."""


class ContinuationsField(Field[Continuations | None]):
    """Ids, an array of such arrays for all prompts, or one of these for each prompt. Read as
    continuations by prompt, of which there is one if they are for all prompts."""

    def to_schema(self) -> dict[str, object]:
        ids = {"type": "array", "items": TOKEN_ID, "minItems": 1}
        several = {"type": "array", "items": ids, "minItems": 1}
        return {"anyOf": [ids, several, {"type": "array", "items": several, "minItems": 1}]}

    def read(self, data: object, context: Context | None = None) -> Continuations:
        depth = _find_depth(data)
        if depth == 1:
            return [[self._read_ids(data, context)]]
        if depth == 2:
            return [self._read_several(data, context)]
        data = expect(data, list, "an array")
        return read_each(data, lambda item: self._read_several(item, context))

    def _read_several(self, data: object, context: Context | None) -> list[list[int]]:
        data = expect(data, list, "an array of arrays of token ids")
        check_count(data, MAX_CONTINUATIONS, "continuations")
        if not data:
            raise FieldError("must have at least 1 element.", code="empty_array")
        return read_each(data, lambda item: self._read_ids(item, context))

    def _read_ids(self, data: object, context: Context | None) -> list[int]:
        ids = TokenIdsField(max_length=get_files(context).max_model_len).read(data, context)
        if not ids:
            raise FieldError("must hold at least one token id.", code="empty_array")
        return ids


def _find_depth(data: object) -> int:
    """Return how many arrays enclose the first token id."""
    depth = 0
    while type(data) is list:
        depth += 1
        data = data[0] if data else None
    return max(1, depth)


def spread_continuations(
    continuations: Continuations, prompts: int
) -> Sequence[Sequence[Sequence[int]]]:
    """Return the continuations of each prompt. Raises FieldError."""
    path = "continuation_token_ids"
    if len(continuations) not in (1, prompts):
        message = f"has {len(continuations)} entries for {prompts} prompts; send one for each."
        raise FieldError(message, path)
    spread = [*continuations] * prompts if len(continuations) == 1 else continuations
    if sum(map(len, spread)) > MAX_CONTINUATIONS:
        message = f"asks for {sum(map(len, spread))} scores; at most {MAX_CONTINUATIONS} fit."
        raise FieldError(message, path, code="array_above_max_length")
    return spread


def check_scoring(values: object, length: int | None) -> None:
    """Raise FieldError for a field that a request with continuations cannot have. `length` is the
    number of tokens that it asks for."""
    if length:
        raise FieldError("must be 0 or absent with continuation_token_ids.", "max_tokens")
    for name, default in _NEEDS_SAMPLING.items():
        if (value := getattr(values, name)) != default and value is not False:
            raise FieldError("cannot be combined with continuation_token_ids.", name)


def list_without_effect(given: Mapping[str, object]) -> list[str]:
    """Return the names of given fields that only choose tokens."""
    names = (name for name in SamplingFields.fields if name not in _OF_TEXT)
    return [name for name in names if given.get(name) is not None]
