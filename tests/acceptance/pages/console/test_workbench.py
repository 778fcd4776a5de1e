"""The playground as a workbench, in a real browser: what it holds, compares, keeps and copies."""

import json
import re
from typing import Any

import pytest

from tests.acceptance.pages import browser
from tests.acceptance.service import MODEL, Installation

pytestmark = [pytest.mark.acceptance, pytest.mark.long]
FIRST, SECOND = "[data-side='']", "[data-side='2']"
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
EXAMPLE = {"name": "Ada", "born": 1815, "works": [{"title": "Notes", "pages": 60}, {"title": "x"}]}


@pytest.fixture
def page(page: browser.Page, service: Installation) -> browser.Page:
    """The playground of a user who has not used it before."""
    page.goto(f"{service.url}/admin/playground/")
    page.select_option("[name=model]", MODEL)
    page.select_option("[name=key]", label="default / tests")
    return page


def copy_lines(page: browser.Page) -> list[Any]:
    """The bodies that the page copies as lines of a batch."""
    page.locator("#copied").evaluate("said => { said.textContent = ''; }")
    page.get_by_role("button", name="Batch line", exact=True).click()
    page.locator("#copied", has_text="Cop").wait_for()
    return [json.loads(line)["body"] for line in page.locator("#copy").input_value().splitlines()]


def set_parameter(page: browser.Page, name: str, text: str) -> None:
    page.locator("#find").fill(name)
    place = page.locator(f"[data-parameter={name}]:visible").first
    if place.evaluate("input => input.tagName") == "SELECT":
        place.select_option(text)
    else:
        place.fill(text)


def fill(page: browser.Page) -> dict[str, Any]:
    """Set something of each kind. Returns the request that it makes."""
    page.locator("#messages [aria-label=Content]").fill("What is a bug?")
    page.get_by_role("button", name="Add message").click()
    page.locator("#messages [aria-label=Role]").nth(1).select_option("assistant")
    page.locator("#messages [aria-label=Content]").nth(1).fill("An insect.")
    page.get_by_role("button", name="Add message").click()
    page.locator("#messages [aria-label=Role]").nth(2).select_option("system")
    page.locator("#messages [aria-label=Content]").nth(2).fill("Be brief.")
    page.fill("[name=seed]", "9223372036854775807")
    page.fill("[name=max_tokens]", "8")
    for name, text in (
        ("min_p", ".5"), ("ignore_eos", "true"), ("stop", "END"), ("tools", json.dumps(TOOLS)),
        ("tool_choice", "none"), ("logit_bias", '{"5": -1}'), ("cache_salt", "mine"),
    ):  # fmt: skip
        set_parameter(page, name, text)
    page.locator("#find").fill("")
    page.select_option("[name=kind]", "regex")
    page.locator("[name=constraint]").fill("(yes|no)!")
    return {
        "model": MODEL,
        "messages": [
            {"role": "user", "content": "What is a bug?"},
            {"role": "assistant", "content": "An insect."},
            {"role": "system", "content": "Be brief."},
        ],
        "seed": 2**63 - 1, "max_tokens": 8, "min_p": 0.5, "ignore_eos": True, "stop": "END",
        "tools": TOOLS, "tool_choice": "none", "logit_bias": {"5": -1}, "cache_salt": "mine",
        "regex": "(yes|no)!",
    }  # fmt: skip


def test_nothing_is_lost(page: browser.Page, service: Installation) -> None:
    """By a reload, by a visit elsewhere, and in a preset that a link opens."""
    expected = fill(page)
    assert copy_lines(page) == [expected]
    page.keyboard.press("Control+Enter")
    page.locator(f"{FIRST} [data-part=facts]").wait_for()
    text = page.locator(f"{FIRST} [data-part=text]").text_content()
    assert text in ("yes!", "no!")
    page.reload()
    assert copy_lines(page) == [expected]
    assert page.locator(f"{FIRST} [data-part=text]").text_content() == text
    page.goto(f"{service.url}/admin/live/")
    page.goto(f"{service.url}/admin/playground/")
    assert copy_lines(page) == [expected]
    assert page.locator("[name=key] option:checked").inner_text() == "default / tests"

    page.on("dialog", lambda dialog: dialog.accept("bugs"))
    page.get_by_role("button", name="Save as preset").click()
    page.locator("#preset-said", has_text="Saved").wait_for()
    link = page.url
    page.evaluate("sessionStorage.clear()")
    page.goto(f"{service.url}/admin/playground/")
    assert copy_lines(page) != [expected]
    page.goto(link)
    assert copy_lines(page) == [expected]
    page.get_by_role("button", name="Delete preset").click()
    page.locator("#preset-said", has_text="Deleted").wait_for()


