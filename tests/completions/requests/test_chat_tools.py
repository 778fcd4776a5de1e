"""Tools of a chat completion: their grammar, their schemas, and custom tools."""

from typing import Any

import pytest
from asgiref.sync import async_to_sync

from completions.chat.tools import ToolChoice
from completions.exceptions import APIError
from completions.grammars.structural_tag import ANSWER
from completions.requests.validation import validate_grammar
from tests.completions.checking import shared_validator
from tests.completions.requests.chat_bodies import (
    SCHEMA,
    F,
    prepare_chat,
    refusal,
    text,
    validate,
)

pytestmark = pytest.mark.usefixtures("chat_models")


def test_tools_make_a_grammar() -> None:
    request = validate({"model": "caller", "tools": [F]})
    assert request.chat.calls.choice == ToolChoice("auto")
    assert request.constraint.field == ANSWER
    assert text(request).startswith("You may call")
    silent = validate({"model": "caller", "tools": [F], "tool_choice": "none"})
    assert (silent.chat.calls, silent.constraint, text(silent)) == (None, None, "hi|")


def test_a_constraint_beside_tools_is_an_alternative() -> None:
    request = validate({"model": "caller", "tools": [F], "regex": "a+"})
    assert request.constraint.value["constraint"][:2] == ["regex", "a+"]


def tool(schema: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": schema, **options}}


UNKNOWN = {"properties": {"a": {"extends": {}}}}
PLACE = "tools[0].function.parameters"


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_schemas_that_are_not_enforced_are_named(choice: str) -> None:
    for given, ignored in (
        (tool(UNKNOWN), (PLACE,)),
        (tool(UNKNOWN, strict=False), (PLACE,)),
        (tool(SCHEMA), ()),
    ):
        assert prepare_chat(tools=[given], tool_choice=choice).request.ignored == ignored


def test_a_strict_schema_that_cannot_be_enforced_is_refused() -> None:
    with pytest.raises(APIError, match="/properties/a/extends") as caught:
        prepare_chat(tools=[tool(UNKNOWN, strict=True)])
    assert (caught.value.code, caught.value.param) == ("invalid_grammar", PLACE)


def test_a_grammar_that_fails_as_a_whole_gives_way_to_the_looser_one() -> None:
    request = validate({"model": "caller", "tools": [tool(SCHEMA)]})
    assert request.fallback is not None
    assert request.fallback.paths == (PLACE,)
    assert request.constraint is not None
    tree = {"type": "regex", "pattern": "("}
    bad = request.constraint._replace(value={**request.constraint.value, "format": tree})
    judged = async_to_sync(validate_grammar)(
        shared_validator(), bad, request.model.files, request.fallback
    )
    assert judged.ignored == (PLACE,)
    assert (
        judged.grammar
        == async_to_sync(validate_grammar)(
            shared_validator(), request.fallback.constraint, request.model.files
        ).grammar
    )


def test_a_fault_of_the_constraint_beside_tools_is_still_an_error() -> None:
    with pytest.raises(APIError) as caught:
        prepare_chat(tools=[tool(SCHEMA)], regex="(")
    assert (caught.value.code, caught.value.param) == ("invalid_grammar", "regex")


def custom(**format: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": "run", **({"format": format} if format else {})}}


LARK = {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"'}}


def test_custom_tools_are_functions_of_a_text_to_the_model() -> None:
    body = {"model": "caller", "tools": [custom(**LARK), custom()], "tool_choice": "required"}
    body["tools"][1]["custom"]["name"] = "say"  # type: ignore[index]
    request = validate(body)
    assert request.chat is not None
    assert request.chat.calls is not None
    run, say = request.chat.calls.tools
    assert (run.kind, say.kind, say.grammar) == ("custom", "custom", None)
    assert run.to_dict()["type"] == "function"
    assert (
        'start: "a"'
        in run.to_dict()["function"]["parameters"]["properties"]["input"]["description"]
    )
    assert "run" in text(request)
    assert request.fallback is None


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "custom": {"name": "run"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "custom", "custom": {"name": "run"}}],
            },
        },
    ],
)
def test_a_custom_tool_is_chosen_by_name(choice: dict[str, Any]) -> None:
    request = validate({"model": "caller", "tools": [custom(), F], "tool_choice": choice})
    assert request.chat is not None
    assert request.chat.calls is not None
    assert [tool.name for tool in request.chat.calls.tools] == ["run"]
    assert request.chat.calls.choice.mode == "required"


@pytest.mark.parametrize(
    ("tool", "error"),
    [
        ({"type": "custom"}, ("missing_required_parameter", "tools[0].custom")),
        ({**custom(), **F, "type": "custom"}, ("invalid_value", "tools[0].function")),
        ({**custom(), "type": "function"}, ("invalid_value", "tools[0].custom")),
        (custom(type="grammar"), ("missing_required_parameter", "tools[0].custom.format.grammar")),
        (custom(**{**LARK, "type": "text"}), ("invalid_value", "tools[0].custom.format.grammar")),
        (
            custom(type="grammar", grammar={"syntax": "bnf", "definition": "x"}),
            ("invalid_value", "tools[0].custom.format.grammar.syntax"),
        ),
    ],
)
def test_broken_custom_tools(tool: dict[str, Any], error: tuple[str, str]) -> None:
    assert refusal({"model": "caller", "tools": [tool]}) == error


@pytest.mark.parametrize("definition", ["start: x", "start: /(?=a)b/", 'start: %json {"type": 1}'])
def test_a_grammar_of_an_input_that_cannot_be_used(definition: str) -> None:
    grammar = {"syntax": "lark", "definition": definition}
    tool = custom(type="grammar", grammar=grammar)
    request = validate({"model": "caller", "tools": [tool], "tool_choice": "required"})
    with pytest.raises(APIError) as caught:
        async_to_sync(validate_grammar)(shared_validator(), request.constraint, request.model.files)
    assert caught.value.param == "tools[0].custom.format.grammar.definition"
