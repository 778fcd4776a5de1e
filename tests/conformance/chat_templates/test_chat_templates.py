"""Real chat templates: how their models write calls is found, read, and accepted by the grammar."""

import json
import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer

from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles
from completions.chat.chat_style import find_chat_style
from completions.chat.conversation import render_prompt
from completions.chat.grammar import Reasoning, ToolCalls, make_answer_constraint
from completions.chat.prompt_text import PromptText
from completions.chat.reasoning import ReasoningParser
from completions.chat.template import ChatTemplateError
from completions.chat.tools import Tool, ToolChoice
from completions.grammars import Limits, TokenSource, tokens, translate
from completions.grammars.compiler import Compiler
from completions.grammars.limits import FLEXIBLE
from tests.completions.chat import reading
from tests.completions.chat.test_grammar import Bench
from tests.conformance.chat_templates.packages import LLAMA_CPP, OLLAMA_UTILS, TRL, Package, load
from tests.conformance.chat_templates.table import DIFFERENCES, FORMATS, LOSSES, THINKING
from tests.conformance.registries import FetchError
from tests.conformance.tokenizers.conftest import or_skip
from tests.conformance.tokenizers.families import FAMILIES
from tests.conformance.tokenizers.packages import fetched

pytestmark = pytest.mark.long

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "n": {"type": "integer"},
        "f": {"type": "number"},
        "ok": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "o": {"type": "object"},
    },
    "required": ["city"],
}
TOOLS = (
    Tool("weather", 'Says "more" é', PARAMETERS),
    Tool("now", "The time.", {"type": "object", "properties": {}}),
)
Calls = list[tuple[str, dict[str, Any]]]
CALLS: Mapping[str, Calls] = {
    "a word": [("weather", {"city": "Rome"})],
    "nothing": [("now", {})],
    "unicode": [("weather", {"city": "東京 naïve 👩\u200d👧 & <b>"})],
    "quotes": [("weather", {"city": '"Rome", it\'s a\\b'})],
    "lines": [("weather", {"city": "a\n  b"})],
    "numbers": [("weather", {"city": "7", "n": 3, "f": -1.5})],
    "a boolean": [("weather", {"city": "R", "ok": True})],
    "a list": [("weather", {"city": "R", "tags": ["x", "é y"]})],
    "an object": [("weather", {"city": "R", "o": {"x": {"y": [1, "z"]}}})],
    "two": [("weather", {"city": "Rome"}), ("now", {})],
}
SAID = "Hi <|im_end|><|end|>[INST]!"
MARK = "\ue000"
"""A text that no template has."""
SPECIAL = re.compile(r"<\|?[^<>\s|]+\|?>|\[/?[A-Z_]+\]|<\uff5c[^<>]+\uff5c>")


