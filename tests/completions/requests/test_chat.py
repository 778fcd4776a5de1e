"""The body of a chat completion: its prompt, its limits and its grammar."""

from types import SimpleNamespace
from typing import Any

import pytest

from completions.catalog.model_files import ModelFiles
from completions.chat.grammar import Reasoning
from completions.chat.reasoning import ThinkTags
from completions.contract.job_request import decode_job_request, encode_job_request
from completions.exceptions import APIError
from completions.grammars.structural_tag import ANSWER
from tests.completions.conftest import TINY_CONTEXT
from tests.completions.requests.chat_bodies import (
    HI,
    F,
    prepare_chat,
    refusal,
    text,
    validate,
)

pytestmark = pytest.mark.usefixtures("chat_models")


def test_messages_go_through_the_template() -> None:
    request = validate({})
    assert text(request).startswith("<s>")
    assert "<user>hi</s>" in text(request)
    assert text(request).rstrip().endswith("<assistant>")
    assert request.job.sampling.max_tokens == TINY_CONTEXT - len(request.job.prompts[0])
    assert request.constraint is None
    chat = request.chat
    assert (chat.calls, chat.reasoning, chat.hidden) == (None, None, [])


def test_raw_prompts_do_not() -> None:
    for prompt in ({"prompt": "hi"}, {"prompt": [256, 71, 72]}, {"input_ids": [256, 71, 72]}):
        request = validate({"messages": None, **prompt})
        assert request.job.prompts == ((256, 71, 72),)


@pytest.mark.parametrize(
    ("body", "max_tokens"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 7, "max_completion_tokens": 7}, 7),
    ],
)
def test_each_field_of_length_sets_max_tokens(body: dict[str, Any], max_tokens: int) -> None:
    assert validate(body).job.sampling.max_tokens == max_tokens


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"messages": None}, ("missing_required_parameter", "messages")),
        ({"messages": []}, ("empty_array", "messages")),
        ({"messages": 3}, ("invalid_type", "messages")),
        ({"messages": "hi", "thinking": {"type": "auto"}}, ("invalid_value", "thinking")),
        ({"prompt": "x"}, ("invalid_value", "prompt")),
        ({"messages": None, "prompt": 3}, ("invalid_type", "prompt")),
        ({"messages": None, "prompt": []}, ("empty_array", "prompt")),
        ({"messages": None, "input_ids": []}, ("empty_array", "input_ids")),
        ({"messages": None, "prompt": [999]}, ("invalid_token_id", "prompt[0]")),
        (
            {"messages": None, "prompt": "x", "chat_template_kwargs": {}},
            ("invalid_value", "chat_template_kwargs"),
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 200}]},
            ("context_length_exceeded", "messages"),
        ),
        ({"max_tokens": TINY_CONTEXT}, ("context_length_exceeded", "messages")),
        ({"max_tokens": 0}, ("integer_below_min_value", "max_tokens")),
        (
            {"max_tokens": 5, "max_completion_tokens": 6},
            ("invalid_value", "max_completion_tokens"),
        ),
        ({"model": "bare"}, ("invalid_value", "messages")),
        ({"top_logprobs": 2}, ("invalid_value", "top_logprobs")),
        ({"logprobs": 2}, ("invalid_type", "logprobs")),
        ({"logprobs": True, "top_logprobs": 21}, ("integer_above_max_value", "top_logprobs")),
        ({"tools": [F]}, ("unsupported_parameter", "tools")),
        ({"tools": [F] * 129}, ("array_above_max_length", "tools")),
        ({"tool_choice": "required"}, ("invalid_value", "tool_choice")),
        ({"reasoning_effort": "most"}, ("invalid_value", "reasoning_effort")),
        (
            {"prompt": [1], "messages": None, "reasoning_effort": "low"},
            ("invalid_value", "reasoning_effort"),
        ),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            ("invalid_value", "continue_final_message"),
        ),
        (
            {"thinking_token_budget": 5, "thinking": {"type": "disabled"}},
            ("invalid_value", "thinking_token_budget"),
        ),
        ({"thinking_token_budget": 5}, ("unsupported_value", "thinking_token_budget")),
        (
            {"prompt": [1], "messages": None, "add_generation_prompt": False},
            ("invalid_value", "add_generation_prompt"),
        ),
        ({"enable_thinking": True}, ("unsupported_parameter", "enable_thinking")),
        ({"functions": [F["function"]]}, ("unsupported_parameter", "functions")),
        ({"modalities": ["audio"]}, ("invalid_value", "modalities[0]")),
        ({"modalities": ["text", "audio"]}, ("array_above_max_length", "modalities")),
        ({"modalities": "text"}, ("invalid_type", "modalities")),
        ({"chat_template": "x"}, ("unsupported_parameter", "chat_template")),
        (
            {"chat_template_kwargs": {"messages": []}},
            ("invalid_value", "chat_template_kwargs.messages"),
        ),
        ({"thinking": {"type": "enabled"}}, ("unsupported_value", "thinking.type")),
        ({"thinking": {"type": "maybe"}}, ("invalid_value", "thinking.type")),
        (
            {"thinking": {"type": "auto", "budget_tokens": 3}},
            ("unsupported_value", "thinking.budget_tokens"),
        ),
        (
            {"thinking": {"type": "disabled", "budget_tokens": 3}},
            ("invalid_value", "thinking.budget_tokens"),
        ),
        (
            {"model": "worded", "thinking": {"type": "disabled"}},
            ("unsupported_value", "thinking.type"),
        ),
        (
            {"model": "worded", "thinking": {"type": "enabled", "budget_tokens": 3}},
            ("unsupported_value", "thinking.budget_tokens"),
        ),
        (
            {
                "model": "thinker",
                "thinking": {"type": "enabled"},
                "chat_template_kwargs": {"on": False},
            },
            ("invalid_value", "thinking.type"),
        ),
        (
            {"model": "caller", "tools": [F], "tool_choice": "required", "regex": "a"},
            ("conflicting_constraints", "regex"),
        ),
    ],
)
def test_a_bad_body_is_refused_by_code_and_field(
    body: dict[str, Any], error: tuple[str, str]
) -> None:
    assert refusal(body) == error


