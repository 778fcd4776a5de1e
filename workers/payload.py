"""A job's request as the engine's types. A web tier of another version may have written it, so
names and types are checked, and nothing that is not known is passed over."""

from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from workers.engine.request import LogprobParams, Request, SamplingParams

_TUPLES = frozenset({"stop", "stop_regex", "stop_token_ids", "dry_sequence_breakers"})
"""Sampling fields that are arrays in the payload."""
_OF_REQUEST = frozenset(
    {"prompts", "sampling", "adapters", "logprobs", "grammar", "priority", "cache_salt",
     "return_hidden_states", "return_routed_experts", "routed_experts_start_len"}
)  # fmt: skip
"""Names of the payload, all parameters of a Request."""


def request_params(payload: Any) -> dict[str, Any]:
    """The payload as arguments of a Request. Raises ValueError."""
    fields = _object("the request", payload)
    for name in fields.keys() - _OF_REQUEST:
        raise ValueError(f"the request has {name}, which this worker does not know")
    for name in ("prompts", "sampling"):
        if name not in fields:
            raise ValueError(f"the request has no {name}")
    params = dict(fields)
    params["prompts"] = _tuple(fields["prompts"], _tuple)
    params["sampling"] = sampling_params(fields["sampling"])
    params["adapters"] = _tuple(fields.get("adapters") or ())
    params["logprobs"] = logprob_params(fields.get("logprobs"))
    _check(Request, params)
    return params


def sampling_params(payload: Any) -> SamplingParams:
    """The payload's sampling object as the engine's type. Raises ValueError."""
    fields = dict(_object("sampling", payload))
    if isinstance(biases := fields.get("logit_bias"), dict):
        fields["logit_bias"] = {_token_id(name): bias for name, bias in biases.items()}
    for name in _TUPLES & fields.keys():
        fields[name] = _tuple(fields[name])
    _check(SamplingParams, fields)
    return SamplingParams(**fields)


def logprob_params(payload: Any) -> tuple[LogprobParams | None, ...]:
    """The payload's wishes per prompt as the engine's type. Raises ValueError."""
    wishes = _tuple(() if payload is None else payload)
    if not isinstance(wishes, tuple):
        raise ValueError(f"logprobs cannot be {wishes!r:.80}")
    return tuple(None if wish is None else _wish(wish) for wish in wishes)


def _wish(payload: Any) -> LogprobParams:
    fields = dict(_object("logprobs", payload))
    fields["token_ids_logprob"] = _tuple(fields.get("token_ids_logprob", ()))
    _check(LogprobParams, fields)
    return LogprobParams(**fields)


def _object(what: str, payload: Any) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise ValueError(f"{what} is no object: {payload!r:.80}")
    return payload


def _tuple(value: Any, each: Any = None) -> Any:
    """A list of JSON as a tuple; what is none stays, to be refused."""
    if not isinstance(value, list | tuple):
        return value
    return tuple(map(each, value)) if each else tuple(value)


def _token_id(name: str) -> int:
    try:
        return int(name)
    except ValueError:
        raise ValueError(f"logit_bias cannot be for {name!r:.80}") from None


def _check(of: type, fields: Mapping[str, Any]) -> None:
    hints = _hints(of)
    for name, value in fields.items():
        if name not in hints:
            raise ValueError(f"there is {name}, which this worker does not know")
        if not _fits(value, hints[name]):
            raise ValueError(f"{name} cannot be {value!r:.80}")


@cache
def _hints(of: type) -> dict[str, Any]:
    return get_type_hints(of)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is what a field is declared to be. JSON's numbers are exact: no bool is an
    int, and an int is a float."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is UnionType:
        return any(_fits(value, each) for each in inner)
    if origin is tuple:
        return isinstance(value, tuple) and _all_fit(value, inner[0])
    if origin is Mapping:
        return isinstance(value, dict) and _all_fit(value.values(), inner[1])
    if hint is float:
        return type(value) in (float, int)
    return type(value) is (NoneType if hint is None else hint)


def _all_fit(values: Any, hint: Any) -> bool:
    if hint is int:  # a prompt has thousands
        return set(map(type, values)) <= {int}
    return all(_fits(value, hint) for value in values)
