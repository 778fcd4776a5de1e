"""The fields of a request that the playground offers, read from the tables of both routes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from completions.requests.chat import ChatRequestObject
from completions.requests.completion import CompletionRequestObject
from completions.requests.fields.base import Field
from completions.requests.fields.constraint import CONSTRAINT_KINDS, ConstraintFields
from completions.requests.fields.ignored import IgnoredFields
from completions.requests.fields.logprobs import LogprobFields
from completions.requests.fields.returns import ReturnFields
from completions.requests.fields.routing import RoutingFields
from completions.requests.fields.sampling import SamplingFields
from completions.requests.fields.session import SessionFields
from completions.requests.fields.window import DeadlineFields

CHAT, PLAIN = "chat", "plain"
ROUTES: Final = {CHAT: ChatRequestObject, PLAIN: CompletionRequestObject}
ELSEWHERE: Final = frozenset(
    {"model", "messages", "prompt", "input_ids", *(k.field for k in CONSTRAINT_KINDS if k.label)}
)
"""Fields that have a place of their own in the playground."""
WITHOUT_EFFECT: Final[Mapping[str, frozenset[str]]] = {
    CHAT: frozenset({"verbosity", *IgnoredFields.fields}),
    PLAIN: frozenset({"tools", "tool_choice", "parallel_tool_calls", *IgnoredFields.fields}),
}
_TITLES = {
    SamplingFields: "Sampling",
    ConstraintFields: "Constraint",
    LogprobFields: "Log probabilities",
    ReturnFields: "Answer",
    RoutingFields: "Routing",
    SessionFields: "Session",
    DeadlineFields: "Deadline",
}
_OTHER = "Prompt and length"
FIRST: Final = ("max_tokens", "temperature", "top_p", "seed", "n")
"""Fields that are always in sight."""
TOOLS: Final = ("tools", "tool_choice", "parallel_tool_calls")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A field as an input of a form."""

    name: str
    reads: str
    """How its text becomes JSON: `json`, `text`, or `either`, text where it is no JSON."""
    choices: Sequence[str]
    bounds: Mapping[str, object]
    """The attributes of an input for numbers; empty for others."""
    default: str
    """Shown while the input is empty."""
    help: str
    routes: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The name of the input. Routes that mean different things by a field have one each."""
        return self.name if len(self.routes) > 1 else f"{self.routes[0]}:{self.name}"


def list_parameters() -> dict[str, list[Parameter]]:
    """Return the parameters of both routes by the title of their group."""
    groups: dict[str, list[Parameter]] = {}
    for route, name, each in _iter_fields():
        group = groups.setdefault(_find_title(name), [])
        new = _make_parameter(name, each)
        known = (p for p in group if p.name == name)
        same = next((p for p in known if (p.reads, p.choices) == (new.reads, new.choices)), None)
        if same is None:
            group.append(same := new)
        same.routes.append(route)
    return groups


def write_value(parameter: Parameter, value: object) -> str:
    """Return the text of a value in its input."""
    is_plain = isinstance(value, str) and parameter.reads == "text"
    return str(value) if is_plain else json.dumps(value, ensure_ascii=False)


def _iter_fields() -> Iterator[tuple[str, str, Field[Any]]]:
    for route, body in ROUTES.items():
        for name, each in body.fields.items():
            if name not in ELSEWHERE | WITHOUT_EFFECT[route]:
                yield route, name, each


def _find_title(name: str) -> str:
    if name in FIRST:
        return ""
    if name in TOOLS:
        return "Tools"
    return next((title for group, title in _TITLES.items() if name in group.fields), _OTHER)


def _make_parameter(name: str, each: Field[Any]) -> Parameter:
    schema: dict[str, Any] = each.to_schema()
    kind, reads, choices = schema.get("type"), "json", list(schema.get("enum", ()))
    if kind == "boolean":
        choices = ["true", "false"]
    elif kind == "string":
        reads = "text"
    elif any(option.get("type") == "string" for option in schema.get("anyOf", ())):
        reads = "either"
    bounds = {"min": schema.get("minimum"), "max": schema.get("maximum")}
    return Parameter(
        name=name,
        reads=reads,
        choices=choices,
        bounds={"step": "1" if kind == "integer" else "any", **bounds}
        if kind in ("integer", "number")
        else {},
        default="" if each.default is None else json.dumps(each.default).strip('"'),
        help=each.help,
    )