@pytest.mark.parametrize(
    ("field", "advice"),
    [
        ("audio", "text alone"),
        ("prediction", "the speed, not the answer"),
        ("web_search_options", "Use tools."),
    ],
)
def test_an_unsupported_field_is_refused_with_what_to_send_instead(field: str, advice: str) -> None:
    with pytest.raises(APIError, match=advice):
        validate({field: "low"})


@pytest.mark.parametrize("given", [["text"], [], None])
def test_text_is_the_modality_of_every_answer(given: Any) -> None:
    assert validate({"modalities": given}).ignored == validate({}).ignored


@pytest.mark.parametrize(
    ("thinking", "tail", "thoughts"),
    [
        (None, "|", (False, False)),
        ({"type": "auto"}, "|", (False, False)),
        ({"type": "enabled"}, "|<s>", (True, False)),
        ({"type": "disabled"}, "|</s>", None),
    ],
)
def test_thinking_is_the_templates_switch(
    thinking: dict[str, Any] | None, tail: str, thoughts: tuple[bool, bool] | None
) -> None:
    request = validate({"model": "thinker", "thinking": thinking})
    assert text(request) == f"hi{tail}"
    expected = thoughts and Reasoning(ThinkTags("<s>", "</s>"), *thoughts, None, 257)
    assert request.chat.reasoning == expected
    # Marks that are special tokens stay in the text for the parser.
    assert request.job.sampling.skip_special_tokens is (expected is None)


def test_thoughts_are_required_where_enabled_and_not_begun() -> None:
    request = validate({"model": "worded", "thinking": {"type": "enabled"}, "regex": "a"})
    assert request.chat.reasoning == Reasoning(
        ThinkTags("<think>", "</think>"), False, True, None, None
    )
    assert request.constraint.field == ANSWER


@pytest.mark.parametrize(
    ("body", "alternatives"),
    [({}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 3}, 3)],
)
def test_log_probabilities(body: dict[str, Any], alternatives: int | None) -> None:
    assert validate(body).logprobs.top == alternatives


def test_variables_of_the_template() -> None:
    request = validate({"model": "caller", "chat_template_kwargs": {"extra": "!"}})
    assert text(request) == "hi!|"
    assert request.ignored == ()


def test_variables_that_the_template_does_not_read_are_listed() -> None:
    """Other models' templates may read them, so they are no error."""
    body = {"model": "caller", "chat_template_kwargs": {"extra": "!", "nobody": 1}}
    assert validate(body).ignored == ("chat_template_kwargs.nobody",)


def test_a_message_of_an_earlier_answer_can_be_sent_back() -> None:
    """Clients send back the whole message, null fields included."""
    said = {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
        "reasoning_content": None,
        "provider_specific_fields": {"refusal": None},
    }
    sent_back = validate({"messages": [*HI, said, *HI]})
    plain = validate({"messages": [*HI, {"role": "assistant", "content": "a"}, *HI]})
    assert text(sent_back) == text(plain)
    assert sent_back.ignored == ("messages[1].provider_specific_fields",)


LIMIT = f"This model's maximum context length is {TINY_CONTEXT} tokens. However, "


@pytest.mark.parametrize(
    ("body", "param", "rest"),
    [
        (
            {"max_tokens": TINY_CONTEXT},
            "messages",
            "you requested {sum} tokens ({prompt} in the messages, {most} in the completion). "
            "Please reduce the length of the messages or completion.",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * TINY_CONTEXT}]},
            "messages",
            "your messages resulted in {long} tokens, and the completion needs at least 1. Please "
            "reduce the length of the messages.",
        ),
        (
            {"messages": None, "prompt": "x" * TINY_CONTEXT},
            "prompt",
            "your prompt resulted in {raw} tokens, and the completion needs at least 1. Please "
            "reduce the length of the prompt.",
        ),
    ],
)
def test_the_words_for_too_many_tokens(body: dict[str, Any], param: str, rest: str) -> None:
    """Clients such as LiteLLM, Cline and OpenCode look for them."""
    prompt = len(validate({}).job.prompts[0])
    long, raw = prompt - len("hi") + TINY_CONTEXT, TINY_CONTEXT + 1
    numbers = {"prompt": prompt, "most": TINY_CONTEXT, "sum": prompt + TINY_CONTEXT}
    with pytest.raises(APIError) as caught:
        validate(body)
    assert caught.value.message == LIMIT + rest.format(**numbers, long=long, raw=raw)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", param)


