"""LangChain and LiteLLM, with nothing but a base URL and a key: completions, chats, streams, tools,
structured output, errors. Other tests use the official client."""

import json
import warnings
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.acceptance.contract.rows import NOW
from tests.acceptance.service import MODEL, Installation
from tests.acceptance.small_model import SMALL

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

HELLO = [{"role": "user", "content": "Say hello."}]
NO_THOUGHTS = {"thinking": {"type": "disabled"}}
NAMED = {"type": "function", "function": {"name": "now"}}
DEMO = {
    "model": MODEL, "max_tokens": 6, "temperature": 0, "seed": 1, "extra_body": {"min_tokens": 6},
}  # fmt: skip


class Answer(BaseModel):
    """The schema of the structured answers."""

    ok: bool


@pytest.fixture(scope="module")
def langchain(service: Installation) -> Any:
    """The package langchain_openai."""
    service.wait_served(SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import langchain_openai
    return langchain_openai


@pytest.fixture
def chat(langchain: Any, service: Installation) -> Any:
    """Makes a ChatOpenAI."""

    def make(**options: Any) -> Any:
        given = {"base_url": f"{service.url}/v1", "api_key": service.key, "max_retries": 0}
        return langchain.ChatOpenAI(**{**given, **DEMO, **options})

    return make


def test_langchain_chats_and_streams(chat: Any) -> None:
    chat().invoke("Say hello.")  # the others find the prompt in the prefix cache
    whole = chat().invoke("Say hello.")
    assert whole.content
    assert whole.usage_metadata["output_tokens"] == 6
    assert whole.response_metadata["finish_reason"] == "length"
    chunks = list(chat(stream_usage=True).stream("Say hello."))
    assert "".join(chunk.content for chunk in chunks) == whole.content
    used = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert used[-1]["output_tokens"] == 6


async def test_langchain_streams_asynchronously(chat: Any) -> None:
    model = chat()
    texts = [chunk.content async for chunk in model.astream("Say hello.")]
    assert "".join(texts)


def test_langchain_calls_tools(chat: Any) -> None:
    small = chat(model=SMALL, max_tokens=100, extra_body=NO_THOUGHTS)
    model = small.bind_tools([NOW], tool_choice="now")
    made = model.invoke("What time is it?")
    (call,) = made.tool_calls
    assert (call["name"], call["args"]) == ("now", {"n": 1})
    chunks = list(model.stream("What time is it?"))
    together = chunks[0]
    for chunk in chunks[1:]:
        together += chunk
    assert [(each["name"], each["args"]) for each in together.tool_calls] == [("now", {"n": 1})]
    result = {"role": "tool", "content": "noon", "tool_call_id": call["id"]}
    answered = small.invoke([("user", "What time is it?"), made, result])
    assert answered.content


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_gives_structured_output(chat: Any, method: str) -> None:
    small = chat(model=SMALL, max_tokens=100, extra_body=NO_THOUGHTS)
    model = small.with_structured_output(Answer, method=method, strict=True)
    assert isinstance(model.invoke("Is it?"), Answer)


def test_langchain_completes_texts(langchain: Any, service: Installation) -> None:
    model = langchain.OpenAI(
        base_url=f"{service.url}/v1", api_key=service.key, model=SMALL, max_tokens=4,
        temperature=0, max_retries=0,
    )  # fmt: skip
    whole = model.invoke("Once upon a time")
    assert "".join(model.stream("Once upon a time")) == whole
    both = model.generate(["Once upon a time", "the end"])
    assert both.generations[0][0].text == whole
    assert both.llm_output["token_usage"]["completion_tokens"] == 8


def test_langchain_hears_errors(chat: Any) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        chat(model="nobody").invoke("x")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        list(chat(extra_body={"regex": "("}).stream("x"))
    assert (bad.value.code, bad.value.param) == ("invalid_grammar", "regex")
    with pytest.raises(openai.AuthenticationError):
        chat(api_key="sk-wrong").invoke("x")


@pytest.fixture(scope="module")
def litellm(service: Installation) -> Any:
    """The package, set not to fetch prices of models from the network."""
    service.wait_served(SMALL)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        import litellm
    litellm.telemetry = False
    return litellm


@pytest.fixture
def lite(litellm: Any, service: Installation) -> Any:
    """Calls a function of LiteLLM with the address and key of the service."""

    def call(function: str, prefix: str = "openai", **options: Any) -> Any:
        options["model"] = f"{prefix}/{options['model']}"
        given = {"api_base": f"{service.url}/v1", "api_key": service.key, "num_retries": 0}
        return getattr(litellm, function)(**{**given, **options})

    return call


pytest_quiet = pytest.mark.filterwarnings("ignore")
"""LiteLLM causes warnings about its own code."""


@pytest_quiet
def test_litellm_chats_and_streams(lite: Any) -> None:
    call = {**DEMO, "messages": HELLO}
    whole = lite("completion", **call)
    (choice,) = whole.choices
    assert choice.message.content
    assert (choice.finish_reason, whole.usage.completion_tokens) == ("length", 6)
    chunks = list(lite("completion", **call, stream=True, stream_options={"include_usage": True}))
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == choice.message.content
    assert chunks[-1].usage.completion_tokens == 6


@pytest_quiet
def test_litellm_calls_tools(lite: Any) -> None:
    call = {
        "model": SMALL, "messages": HELLO, "tools": [NOW], "tool_choice": NAMED, "max_tokens": 100,
        "temperature": 0, "extra_body": NO_THOUGHTS,
    }  # fmt: skip
    (choice,) = lite("completion", **call).choices
    (made,) = choice.message.tool_calls
    assert (made.function.name, json.loads(made.function.arguments)) == ("now", {"n": 1})
    assert choice.finish_reason == "tool_calls"
    arguments = ""
    for chunk in lite("completion", **call, stream=True):
        for piece in (chunk.choices[0].delta.tool_calls or ()) if chunk.choices else ():
            arguments += piece.function.arguments or ""
    assert json.loads(arguments) == {"n": 1}


@pytest_quiet
@pytest.mark.parametrize("form", ["object", "dump"])
def test_litellm_goes_on_with_what_was_answered(lite: Any, form: str) -> None:
    """Its messages include the extra fields of our answers."""
    said = lite("completion", **DEMO, messages=HELLO).choices[0].message
    again = said if form == "object" else said.model_dump()
    on = lite("completion", **DEMO, messages=[*HELLO, again, *HELLO])
    assert on.usage.prompt_tokens > 40


@pytest_quiet
def test_litellm_gives_structured_output(lite: Any) -> None:
    done = lite(
        "completion", model=SMALL, messages=HELLO, response_format=Answer, max_tokens=100,
        temperature=0, extra_body=NO_THOUGHTS,
    )  # fmt: skip
    Answer.model_validate_json(done.choices[0].message.content)


@pytest_quiet
def test_litellm_completes_texts(lite: Any) -> None:
    call = {"model": SMALL, "prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}
    whole = lite("text_completion", "text-completion-openai", **call)
    chunks = lite("text_completion", "text-completion-openai", **call, stream=True)
    texts = [chunk.choices[0].text or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == whole.choices[0].text
    assert whole.usage.completion_tokens == 4


@pytest_quiet
def test_litellm_hears_errors(litellm: Any, lite: Any) -> None:
    with pytest.raises(litellm.NotFoundError, match="does not exist"):
        lite("completion", model="nobody", messages=HELLO)
    with pytest.raises(litellm.BadRequestError, match="regex"):
        lite("completion", model=MODEL, messages=HELLO, extra_body={"regex": "("})
    with pytest.raises(litellm.AuthenticationError):
        lite("completion", model=MODEL, messages=HELLO, api_key="sk-wrong")
