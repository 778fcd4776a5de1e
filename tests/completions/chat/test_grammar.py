"""Grammars of whole answers, put before llguidance: what fits them and what does not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from completions.chat.grammar import BudgetError, Reasoning, ToolCalls, make_answer_constraint
from completions.chat.reasoning import ThinkTags
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool, ToolCall, ToolChoice
from completions.grammars import Constraint, Limits, TokenSource, tokens, translate
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import GrammarError
from tests.completions.chat import reading

THINK = ThinkTags("<think>", "</think>")
FORMS = ("hermes", "llama3", "glm", "kimi_k2", "deepseek_v32")
"""One format of each kind; test_format_grammars.py has all."""
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
STRICT = Tool("weather", "w", PARAMETERS, strict=True, path="tools[0]")
LOOSE = Tool("add", None, {"type": "object"}, path="tools[1]")
GOOD = ToolCall("weather", {"city": "New York", "days": 3, "unit": "C"})
ANY = ToolCall("add", {"x": "1"})


def tokenizer(specials: list[str]) -> Tokenizer:
    """One token per byte, an end, and some special tokens behind it."""
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text) for text in ("</s>", *specials)])
    return made


class Bench:
    """Answers of one model, tried on the grammars of requests."""

    def __init__(self, folder: Path, specials: list[str]) -> None:
        path = folder / "tokenizer.json"
        self.tokenizer = made = tokenizer(specials)
        made.save(str(path))
        size = made.get_vocab_size()
        self.compiler = Compiler(TokenSource(str(path), size + 3, (256,)), Limits())

    def fits(
        self,
        text: str,
        calls: ToolCalls | None = None,
        thoughts: Reasoning | None = None,
        constraint: Constraint | None = None,
    ) -> bool:
        form = calls.format if calls else None
        wanted = make_answer_constraint(thoughts, calls, constraint, tool_format=form)
        return self.accepts(text, wanted)

    def accepts(self, text: str, wanted: Constraint | None) -> bool:
        if wanted is None:
            return True
        grammar = translate(wanted, self.compiler).grammar
        matcher = LLMatcher(tokens.load(self.compiler.tokens), grammar, log_level=0)
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        consumed = matcher.try_consume_tokens(ids)
        assert not matcher.is_error(), matcher.get_error()
        return consumed == len(ids) and bool(matcher.is_accepting())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, [])


def calls(form: str, *tools: Tool, **choice: Any) -> ToolCalls:
    return ToolCalls(TOOL_FORMATS[form], tools or (STRICT, LOOSE), ToolChoice(**choice))


@pytest.mark.represented_by("False-hermes", "True-glm")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("special", [False, True])
def test_calls_between_text(tmp_path: Path, form: str, special: bool) -> None:
    bench = Bench(tmp_path, ["<|x|>", *TOOL_FORMATS[form].delimiters] if special else [])
    good, loose = TOOL_FORMATS[form].write(GOOD), TOOL_FORMATS[form].write(ANY)
    asked = calls(form)
    assert bench.fits("Hello.", asked)
    assert bench.fits("", asked)
    assert bench.fits(good, asked)
    assert bench.fits(f"I look.\n{good}\n{loose}\nand wait", asked)
    is_text = "{name}" in TOOL_FORMATS[form].trigger  # what is no call begins like one
    assert bench.fits(TOOL_FORMATS[form].write(ToolCall("delete", {})), asked) is is_text
    assert not bench.fits(TOOL_FORMATS[form].write(ToolCall("weather", {"city": "Rome"})), asked)
    assert not bench.fits(good[:-1], asked)
    if special:
        assert bench.fits(f"a<|x|>b<|x|>{good}<|x|>", asked)


@pytest.mark.parametrize("form", FORMS)
def test_one_call_at_most(bench: Bench, form: str) -> None:
    good, asked = TOOL_FORMATS[form].write(GOOD), calls(form, parallel=False)
    assert bench.fits(f"See: {good}", asked)
    assert not bench.fits(f"{good}\n{good}", asked)
    assert bench.fits("none at all", asked)


@pytest.mark.parametrize("form", FORMS)
def test_required_and_named_calls(bench: Bench, form: str) -> None:
    written = TOOL_FORMATS[form]
    good, loose = written.write(GOOD), written.write(ANY)
    required = calls(form, mode="required")
    assert bench.fits(good, required)
    assert bench.fits(written.write(GOOD, ANY), required)
    assert not bench.fits("", required)
    assert not bench.fits(f"Sure: {good}", required)
    named = calls(form, LOOSE, mode="required", names=("add",), parallel=False)
    assert bench.fits(loose, named)
    assert not bench.fits(good, named)
    assert not bench.fits(written.write(ANY, ANY), named)


@pytest.mark.parametrize("form", FORMS)
def test_strict_arguments_fit_their_schema(bench: Bench, form: str) -> None:
    asked = calls(form, mode="required", parallel=False)
    written = TOOL_FORMATS[form].write
    for arguments, fits in [
        ({"city": "a", "unit": "F"}, True),
        ({"city": 'a"b\\', "days": 1, "unit": "F"}, True),
        ({"city": "a", "days": 0, "unit": "F"}, False),
        ({"city": "a", "unit": "K"}, False),
        ({"city": "a", "unit": "F", "more": 1}, False),
        ({"unit": "F"}, False),
    ]:
        assert bench.fits(written(ToolCall("weather", arguments)), asked) is fits, arguments
    assert bench.fits(written(ToolCall("add", {"anything": [1, {"a": None}]})), asked)


@pytest.mark.parametrize("form", ["hermes", "llama3"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object"},
        {"properties": {"x": {"type": "integer"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": {"type": "integer"}}}}},
        {"anyOf": [{"properties": {"x": {"type": "integer"}}}, {"type": "null"}]},
    ],
)
def test_arguments_are_an_object_whatever_the_schema_leaves_open(
    bench: Bench, form: str, parameters: dict[str, Any]
) -> None:
    asked = calls(form, Tool("f", None, parameters, strict=True), mode="required")
    written = TOOL_FORMATS[form].write(ToolCall("f", {"x": 1}))
    assert bench.fits(written, asked)
    for other in ("[]", "1", "null", '"a"'):
        assert not bench.fits(written.replace('{"x":1}', other), asked)


@pytest.mark.parametrize("form", FORMS)
def test_calls_or_a_constrained_answer(bench: Bench, form: str) -> None:
    answer = Constraint("regex", "[0-9]+")
    good = TOOL_FORMATS[form].write(GOOD)
    for text, fits in [("12", True), (good, True), ("twelve", False), (f"12{good}", False)]:
        assert bench.fits(text, calls(form), None, answer) is fits, text


@pytest.mark.parametrize("special", [False, True])
def test_thoughts_before_a_constrained_answer(tmp_path: Path, special: bool) -> None:
    bench = Bench(tmp_path, ["<think>", "</think>"] if special else [])
    for constraint in (
        Constraint("regex", "yes|no"),
        Constraint("json_schema", {"enum": ["yes", "no"]}),
        Constraint("ebnf", 'root ::= "yes" | "no"'),
        Constraint("grammar", {"type": "lark", "value": 'start: "yes" | "no"'}),
    ):
        yes = '"yes"' if constraint.field == "json_schema" else "yes"
        closed, opened = Reasoning(THINK, is_open=False), Reasoning(THINK, is_open=True)
        assert bench.fits(yes, None, closed, constraint)
        assert bench.fits(f"<think>\nyes or no?</think>\n\n{yes}", None, closed, constraint)
        assert not bench.fits("<think>a</think>\nmaybe", None, closed, constraint)
        assert bench.fits(f"hm</think>{yes}", None, opened, constraint)
        assert not bench.fits(yes, None, opened, constraint)
        required = Reasoning(THINK, is_open=False, required=True)
        assert not bench.fits(yes, None, required, constraint)


def test_a_budget_of_thoughts_in_tokens(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ["<think>", "</think>"])
    end = bench.tokenizer.token_to_id("</think>")
    thoughts = Reasoning(THINK, is_open=True, budget=3, end_id=end)
    assert bench.fits("abc</think>\nfree text", None, thoughts)
    assert bench.fits("</think>", None, thoughts)
    assert not bench.fits("abcd</think>", None, thoughts)
    assert not bench.fits("abc</s></think>", None, thoughts)
    with pytest.raises(BudgetError):
        make_answer_constraint(Reasoning(THINK, True, budget=3), None, None)


def test_thoughts_that_are_asked_for_come(bench: Bench) -> None:
    wanted = Reasoning(THINK, False, True)
    assert bench.fits("<think>so</think>Yes.", thoughts=wanted)
    assert not bench.fits("Yes.", thoughts=wanted)


def test_no_grammar_where_anything_goes(bench: Bench) -> None:
    assert make_answer_constraint(Reasoning(THINK, True), None, None) is None
    constraint = Constraint("regex", "a")
    assert make_answer_constraint(None, None, constraint) is constraint


@pytest.mark.parametrize(
    ("form", "schema", "pointer"),
    [
        ("hermes", {"type": "object", "extends": {}}, "/extends"),
        ("glm", {"properties": {"a": {"type": "integer", "extends": {}}}}, "/properties/a/extends"),
        ("glm", {"type": "array"}, ""),
        ("glm", {"anyOf": [{}]}, "/anyOf"),
        ("glm", {"required": ["x"], "additionalProperties": False}, "/required"),
        (
            "glm",
            {"properties": {"a": {"type": "string", "format": "uuid"}}},
            "/properties/a/format",
        ),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_named(
    bench: Bench, form: str, schema: dict[str, Any], pointer: str
) -> None:
    asked = calls(form, Tool("weather", None, schema, strict=True, path="tools[0]"))
    wanted = make_answer_constraint(None, asked, None)
    assert wanted is not None
    with pytest.raises(GrammarError) as caught:
        translate(wanted, bench.compiler)
    assert caught.value.field == "tools[0].function.parameters"
    assert caught.value.pointer == pointer


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("strict", [True, False])
def test_arguments_fit_their_schema(bench: Bench, form: str, mode: str, strict: bool) -> None:
    written = TOOL_FORMATS[form].write
    asked = calls(form, replace(STRICT, strict=strict), mode=mode)
    assert bench.fits(written(GOOD), asked)
    assert not bench.fits(written(ToolCall("weather", {"city": {"type": "string"}})), asked)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("parameters", [None, {}])
@pytest.mark.parametrize("strict", [True, False])
def test_a_tool_without_parameters_has_no_arguments(
    bench: Bench, form: str, parameters: dict[str, Any] | None, strict: bool
) -> None:
    written = TOOL_FORMATS[form].write
    asked = calls(form, Tool("now", None, parameters, strict), mode="required")
    assert bench.fits(written(ToolCall("now", {})), asked)
    assert not bench.fits(written(ToolCall("now", {"x": "1"})), asked)


@pytest.mark.parametrize("form", FORMS)
def test_a_schema_that_cannot_be_enforced_is_loosened_alone(bench: Bench, form: str) -> None:
    hard = Tool("add", None, {"properties": {"a": {"extends": {}}}}, path="tools[1]")
    asked = calls(form, replace(STRICT, strict=False), hard, mode="required")
    wanted = make_answer_constraint(None, asked, None)
    assert wanted is not None
    assert list(translate(wanted, bench.compiler).relaxed) == ["tools[1].function.parameters"]
    written = TOOL_FORMATS[form].write
    assert bench.fits(written(ANY), asked)
    assert not bench.fits(written(ToolCall("weather", {"city": "Rome"})), asked)


def test_a_fault_of_the_clients_constraint_names_its_field(bench: Bench) -> None:
    wanted = make_answer_constraint(None, calls("hermes"), Constraint("regex", "("))
    assert wanted is not None
    with pytest.raises(GrammarError) as caught:
        translate(wanted, bench.compiler)
    assert (caught.value.field, caught.value.column) == ("regex", 1)


COMPILED = ["hermes", "cohere_command", "deepseek_v32", "kimi_k3", "pythonic"]


@pytest.mark.parametrize("form", COMPILED)
def test_twenty_tools_take_no_more_compilations_than_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    bench, numbers = Bench(tmp_path, []), [0]
    find_error = Compiler.find_error

    def count(self: Compiler, grammar: str) -> str:
        numbers[-1] += self is bench.compiler
        return find_error(self, grammar)

    monkeypatch.setattr(Compiler, "find_error", count)
    tools = [replace(STRICT, name=f"weather_{i}", path=f"tools[{i}]") for i in range(20)]
    for asked in (tools[:1], tools):
        wanted = make_answer_constraint(None, calls(form, *asked), None)
        assert wanted is not None
        numbers.append(0)
        translate(wanted, bench.compiler)
    assert numbers[-2] == numbers[-1] > 0


@pytest.mark.parametrize("form", COMPILED)
def test_the_schema_that_cannot_be_used_is_named(tmp_path: Path, form: str) -> None:
    nothing = {"type": "object", "properties": {"b": False}, "required": ["b"]}
    parameters = {**PARAMETERS, "properties": {"city": nothing}, "required": ["city"]}
    bad = replace(STRICT, name="bad", parameters=parameters, path="tools[1]")
    wanted = make_answer_constraint(None, calls(form, STRICT, bad), None)
    assert wanted is not None
    with pytest.raises(GrammarError) as caught:
        translate(wanted, Bench(tmp_path, []).compiler)
    assert caught.value.field == "tools[1].function.parameters"


def test_an_end_tag_alone_may_say_that_there_is_no_reasoning(tmp_path: Path) -> None:
    tags = ThinkTags("<mm:think>", "</mm:think>")
    bench = Bench(tmp_path, [*tags, *TOOL_FORMATS["minimax_m3"].delimiters])
    asked, good = calls("minimax_m3"), TOOL_FORMATS["minimax_m3"].write(GOOD)
    for can_be_empty in (False, True):
        thoughts = Reasoning(tags, is_open=False, can_be_empty=can_be_empty)
        assert bench.fits(f"</mm:think>Yes.{good}", asked, thoughts) is can_be_empty
        assert bench.fits(f"<mm:think>Hm.</mm:think>Yes.{good}", asked, thoughts)
        assert bench.fits("Yes.", asked, thoughts)


@pytest.mark.represented_by("True-True-kimi_k2", "False-False-qwen3_coder")
@pytest.mark.parametrize("form", [each for each, f in TOOL_FORMATS.items() if f.ends_reasoning])
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("special", [True, False])
def test_a_call_may_end_the_reasoning(
    tmp_path: Path, form: str, is_open: bool, special: bool
) -> None:
    written = TOOL_FORMATS[form]
    bench = Bench(tmp_path, [*written.delimiters, *THINK] if special else [])
    thoughts = Reasoning(THINK, is_open)
    begin, call = "" if is_open else "<think>", written.write(GOOD)
    for mode, fits in (("auto", True), ("required", False)):
        asked = calls(form, mode=mode)
        assert bench.fits(f"{begin}Hm.\n\n{call}", asked, thoughts)
        assert bench.fits(f"{begin}Hm.</think>\n\n{call}", asked, thoughts)
        assert bench.fits(f"{begin}Hm.</think>\n\nYes.", asked, thoughts) is fits
        bad = written.write(ToolCall("weather", {"city": "Rome"}))
        assert not bench.fits(f"{begin}Hm.{bad}", asked, thoughts)
        assert not bench.fits(f"{begin}Hm.{call[:-1]}", asked, thoughts)


@pytest.mark.parametrize("form", ["llama3", "xlam", "pythonic"])
@pytest.mark.parametrize(
    "text", ['{"name": "John", "age": 3}', '[{"name": "John"}]', "[a](b) [1, 2]", '{"name": "wea"}']
)
def test_an_answer_that_begins_like_a_call_is_none(tmp_path: Path, form: str, text: str) -> None:
    asked = calls(form)
    assert Bench(tmp_path, []).fits(text, asked)
    message = reading.read(form, [text], asked.tools)
    assert (message.content, message.calls) == (text, [])