class Model:
    """What the service knows of a model with this template."""

    def __init__(self, source: str, folder: Path) -> None:
        folder.mkdir()
        (folder / "chat_template.jinja").write_text(source)
        tokens = {"bos_token": "<s>", "eos_token": "</s>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
        self.files = ModelFiles(ModelEntry("m", folder), 10, 64, (), 0)

    @cached_property
    def style(self) -> Any:
        return find_chat_style(self.files)

    def render(self, *said: dict[str, Any], prompt: bool = False) -> PromptText:
        messages = [{"role": "user", "content": "Hi"}, *said]
        return render_prompt(self.files, messages, TOOLS, self.style.tool_format, {}, prompt)

    def write(self, calls: Calls) -> tuple[str, bool]:
        """Return what the template writes after the prompt for an assistant's calls, and whether
        that begins inside reasoning."""
        listed = [
            {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": value}}
            for i, (name, value) in enumerate(calls)
        ]
        text = self.render({"role": "assistant", "content": MARK})
        whole = self.render({"role": "assistant", "content": "", "tool_calls": listed})
        before, tags = self.render(prompt=True), self.style.think_tags
        if not whole.startswith(before):
            before = os.path.commonprefix([text, whole])  # noqa: RUF071 - characters are meant
            before = before[: before.rindex("<")] if re.search("<[^>]*$", before) else before
        answer = whole[len(before) :].removesuffix(text.rpartition(MARK)[2])
        return answer, tags is not None and tags.is_open_in(before)


def read(model: Model, answer: str, is_open: bool) -> tuple[str, Calls]:
    """Return the content, without special tokens, and the calls that the service reads."""
    tags, written = model.style.think_tags, model.style.tool_format
    thinking = ReasoningParser(tags, is_open=is_open) if tags else None
    message = reading.read(written.name, [answer], TOOLS, thinking)
    calls = [(name, json.loads(arguments)) for name, arguments in message.calls]
    return SPECIAL.sub("", message.content).strip(), calls


def list_refused(
    model: Model, texts: Mapping[str, str], is_open: bool, compiler: Compiler, tokenizer: Tokenizer
) -> set[str]:
    """Return the keys of the answers that the grammar of required calls does not accept."""
    tags, written = model.style.think_tags, model.style.tool_format
    can_be_empty = tags is not None and tags.end in written.unseen
    reasoning = Reasoning(tags, is_open=is_open, can_be_empty=can_be_empty) if tags else None
    calls = ToolCalls(written, TOOLS, ToolChoice(mode="required"))
    constraint = make_answer_constraint(reasoning, calls, None, FLEXIBLE, tool_format=written)
    assert constraint is not None
    grammar = translate(constraint, compiler).grammar
    refused = set()
    for key, text in texts.items():
        matcher = LLMatcher(tokens.load(compiler.tokens), grammar, log_level=0)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if matcher.try_consume_tokens(ids) < len(ids) or not matcher.is_accepting():
            refused.add(key)
    return refused


def load_or_skip(package: Package) -> Mapping[str, str]:
    try:
        return load(package)
    except FetchError as error:
        pytest.skip(str(error))


def list_differences(package: Package, name: str, *, in_reading: bool) -> set[str]:
    rows = [each for each in DIFFERENCES if each.package == package and name in each.names.split()]
    return {
        call
        for row in rows
        for call in (row.calls.split(", ") if row.calls else CALLS)
        if not (in_reading and row.reads)
    }


packages = pytest.mark.parametrize("package", FORMATS, ids=str)
templates = pytest.mark.parametrize(
    ("package", "name"),
    [
        pytest.param(package, name, id=f"{package}-{name}")
        for package, formats in FORMATS.items()
        for names in formats.values()
        for name in names.split()
    ],
)


def find_keys(table: Mapping[str, str]) -> dict[str, str]:
    """Return the key of each name in the values."""
    return {name: key for key, names in table.items() for name in names.split()}


@packages
def test_the_format_and_the_think_tags_are_found(tmp_path: Path, package: Package) -> None:
    sources = load_or_skip(package).items()
    found = {name: Model(source, tmp_path / name).style for name, source in sources}
    formats = {name: style.tool_format.name for name, style in found.items() if style.tool_format}
    tags = {name: style.think_tags.begin for name, style in found.items() if style.think_tags}
    assert formats == find_keys(FORMATS[package])
    assert tags == find_keys(THINKING[package])


@templates
def test_calls_that_a_template_writes_are_read_back(
    tmp_path: Path, package: Package, name: str
) -> None:
    model = Model(load_or_skip(package)[name], tmp_path / "model")
    differ = set()
    for key, calls in CALLS.items():
        try:
            if read(model, *model.write(calls)) != ("", calls):
                differ.add(key)
        except (ChatTemplateError, ValueError):  # the template refuses, or writes no JSON
            differ.add(key)
    assert differ == list_differences(package, name, in_reading=True)


def write_all(model: Model) -> tuple[dict[bool, dict[str, str]], set[str]]:
    """Return what the template writes up to the end of its calls, by whether that begins inside
    reasoning and by key; and the keys of the calls that it refuses."""
    written = model.style.tool_format
    end = (written.section[1] or written.end or "}").strip()
    texts: dict[bool, dict[str, str]] = {False: {}, True: {}}
    refused = set()
    for key, calls in CALLS.items():
        try:
            answer, is_open = model.write(calls)
        except ChatTemplateError:
            refused.add(key)
        else:
            before, found, _ = answer.strip().rpartition(end)
            texts[is_open][key] = before + found
    return texts, refused


@templates
def test_the_grammar_accepts_what_a_template_writes(
    tmp_path: Path, package: Package, name: str
) -> None:
    model = Model(load_or_skip(package)[name], tmp_path / "model")
    tags = model.style.think_tags
    marks = [*model.style.tool_format.delimiters, *(tags.delimiters if tags else ())]
    bench = Bench(tmp_path, list(dict.fromkeys(marks)))
    texts, differ = write_all(model)
    for is_open, each in texts.items():
        differ |= list_refused(model, each, is_open, bench.compiler, bench.tokenizer)
    assert differ == list_differences(package, name, in_reading=False)


@pytest.mark.parametrize(
    ("family", "package", "name"),
    [
        ("qwen3", TRL, "qwen3"),
        ("qwen3", TRL, "qwen3_6"),
        ("llama3_1", LLAMA_CPP, "meta-llama-Llama-3.1-8B-Instruct"),
        ("deepseek_v3", OLLAMA_UTILS, "deepseek-v3-671b"),
        ("deepseek_v3", LLAMA_CPP, "deepseek-ai-DeepSeek-V3.1"),
        ("gptoss", LLAMA_CPP, "openai-gpt-oss-120b"),
    ],
)
def test_the_grammar_accepts_it_in_the_models_own_tokens(
    tmp_path: Path, family: str, package: Package, name: str
) -> None:
    model = Model(load_or_skip(package)[name], tmp_path / "model")
    (found,) = (each for each in FAMILIES if str(each) == family)
    path = str(fetched(or_skip(found).package) / "tokenizer.json")
    compiler = Compiler(TokenSource(path, found.rows, found.ends), Limits())
    texts, differ = write_all(model)
    for is_open, each in texts.items():
        differ |= list_refused(model, each, is_open, compiler, Tokenizer.from_file(path))
    assert differ == list_differences(package, name, in_reading=False)


def make_call(index: int, city: str) -> dict[str, Any]:
    function = {"name": "weather", "arguments": {"city": city}}
    return {"id": f"call_{index}", "type": "function", "function": function}


HISTORY = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Where?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [make_call(0, "Rome"), make_call(1, "Oslo")],
    },
    {"role": "tool", "tool_call_id": "call_0", "content": "sunny é"},
    {"role": "tool", "tool_call_id": "call_1", "content": "rainy"},
    {"role": "assistant", "content": "There it is."},
    {"role": "user", "content": "And now?"},
]
WORDS = ("kind", "Where", "Rome", "Oslo", "sunny é", "rainy", "There it is", "And now")


@packages
def test_nothing_of_a_history_is_lost(tmp_path: Path, package: Package) -> None:
    lost = []
    for name, source in load_or_skip(package).items():
        model = Model(source, tmp_path / name)
        try:
            text = render_prompt(model.files, HISTORY, TOOLS, model.style.tool_format, {})
        except ChatTemplateError:
            text = ""
        if not all(word in text for word in WORDS) or "None" in text:
            lost.append(name)
    assert sorted(lost) == sorted(LOSSES.get(package, "").split())
