"""A job's request as the engine's types. A web tier of another version may have written it, so the
names and types of all fields are checked."""

from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from completions.contract.stop_spans import StopSpan
from workers.engine.request import LogprobParams, Request
from workers.engine.sampling.params import SamplingParams

_TUPLES = frozenset({"stop", "stop_regex", "stop_token_ids", "dry_sequence_breakers"})
"""Sampling fields that are arrays in the payload and tuples in the engine."""
_OF_REQUEST = frozenset(
    {
        "prompts",
        "sampling",
        "adapters",
        "logprobs",
        "grammar",
        "priority",
        "cache_salt",
        "return_hidden_states",
        "return_routed_experts",
        "routed_experts_start_len",
        "report_constraint",
    }
)
"""Fields of the payload, all of them parameters of a Request."""


def request_params(payload: Any) -> dict[str, Any]:
    """Return the payload as arguments of a Request. Raises ValueError for an invalid payload."""
    fields = _object("the request", payload)
    for name in fields.keys() - _OF_REQUEST:
        raise ValueError(f"the request has {name!r}, which this worker does not know")
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
    """Return the payload's sampling object as the engine's type. Raises ValueError."""
    fields = dict(_object("sampling", payload))
    if isinstance(biases := fields.get("logit_bias"), dict):
        fields["logit_bias"] = {_token_id(name): bias for name, bias in biases.items()}
    for name in _TUPLES & fields.keys():
        fields[name] = _tuple(fields[name])
    if "stop_spans" in fields:
        fields["stop_spans"] = _tuple(fields["stop_spans"], _span)
    _check(SamplingParams, fields)
    return SamplingParams(**fields)


def logprob_params(payload: Any) -> tuple[LogprobParams | None, ...]:
    """Return the payload's log probabilities per prompt as engine types. Raises ValueError."""
    prompts = _tuple(() if payload is None else payload)
    if not isinstance(prompts, tuple):
        raise ValueError(f"logprobs must be an array, not {prompts!r:.80}")
    return tuple(None if each is None else _of_prompt(each) for each in prompts)


def _of_prompt(payload: Any) -> LogprobParams:
    fields = dict(_object("logprobs", payload))
    fields["token_ids_logprob"] = _tuple(fields.get("token_ids_logprob", ()))
    _check(LogprobParams, fields)
    return LogprobParams(**fields)


def _object(what: str, payload: Any) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise ValueError(f"{what} must be an object, not {payload!r:.80}")
    return payload


def _tuple(value: Any, each: Any = None) -> Any:
    """Return an array as a tuple; another value unchanged, so that `_check` refuses it."""
    if not isinstance(value, list | tuple):
        return value
    return tuple(map(each, value)) if each else tuple(value)


def _span(value: Any) -> StopSpan:
    try:
        span = StopSpan(*value)
    except TypeError as error:
        raise ValueError(f"stop_spans has {value!r:.80}") from error
    _check(StopSpan, span._asdict())
    return span


def _token_id(name: str) -> int:
    try:
        return int(name)
    except ValueError:
        raise ValueError(f"logit_bias has {name!r:.80}, which is not a token id") from None


def _check(of: type, fields: Mapping[str, Any]) -> None:
    hints = _hints(of)
    for name, value in fields.items():
        if name not in hints:
            raise ValueError(f"the request has {name!r}, which this worker does not know")
        if not _fits(value, hints[name]):
            raise ValueError(f"{name} must be {hints[name]}, not {value!r:.80}")


@cache
def _hints(of: type) -> dict[str, Any]:
    return get_type_hints(of)


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value from JSON has a field's declared type: a bool is not an int, but an
    int is a float."""
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
    if hint is int:  # fast: a prompt has thousands
        return set(map(type, values)) <= {int}
    return all(_fits(value, hint) for value in values)
