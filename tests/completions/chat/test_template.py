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
