"""In what time a request shall end, what becomes of one that will not, and what goes before it."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from completions.exceptions import FieldError
from completions.models import OnLate
from completions.models.window import parse_window
from completions.requests.context import Context
from completions.requests.fields.base import ChoiceField, T, TextField
from completions.requests.fields.objects import StrictObject

FLEX = "flex"
_SHOWN = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineSettings:
    """The fields of DeadlineFields."""

    window: timedelta | None
    refuses_late: bool
    is_flexible: bool
    """Whether all other requests go first."""
    in_background: str
    """The given field that only background jobs have, or empty."""


class WindowField(TextField[T]):
    """A completion window."""

    def read(self, data: object, context: Context | None = None) -> str:
        text: str = super().read(data, context)
        try:
            parse_window(text)
        except ValueError as error:
            raise FieldError(f"is {text[:_SHOWN]!r}; it {error}.") from error
        return text


class OnLateField(ChoiceField["str | None"]):
    def __init__(self) -> None:
        super().__init__(
            "If the forecast gives less than 90 % for an end in completion_window: `accept` runs "
            "the request all the same, `refuse` refuses it. Default accept.",
            choices=OnLate.values,
        )


class DeadlineFields(StrictObject[Any]):
    completion_window: WindowField[str | None] = WindowField(
        "Only with background: minutes, hours or days, 1m to 7d, after which the request fails if "
        "it has not ended. It goes before what the key sent earlier and has more time. "
        "Default as configured (an hour)."
    )
    on_late = OnLateField()
    service_tier = TextField(
        "flex: all other requests go first, as before lines of batches; any other value has no "
        "effect.",
        max_length=64,
    )


def parse_deadline(values: Any) -> DeadlineSettings:
    """Return the settings of validated fields. Raises FieldError."""
    window, is_flexible = values.completion_window, values.service_tier == FLEX
    if is_flexible and values.priority is not None:
        message = 'cannot be combined with service_tier: "flex". Send only one.'
        raise FieldError(message, "priority")
    given = (name for name in ("completion_window", "on_late") if getattr(values, name) is not None)
    return DeadlineSettings(
        window=None if window is None else parse_window(window),
        refuses_late=values.on_late == OnLate.REFUSE,
        is_flexible=is_flexible,
        in_background=next(given, ""),
    )


def list_without_effect(values: Any) -> list[str]:
    """Return the names of given fields that have no effect."""
    return ["service_tier"] if values.service_tier not in (None, FLEX) else []
