"""The rows of the contract's tables: accepted values of one field, a check that the answer shows
their effect, and values that are refused."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.acceptance.contract.answers import CHAT, ROUTES, Answer, Form
from tests.acceptance.small_model import SMALL, small_tokenizer

ABSENT = object()
"""The value in a row's body of a field that is left out of the call."""
Body = Mapping[str, Any]
Check = Callable[[Answer, Answer | None], None]
"""Checks an answer. For rows with `control`, also gets the answer without the row's field."""

TOKENIZER = small_tokenizer()
PROMPTS: tuple[list[int], ...] = ([5, 6, 7], [8, 9])
MESSAGES = [{"role": "user", "content": "hello"}]


def ids(text: str) -> list[int]:
    found: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return found


(A,), (B,), (EOS,) = ids("a"), ids("b"), ids("<|end|>")
ALL_A = {"logit_bias": {str(A): 100}}
"""Makes every token `a`."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that is refused; `body` is added to the usual one."""

    body: Body
    code: str
    param: str | None
    status: int = 400
    model: str = SMALL


@dataclass(frozen=True, slots=True)
class Row:
    """One field, with one way to use it."""

    field: str
    body: Callable[[Form], Body]
    check: Check
    routes: Sequence[str] = ROUTES
    refused: Sequence[Refused] = ()
    fits: Callable[[Form], bool] = lambda _: True
    """Whether the field can be used in this form of a call."""
    control: bool = False
    """Whether `check` also gets the answer to the call without the field."""
    without: Body = field(default_factory=dict)
    """Other changes to the call without the field."""
    alike: bool = True
    """Whether a stream has the same content as a whole answer."""
    headers: Mapping[str, str] = field(default_factory=dict)


def usual(form: Form) -> dict[str, Any]:
    """A short greedy call with a fixed length."""
    body: dict[str, Any] = {
        "model": SMALL,
        "max_tokens": 4,
        "temperature": 0,
        "seed": 1,
        "ignore_eos": True,
        "n": form.n,
        "return_token_ids": True,
    }
    if form.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if form.route == CHAT:
        return {**body, "messages": MESSAGES, "thinking": {"type": "disabled"}}
    return {**body, "prompt": list(PROMPTS[: form.prompts]) if form.prompts > 1 else PROMPTS[0]}


def filled(form: Form, changes: Body) -> dict[str, Any]:
    whole = {**usual(form), **changes}
    if form.stream and "stream_options" in changes:
        whole["stream_options"] = {"include_usage": True, **(changes["stream_options"] or {})}
    return {name: value for name, value in whole.items() if value is not ABSENT}


def wrong(
    name: str, *values: Any, code: str = "invalid_type", at: str | None = None
) -> list[Refused]:
    """Values of a field that are refused with one code, at the field or below it."""
    return [Refused({name: value}, code, at or name) for value in values]


def row(
    name: str,
    value: Any,
    check: Check,
    refused: Sequence[Refused] = (),
    beside: Body | None = None,
    **options: Any,
) -> Row:
    """A row whose body is the same in all forms: the field, and what it needs `beside`."""
    return Row(name, lambda _: {**(beside or {}), name: value}, check, refused=refused, **options)


TOO_LOW, TOO_HIGH = "integer_below_min_value", "integer_above_max_value"
BAD_ID, BAD = "invalid_token_id", "invalid_value"
BOOLEAN = (0, 1, "true", [], {})
INTEGER = (True, 1.0, "1", [1], {})
NUMBER = (True, "0.5", [1], {})
TEXT = (True, 1, ["x"], {})


def once(form: Form) -> bool:
    """Not for streams."""
    return not form.stream


def single(form: Form) -> bool:
    return form.choices == 1


MISSING, TYPE, EMPTY, TOO_LONG = (
    "missing_required_parameter",
    "invalid_type",
    "empty_array",
    "context_length_exceeded",
)


def rendered(answer: Answer, _: Answer | None) -> None:
    assert {tuple(prompt) for prompt in answer.each("prompt_token_ids")} == {
        tuple(ids("user: hello\nassistant:<think></think>"))
    }
    assert set(answer.each("role")) == {"assistant"}


def ignored(name: str) -> Callable[[Answer, Answer | None], None]:
    def check(answer: Answer, _: Answer | None) -> None:
        assert name in answer.headers["x-ignored-params"].split(", ")

    return check


NOW: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "now",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"n": {"enum": [1]}},
            "required": ["n"],
            "additionalProperties": False,
        },
    },
}
