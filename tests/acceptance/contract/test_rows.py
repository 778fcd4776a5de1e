"""Every row of the contract's tables, on both routes, as a single call, several choices and a
batch, streamed and not. What is taken must show in its place; what is refused must say where."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from completions.requests.chat import ChatRequestObject
from completions.requests.completion import CompletionRequestObject
from completions.requests.fields.objects import StrictObject
from tests.acceptance.contract import (
    chat_rows,
    constraint_rows,
    processing_rows,
    prompt_rows,
    return_rows,
    routing_rows,
    sampling_rows,
    scoring_rows,
)
from tests.acceptance.contract.answers import (
    CHAT,
    COMPLETIONS,
    ROUTES,
    Answer,
    Form,
    fold,
    forms,
    settled,
)
from tests.acceptance.contract.rows import ABSENT, Refused, filled
from tests.acceptance.service import Installation
from tests.acceptance.small_model import SMALL

pytestmark = pytest.mark.acceptance

_TABLES = (
    sampling_rows,
    processing_rows,
    constraint_rows,
    return_rows,
    prompt_rows,
    chat_rows,
    routing_rows,
    scoring_rows,
)
ROWS = [row for table in _TABLES for row in table.ROWS]
SERIALIZERS: dict[str, type[StrictObject[Any]]] = {
    COMPLETIONS: CompletionRequestObject, CHAT: ChatRequestObject,
}  # fmt: skip
AT_ONCE = 24
Call = tuple[int, Form, bool]
"""A row, the form in which it is used, and whether the field is left out."""


def fitting(number: int) -> list[Form]:
    row = ROWS[number]
    return [form for route in row.routes for form in forms(route) if row.fits(form)]


def two_forms(number: int) -> list[Form]:
    """One shape of call, streamed and not. The rows take the shapes in turn, so each is tried."""
    possible = fitting(number)
    shape = unstreamed(possible[number % len(possible)])
    return [form for form in possible if unstreamed(form) == shape]


def unstreamed(form: Form) -> Form:
    return replace(form, stream=False)


def calls(choose: Callable[[int], list[Form]]) -> Iterable[Call]:
    for number, row in enumerate(ROWS):
        for form in choose(number):
            yield number, form, False
            if row.control:
                yield number, form, True


def answers_of(service: Installation, wanted: Sequence[Call]) -> dict[Call, Answer]:
    """The answers to calls that are accepted, many at once."""
    service.wait_served(SMALL)

    async def ask_all() -> dict[Call, Answer]:
        turns = asyncio.Semaphore(AT_ONCE)
        headers = {"Authorization": f"Bearer {service.key}"}
        async with httpx.AsyncClient(base_url=service.url, headers=headers, timeout=120) as client:

            async def ask(call: Call) -> Answer:
                number, form, without = call
                row = ROWS[number]
                changes = dict(row.body(form))
                if without:
                    changes |= {row.field: ABSENT, **row.without}
                async with turns:
                    response = await client.post(
                        form.route, json=filled(form, changes), headers=dict(row.headers)
                    )
                return fold(form, response)

            return dict(zip(wanted, await asyncio.gather(*map(ask, wanted)), strict=True))

    return asyncio.run(ask_all())


@pytest.fixture(scope="module")
def some_answers(service: Installation) -> dict[Call, Answer]:
    return answers_of(service, list(calls(two_forms)))


@pytest.fixture(scope="module")
def all_answers(service: Installation, request: pytest.FixtureRequest) -> dict[Call, Answer]:
    """Those of the rows that run: one share of the long tests has few of them."""
    function = test_what_is_taken_shows_in_every_form.__name__
    chosen = {
        item.callspec.params["number"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == function
    }
    return answers_of(service, [call for call in calls(fitting) if call[0] in chosen])


@pytest.mark.parametrize("route", ROUTES)
def test_every_field_has_a_row(route: str) -> None:
    """Values that are taken, and values that are refused."""
    here = [row for row in ROWS if route in row.routes]
    fields = set(SERIALIZERS[route].fields)
    assert {row.field for row in here} == fields
    assert {row.field for row in here if row.refused} == fields


EACH_ROW = pytest.mark.parametrize(
    "number", range(len(ROWS)), ids=[f"{i}-{r.field}" for i, r in enumerate(ROWS)]
)


def test_each_form_of_a_call_is_tried_with_many_rows() -> None:
    tried = Counter(form for number in range(len(ROWS)) for form in two_forms(number))
    assert set(tried) == {form for route in ROUTES for form in forms(route)}
    assert min(tried.values()) >= 10


@EACH_ROW
def test_what_is_taken_shows(some_answers: dict[Call, Answer], number: int) -> None:
    check(number, some_answers)


@pytest.mark.long
@EACH_ROW
def test_what_is_taken_shows_in_every_form(all_answers: dict[Call, Answer], number: int) -> None:
    check(number, all_answers)


def check(number: int, answers: dict[Call, Answer]) -> None:
    row = ROWS[number]
    mine = {
        form: answer
        for (i, form, without), answer in answers.items()
        if i == number and not without
    }
    assert mine
    for form, answer in mine.items():
        assert answer.status == 200, (str(form), answer.raw)
        control = answers.get((number, form, True))
        try:
            row.check(answer, control)
            assert len(answer.choices) >= form.choices
            if row.alike and form.stream and (whole := mine.get(unstreamed(form))):
                assert settled(answer) == settled(whole)
        except (AssertionError, KeyError) as error:
            raise AssertionError(f"{form}: {error!r}\n{answer.raw}") from error


def refusals(route: str) -> list[Refused]:
    here = [refused for row in ROWS if route in row.routes for refused in row.refused]
    return [each for each in here if not each.body.get("stream")]


@pytest.mark.represented_by("/v1/completions")
@pytest.mark.parametrize("route", ROUTES)
def test_what_is_refused_says_where(http: httpx.Client, route: str) -> None:
    """By turns streamed and not: an error never begins a stream."""
    wrong = []
    for number, refused in enumerate(refusals(route)):
        stream = bool(number % 2) and "stream_options" not in refused.body
        changes = {"model": refused.model, **refused.body}
        if route == CHAT and refused.model != SMALL:
            changes = {"thinking": ABSENT, **changes}
        answer = http.post(route, json=filled(Form(route, stream), changes))
        error = answer.json().get("error", {})
        found = (answer.status_code, error.get("code"), error.get("param"))
        if found != (refused.status, refused.code, refused.param):
            wrong.append((stream, refused, answer.text[:300]))
    assert not wrong, "\n".join(map(str, wrong))
