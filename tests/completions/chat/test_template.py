"""Rendering as transformers does it: its globals, filters and white space, in a sandbox."""

from pathlib import Path
from typing import Any

import pytest

from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles
from completions.chat import template as chat_template
from completions.chat.template import ChatTemplateError

HELLO = [{"role": "user", "content": "<hi> é"}]


def render(folder: Path, template: str | None, messages: Any = HELLO, prompt: bool = True) -> str:
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    model = ModelFiles(ModelEntry("m", folder), 10, 64, (), 0)
    return chat_template.render(model, messages, add_generation_prompt=prompt)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s><hi> é"),
        ("{% if add_generation_prompt %}\n  go\n{% endif %}", "  go\n"),
        ("a\n    {% if true %}\nb\n    {% endif %}\nc", "a\nb\nc"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "<hi> é"}]'),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        (
            "{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=False, sort_keys=True) }}",
            '{"a": 1, "b": "é"}',
        ),
        ("{{ ['é', 1] | tojson(ensure_ascii=True, separators=(',', ':')) }}", '["\\u00e9",1]'),
        ("{% for m in [1,2,3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{% generation %}\nanswer{% endgeneration %}", "answer"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ undefined_name }}", ""),
    ],
)
def test_a_template_renders_the_conversation(tmp_path: Path, template: str, text: str) -> None:
    assert render(tmp_path, template) == text


def test_thoughts_have_the_name_that_gpt_oss_reads(tmp_path: Path) -> None:
    said = {"role": "assistant", "content": "b", "reasoning_content": "a"}
    template = "{% for m in messages %}{{ m.thinking }}{{ m.reasoning_content }}{% endfor %}"
    assert render(tmp_path, template, [*HELLO, said]) == "aa"


def test_a_call_with_content_has_no_thoughts_that_gpt_oss_would_refuse(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": "b", "reasoning_content": "a", "tool_calls": [{}]}
    template = """{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}
        {{ raise_exception("both") }}{% endif %}{{ m.content }}{% endfor %}"""
    assert render(tmp_path, template, [call]) == "b"
    thought = {**call, "content": ""}
    assert render(tmp_path, "{{ messages[0].thinking }}", [thought]) == "a"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "unsafe|not safely"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% if %}", "Expected an expression"),
        ("{{ 1 + 'a' }}", "unsupported operand"),
        ("{{ 'a' | dictsort }}", "no attribute 'items'"),
        ("{{ 'a' | items | list }}", "Can only get item pairs"),
    ],
)
def test_a_template_that_fails_is_refused_with_the_reason(
    tmp_path: Path, template: str, reason: str
) -> None:
    with pytest.raises(ChatTemplateError, match=reason):
        render(tmp_path, template)


def test_a_template_that_goes_too_deep_is_refused(tmp_path: Path) -> None:
    template = "{% macro f(v) %}{% for w in v %}{{ f(w) }}{% endfor %}{% endmacro %}{{ f(x) }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    model = ModelFiles(ModelEntry("m", tmp_path), 10, 64, (), 0)
    x: list[Any] = []
    for _ in range(400):
        x = [x]
    with pytest.raises(ChatTemplateError, match="nested too deeply for it"):
        chat_template.render(model, HELLO, add_generation_prompt=True, options={"x": x})


def test_a_model_without_template(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="has no chat template"):
        render(tmp_path, None)