def test_two_requests_side_by_side_and_the_share_of_valid_samples(page: browser.Page) -> None:
    page.locator("#messages [aria-label=Content]").fill("Is water wet?")
    page.fill("[name=n]", "3")
    page.fill("[name=max_tokens]", "6")
    page.select_option("[name=kind]", "regex")
    page.locator("[name=constraint]").fill("(Yes|No)[a-z ,.]{0,20}")
    page.get_by_role("button", name="Compare two").click()
    assert page.input_value("[name=constraint2]") == "(Yes|No)[a-z ,.]{0,20}"
    page.check("[name=only_checks2]")
    one, other = copy_lines(page)
    assert one == {**other, "regex": "(Yes|No)[a-z ,.]{0,20}"}
    page.keyboard.press("Control+Enter")
    for side in (FIRST, SECOND):
        page.locator(f"{side} [data-part=facts]", has_text="of 3 (").wait_for()
        texts = page.locator(f"{side} [data-part=text] > div > div").all_text_contents()
        assert len(texts) == 3
        valid = sum(bool(re.fullmatch("(Yes|No)[a-z ,.]{0,20}", text)) for text in texts)
        assert f"{valid} of 3 (" in page.locator(f"{side} [data-part=facts]").inner_text()
    assert browser.find_overflow(page) == []

    page.locator("[name=model2] option").first.evaluate(
        "option => { option.after(Object.assign(option.cloneNode(true), { value: 'gone' })); }"
    )
    page.select_option("[name=model2]", "gone")
    page.keyboard.press("Control+Enter")
    page.locator(f"{SECOND} [data-part=fault]", has_text="does not exist").wait_for()
    page.locator(f"{FIRST} [data-part=facts]", has_text="of 3 (").wait_for()


def test_a_schema_from_an_example(page: browser.Page) -> None:
    page.get_by_text("A schema from an example").first.click()
    area = page.locator(f"{FIRST} [name=example]")
    area.fill("{")
    page.get_by_role("button", name="Make the schema").first.click()
    assert "not JSON" in page.locator(f"{FIRST} [data-part=example] [role=status]").inner_text()
    area.fill(json.dumps(EXAMPLE))
    page.get_by_role("button", name="Make the schema").first.click()
    page.locator("#verdict[data-tone=good]").wait_for()
    schema = json.loads(page.input_value("[name=constraint]"))
    assert schema["required"] == ["name", "born", "works"]
    assert schema["properties"]["born"] == {"type": "integer"}
    work = schema["properties"]["works"]["items"]
    assert (work["required"], list(work["properties"])) == (["title"], ["title", "pages"])


def test_only_keys_that_may_run_the_model_are_offered(
    page: browser.Page, service: Installation
) -> None:
    service.manage("create_api_key", "of-small", "--models", "small")
    page.reload()
    options = page.locator("[name=key] option")
    assert "default / tests" in options.all_inner_texts()
    assert "default / of-small" not in options.all_inner_texts()
    page.select_option("[name=model]", "small")
    page.select_option("[name=key]", label="default / of-small")
    page.get_by_role("button", name="Compare two").click()
    page.select_option("[name=model2]", MODEL)  # one key runs both
    assert "default / of-small" not in options.all_inner_texts()
    page.select_option("[name=model2]", "small")
    assert page.locator("[name=key] option:checked").inner_text() == "default / of-small"


def test_a_call_is_answered_and_the_conversation_goes_on(page: browser.Page) -> None:
    page.locator("#messages [aria-label=Content]").fill("Look up bug.")
    page.locator("#find").fill("tools")
    page.get_by_role("button", name="Add a function").click()
    tools = page.locator("[data-parameter=tools]")
    tools.fill(tools.input_value().replace('"type": "string"', '"enum": ["bug"]'))
    set_parameter(page, "tool_choice", "required")
    set_parameter(page, "parallel_tool_calls", "false")
    page.locator("#run").click()
    page.get_by_text("Ended: tool_calls").wait_for()
    page.get_by_role("button", name="Go on from the answer").click()
    (body,) = copy_lines(page)
    _, call, result = body["messages"]
    assert call["tool_calls"][0]["function"]["name"] == "look_up"
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"word": "bug"}
    assert result == {
        "role": "tool", "content": "", "tool_call_id": call["tool_calls"][0]["id"],
    }  # fmt: skip
