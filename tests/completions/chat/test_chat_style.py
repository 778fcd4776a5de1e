"""How models call tools and think is found in their files."""

from pathlib import Path

import pytest
from django.conf import settings

from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles
from completions.chat.chat_style import THINK_TAGS, ChatStyle, find_chat_style
from completions.chat.reasoning import ThinkTags
from completions.chat.tool_formats import TOOL_FORMATS

THINK = ThinkTags("<think>", "</think>")


def find(folder: Path, source: str | None, model_type: str | None = None, **entry) -> ChatStyle:
    if source is not None:
        (folder / "chat_template.jinja").write_text(source)
    files = ModelFiles(ModelEntry("m", folder, **entry), 10, 64, (), 0, model_type=model_type)
    return find_chat_style(files)


@pytest.mark.parametrize("form", [n for n, each in TOOL_FORMATS.items() if each.signatures])
def test_a_format_is_found_by_its_signature(tmp_path: Path, form: str) -> None:
    record = TOOL_FORMATS[form]
    source = "{% raw %}" + " ".join(record.signatures[0]) + "{% endraw %}"
    found = find(tmp_path, source, next(iter(record.model_types), None))
    assert found.tool_format == record
    assert found.found_in == f"the chat template, which has {' and '.join(record.signatures[0])}"


def test_a_format_is_found_by_the_type_of_a_model_without_a_template(tmp_path: Path) -> None:
    found = find(tmp_path, None, "kimi_k2")
    assert (found.tool_format, found.think_tags) == (TOOL_FORMATS["kimi_k2"], None)
    assert found.found_in == "the model_type kimi_k2"


@pytest.mark.parametrize("model_type", ["deepseek_v32", "deepseek_v4"])
def test_a_model_with_an_encoder_instead_of_a_template_has_one(
    tmp_path: Path, model_type: str
) -> None:
    found = find(tmp_path, None, model_type)
    assert (found.tool_format, found.think_tags) == (TOOL_FORMATS[model_type], THINK)
    assert found.thinking_switch == "thinking"


def test_the_template_for_tools_says_how_they_are_called(tmp_path: Path) -> None:
    folder = tmp_path / "additional_chat_templates"
    folder.mkdir()
    record = TOOL_FORMATS["longcat"]
    (folder / "tool_use.jinja").write_text(" ".join(record.signatures[0]))
    assert find(tmp_path, "{{ messages }}").tool_format == record


def test_a_template_without_marks_calls_no_tools(tmp_path: Path) -> None:
    found = find(tmp_path, "{{ messages[0].content }}", "llama")
    assert found == ChatStyle(None, None, None, "nowhere: the chat template has no known format")


def test_thinking_and_its_switch_are_found(tmp_path: Path) -> None:
    found = find(tmp_path, "{% if enable_thinking %}{% endif %}{{ '<think></think>' }}")
    assert (found.think_tags, found.thinking_switch) == (THINK, "enable_thinking")


def test_a_switch_may_have_words_as_values(tmp_path: Path) -> None:
    found = find(
        tmp_path, "{% if thinking_mode == 'enabled' %}{{ '<mm:think></mm:think>' }}{% endif %}"
    )
    assert found.thinking_switch == "thinking_mode"
    assert [found.find_switch_value(each) for each in (False, True)] == ["disabled", "enabled"]
    named = find(tmp_path, None, think_tags=("<a>", "</a>"), thinking_switch="thinks")
    assert [named.find_switch_value(each) for each in (False, True)] == [False, True]


@pytest.mark.parametrize("source", ["{{ '<think>' }}", "{{ x.split('</think>') }}"])
def test_one_of_the_usual_tags_is_enough(tmp_path: Path, source: str) -> None:
    assert find(tmp_path, source).think_tags == THINK


def test_tags_that_a_template_puts_together_are_found(tmp_path: Path) -> None:
    source = "{{ '<|open|>' ~ tag ~ '<|sep|>' }}{{ '<|close|>' ~ tag ~ '<|sep|>' }}"
    record = TOOL_FORMATS["kimi_k3"]
    found = find(tmp_path, source)
    assert (found.tool_format, found.think_tags) == (record, record.think)
    assert find(tmp_path, "{{ 1 }}", tool_format="kimi_k3").think_tags is None


def test_the_documentation_lists_the_tags() -> None:
    document = " ".join((settings.BASE_DIR / "docs" / "models.md").read_text().split())
    for tags in THINK_TAGS:
        assert f"`{tags.begin}` and `{tags.end}`" in document


def test_models_toml_overrules(tmp_path: Path) -> None:
    source = "<tool_call><think></think>"
    named = find(tmp_path, source, tool_format="glm", think_tags=("<a>", "</a>"))
    assert (named.tool_format, named.found_in) == (TOOL_FORMATS["glm"], "models.toml")
    assert named.think_tags == ThinkTags("<a>", "</a>")
    off = find(tmp_path, source, tool_format="none", think_tags=())
    assert (off.tool_format, off.think_tags) == (None, None)


def test_what_was_found_is_said_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        style = find(tmp_path, '<tool_call>{"name": 1}<think></think>')
    assert style.describe() in caplog.text
    assert style.describe() == (
        'tool_format hermes (the chat template, which has <tool_call> and "name), '
        "think_tags <think> and </think>"
    )
