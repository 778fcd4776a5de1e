"""Stops in the content of an answer, and none in its thoughts and calls."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.chat.call_parser import CallParser
from completions.chat.delta import Delta
from completions.chat.parser import OutputParser
from completions.chat.reasoning import ReasoningParser, ThinkTags
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool, ToolCall
from completions.contract.sampling import SamplingParams
from tests.completions.chat.reading import REPRESENTATIVES
from tests.representatives import stand_for_all
from workers.engine.text.finish import Finish, FinishReason
from workers.engine.text.stop_checker import StopChecker

MARKS = ThinkTags("<think>", "</think>")
ARGUMENTS = {"q": 'a </tool_call> \n "b" } {', "n": [1, {}]}
TOOL = Tool("f", None, {"properties": {"q": {"type": "string"}}})
CALL = ToolCall("f", {"q": "a\nb", "n": 1})
SPANNED = {name: form.write(CALL) for name, form in TOOL_FORMATS.items()}


def checker(form: str | None, *, is_open: bool = False, **params: Any) -> StopChecker:
    spans = [MARKS.make_span(is_open=is_open)]
    spans += TOOL_FORMATS[form].make_spans(["f"]) if form else []
    sampling = SamplingParams(max_tokens=9, stop_spans=tuple(spans), **params)
    return StopChecker(sampling, frozenset(), 9)


def shown(stops: StopChecker, pieces: Sequence[str]) -> tuple[str, Finish | None]:
    """The text that is shown of pieces, and what ends it."""
    texts = []
    for piece in pieces:
        peeked = stops.peek_text(piece)
        text, finish = stops.check_text(piece)
        assert (text, finish) == peeked
        texts.append(text)
        if finish is not None:
            return "".join(texts), finish
    text, finish = stops.flush()
    return "".join([*texts, text]), finish


def message(form: str, text: str) -> tuple[Delta, bool]:
    """The message in a text, and whether its calls are complete."""
    thinking = ReasoningParser(MARKS, is_open=False)
    parser = OutputParser(thinking, CallParser(TOOL_FORMATS[form], [TOOL]))
    delta = parser.push(text)
    rest = parser.finish()
    delta.content += rest.content
    return delta, parser.has_called


@pytest.mark.represented_by("</tool_call>-hermes", "<-glm", "}-kimi_k2", "a-qwen3_coder")
@pytest.mark.parametrize("form", stand_for_all(REPRESENTATIVES, TOOL_FORMATS))
@pytest.mark.parametrize(
    "stop", ["</tool_call>", "<tool_call>", "<", "\n", '"', "}", "{", "f", "a", "arg", "; "]
)
def test_a_stop_does_not_cut_a_call(form: str, stop: str) -> None:
    text = TOOL_FORMATS[form].write(CALL, CALL)
    assert shown(checker(form, stop=(stop,)), [text]) == (text, None)
    assert shown(checker(form, stop=(stop,)), list(text)) == (text, None)
    assert shown(checker(form, stop_regex=(f"[{stop[-1]}]",)), [text]) == (text, None)
    delta, is_complete = message(form, text)
    assert is_complete
    assert (len([each for each in delta.calls if each.name]), delta.content) == (2, "")


@pytest.mark.parametrize("form", ["openai", "gigachat3_roles"])
def test_what_only_begins_as_a_separator_is_content(form: str) -> None:
    written, separator = SPANNED[form], TOOL_FORMATS[form].separator.strip()
    begun, stop = separator[:-1], separator[2:5]
    cut = f"{written}\n{separator[:2]}"
    for pieces in ([f"{written}\n{begun} a"], list(f"{written}\n{begun} a")):
        assert shown(checker(form, stop=(stop,)), pieces) == (cut, Finish(FinishReason.STOP, stop))
    for end in (begun, separator):
        text = f"{written}\n{end}"
        assert shown(checker(form, stop=(stop,)), list(text)) == (text, None)
        assert message(form, text)[0].content == ""


@pytest.mark.parametrize("form", ["hermes", "llama3"])
def test_a_call_ends_outside_of_its_strings(form: str) -> None:
    written = TOOL_FORMATS[form].write(ToolCall("f", ARGUMENTS))
    stops = checker(form, stop=("b", "}"))
    assert shown(stops, [f"{written} so. b!"]) == (
        f"{written} so. ",
        Finish(FinishReason.STOP, "b"),
    )


@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_a_stop_counts_before_and_after_a_call(form: str) -> None:
    end = Finish(FinishReason.STOP, "END")
    written = SPANNED[form]
    assert shown(checker(form, stop=("END",)), [f"So END {written}"]) == ("So ", end)
    whole = f"So {written}\nWell END then"
    assert shown(checker(form, stop=("END",)), list(whole)) == (f"So {written}\nWell ", end)
    kept = checker(form, stop=("END",), no_stop_trim=True)
    assert shown(kept, [whole]) == (f"So {written}\nWell END", end)


def test_a_stop_does_not_extend_beyond_a_call() -> None:
    text = f"E{SPANNED['hermes']}ND END"
    stops = checker("hermes", stop=("END",), stop_regex=("^ND", "E.*N"))
    assert shown(stops, list(text))[1] == Finish(FinishReason.STOP, "E.*N", "EN")


@pytest.mark.parametrize("is_open", [False, True])
def test_a_stop_does_not_cut_thoughts(is_open: bool) -> None:
    text = f"{'' if is_open else MARKS.begin}\na b\n{MARKS.end}\n\nOne.\nTwo."
    stops = checker(None, is_open=is_open, stop=("\n",))
    assert shown(stops, list(text)) == (
        text.removesuffix("\nTwo."),
        Finish(FinishReason.STOP, "\n"),
    )


def test_what_only_seems_to_open_a_span_is_content() -> None:
    for stop in ("<", "<tool", "<tool_ca"):
        expected = ("a ", Finish(FinishReason.STOP, stop))
        assert shown(checker("hermes", stop=(stop,)), ["a <tool_ca", "t>"]) == expected
        assert shown(checker("hermes", stop=(stop,)), ["a <tool_ca"]) == expected


def test_stops_that_come_too_early_do_not_count_when_the_text_ends() -> None:
    assert shown(checker("hermes", stop=("<",), min_tokens=3), ["a <"]) == ("a <", None)


TOKENS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "\n", "a", "b", "<t", '"']
PIECES = st.sampled_from([*TOKENS, SPANNED["hermes"]])


@given(st.lists(PIECES, max_size=8), st.sampled_from(["a", "b\n", "<", "ab"]), st.booleans())
def test_cuts_of_the_text_change_nothing(pieces: list[str], stop: str, trims: bool) -> None:
    text = "".join(pieces)
    options = {"stop": (stop,), "stop_regex": ("b{2}",), "no_stop_trim": not trims}
    whole = shown(checker("hermes", **options), [text])
    assert shown(checker("hermes", **options), list(text)) == whole
    assert shown(checker("hermes", **options), pieces) == whole
    assert text.startswith(whole[0])
    if whole[1] is None:
        assert whole[0] == text