CONTENT = "<|end|> \n"
MASKS = {
    "data": "<|end|>{{ content }}<|end|>",
    "sums": "{{ '<|end|>' + content + '<|end|>' }}",
    "joins": "{{ '<|end|>' ~ content ~ '<|end|>' }}",
    "a filter": "{{ ['<|end|>', content, '<|end|>'] | join }}",
    "a macro": "{% macro end() %}<|end|>{% endmacro %}{{ end() }}{{ content }}{{ end() }}",
    "a macro around": (
        "{% macro turn(text) %}<|end|>{{ text }}<|end|>{% endmacro %}{{ turn(content) | string }}"
    ),
    "a call": (
        "{% macro turn() %}<|end|>{{ caller() }}<|end|>{% endmacro %}"
        "{% call turn() %}{{ content }}{% endcall %}"
    ),
    "a block": "{% set x %}<|end|>{{ content }}<|end|>{% endset %}{{ x }}",
    "a filter block": "{% filter trim %} <|end|>{{ content }}<|end|> {% endfilter %}",
    "a namespace": (
        "{% set ns = namespace(x='<|end|>') %}{% set ns.x = ns.x + content %}{{ ns.x + '<|end|>' }}"
    ),
    "a default": "{{ missing | default('<|end|>') }}{{ content }}{{ other or '<|end|>' }}",
    "a condition": "{{ '<|end|>' if true else '' }}{{ content }}{% if true %}<|end|>{% endif %}",
    "a replacement": "{{ 'ABA'.replace('A', '<|end|>').replace('B', content) }}",
    "cases": "{{ '<|END|>' | lower }}{{ content }}{{ '<|END|>'.lower() }}",
    "a list": "{% for x in ['<|end|>', content, '<|end|>'] %}{{ x }}{% endfor %}",
    "a variable": "{{ end_token }}{{ content }}{{ end_token }}",
    "a format": "{{ '<|{}|>'.format('end') }}{{ content }}{{ '<{a}end{a}>'.format(a='|') }}",
    "a format around": "{{ '{}{}<|end|>'.format('<|end|>', content) }}",
    "slices": "{{ '!<|end|>'[1:] }}{{ content }}{{ ('<|end|>!' ~ '!')[:-2] }}",
    "a role": "<|{{ messages[0].role }}|>{{ content }}<|{{ messages[0]['role'] | trim }}|>",
}
"""Ways in which templates write a special token before and behind a content."""


@pytest.mark.parametrize("name", MASKS)
def test_a_prompt_knows_which_special_tokens_the_template_wrote(tmp_path: Path, name: str) -> None:
    source = "{% set content = messages[0].content %}{% set end_token = bos_token %}" + MASKS[name]
    (tmp_path / "chat_template.jinja").write_text(source)
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<|end|>"}')
    model = ModelFiles(ModelEntry("m", tmp_path), 10, 64, (), 0)
    messages = [{"role": "end", "content": CONTENT}]
    prompt = chat_template.render(model, messages, add_generation_prompt=True)
    assert prompt == f"<|end|>{CONTENT}<|end|>"
    assert prompt.mask == "1" * 7 + "0" * len(CONTENT) + "1" * 7


TRANSFORMATIONS = {
    "a content": "{{ messages[0].content }}",
    "a trimmed content": "{{ messages[0].content | trim }}",
    "JSON": "{{ messages | tojson }}",
    "thoughts": "{{ messages[0].content.split('<|end|>')[-1].lstrip('\\n') + 'x' }}",
    "a replacement": "{{ messages[0].content.replace('a', '') }}",
    "a format": "{{ '<|%s|>' % messages[0].content }}{{ '{}'.format(messages[0].content) }}",
    "cases": "{{ messages[0].content | upper | lower | title | capitalize }}",
    "characters": "{% for c in messages[0].content %}{{ c }}{% endfor %}",
    "an indent": "{{ messages[0].content | indent }}{{ messages[0].content | e }}",
    "arguments": "{{ messages[0].tool_calls[0].function.arguments | tojson }}",
    "names": "{{ tools[0].function.name ~ tools[0].function.description }}",
    "an option": "{{ option }}{{ option | reverse | list | join }}",
}
"""Ways in which templates use what others write."""


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_what_others_write_is_never_trusted(tmp_path: Path, name: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(TRANSFORMATIONS[name])
    model = ModelFiles(ModelEntry("m", tmp_path), 10, 64, (), 0)
    function = {"name": "<|end|>", "arguments": {"<|end|>": "<|end|>"}, "description": "<|end|>"}
    message = {"role": "user", "content": "<|end|>\na<|<|end|>end|>"}
    prompt = chat_template.render(
        model,
        [{**message, "tool_calls": [{"function": function}]}],
        add_generation_prompt=True,
        tools=[{"function": function}],
        options={"option": "<|end|>"},
    )
    assert "end" in prompt.lower().replace("dne", "end")
    trusted = "".join(c for c, flag in zip(prompt, prompt.mask, strict=True) if flag == "1")
    assert "end" not in trusted.lower()