THOUGHTS = ["<s>", "</s>", False, "\n", ""]
GLM = ["<tool_call>", "</tool_call>", False, " \t\r\n", ""]


@pytest.mark.parametrize(
    ("body", "spans"),
    [
        ({"stop": "x"}, [THOUGHTS]),
        ({"stop_regex": "x"}, [THOUGHTS]),
        ({"stop": "x", "tools": [F]}, [GLM, THOUGHTS]),
        ({"stop": "x", "thinking": {"type": "enabled"}}, [["", *THOUGHTS[1:]]]),
        ({"stop": "x", "thinking": {"type": "disabled"}}, []),
        ({"stop": "x", "tools": [F], "separate_reasoning": False}, [GLM]),
        ({"stop_token_ids": [1], "tools": [F]}, []),
        ({"stop": "x", "model": "tiny"}, []),
    ],
)
def test_stops_count_in_content_only(body: dict[str, Any], spans: list[Any]) -> None:
    job = prepare_chat(**{"model": "thinker", **body}).job_request
    assert [list(span) for span in job.sampling.stop_spans] == spans
    assert decode_job_request(encode_job_request(job)) == job


def test_a_budget_makes_a_grammar() -> None:
    body = {"model": "thinker", "thinking": {"type": "enabled", "budget_tokens": 3}}
    request = validate(body)
    assert "'max_tokens': 3" in str(request.constraint.value["format"])


@pytest.mark.parametrize("budget", [9, 10**30])
def test_a_budget_that_the_length_leaves_unused_is_none(budget: int) -> None:
    thinking = {"type": "enabled", "budget_tokens": budget}
    request = validate({"model": "thinker", "thinking": thinking, "max_tokens": 9})
    assert request.chat.reasoning.budget is None


@pytest.mark.parametrize(
    "body",
    [
        {"messages": HI * (TINY_CONTEXT + 1)},
        {"messages": [{"role": "user", "content": "x" * 100 * TINY_CONTEXT}]},
        {"messages": "x" * 100 * TINY_CONTEXT},
        {"messages": None, "prompt": "x" * 100 * TINY_CONTEXT},
    ],
)
def test_a_text_too_long_for_the_context_is_refused_before_it_is_tokenized(
    body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **_options: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(ModelFiles, "longest_token", 4)
    monkeypatch.setattr(ModelFiles, "tokenizer", SimpleNamespace(encode=never))
    code, param = refusal(body)
    assert code == "context_length_exceeded"
    assert param in body


def test_an_effort_is_a_switch_and_a_budget() -> None:
    high = validate({"model": "thinker", "reasoning_effort": "high"})
    assert high.chat.reasoning.budget is None
    none = validate({"model": "thinker", "reasoning_effort": "none"})
    assert none.chat.reasoning is None
    assert validate({"reasoning_effort": "low"}).ignored == ("reasoning_effort",)
    assert validate({"verbosity": "low"}).ignored == ("verbosity",)


def test_an_answer_may_continue_the_last_message() -> None:
    said = [*HI, {"role": "assistant", "content": "Once upon "}]
    request = validate({"messages": said, "continue_final_message": True})
    assert text(request).endswith("Once upon ")
    for end in ("|", ">", "end", "<"):  # as in the marks that templates write behind it
        said[-1]["content"] = end
        continued = text(validate({"messages": said, "continue_final_message": True}))
        before = text(validate({"messages": HI, "add_generation_prompt": True}))
        assert continued.endswith(end)
        assert len(continued) <= len(before) + len(end) + 1
    assert not text(validate({"add_generation_prompt": False})).rstrip().endswith("<assistant>")


@pytest.mark.parametrize(
    ("begun", "is_open"), [("<s>", True), ("<s>Hm", True), ("<s>Hm</s>So", None), ("So", None)]
)
def test_an_answer_may_continue_the_reasoning(begun: str, is_open: bool | None) -> None:
    said = [*HI, {"role": "assistant", "content": begun}]
    body = {"model": "thinker", "messages": said, "continue_final_message": True}
    request = validate(body)
    assert request.chat is not None
    reasoning = request.chat.reasoning
    assert (reasoning is not None and reasoning.is_open) == bool(is_open)
    files = request.model.files
    tags = [files.tokenizer.token_to_id(tag) for tag in ("<s>", "</s>")]
    plain = validate({**body, "messages": [*HI, {"role": "assistant", "content": "So"}]})
    added = [request.job.prompts[0].count(each) - plain.job.prompts[0].count(each) for each in tags]
    assert added == [begun.startswith("<s>"), "</s>So" in begun]
