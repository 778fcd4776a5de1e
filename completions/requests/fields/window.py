"""In what time a request shall end, and what becomes of one that will not."""

from completions.exceptions import FieldError
from completions.models import OnLate
from completions.models.window import parse_window
from completions.requests.context import Context
from completions.requests.fields.base import ChoiceField, T, TextField

_SHOWN = 32


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
