"""Log probabilities of events in OpenAI's form and in SGLang's."""

import pytest

from completions.catalog import model_files
from completions.jobs.events import ChoiceEvent
from completions.responses import token_texts
from completions.responses.choice_record import ABORT
from completions.responses.completion import Chunks, CollectedResponse, ResponseContext
from completions.responses.logprobs import CompletionLogprobs, iter_scores, make_chat_logprobs
from completions.responses.response_context import OpenEnd, SGLangLogprobs
from completions.responses.sglang import make_logprob_arrays
from tests.completions.responses.test_completion import make_view

pytestmark = pytest.mark.usefixtures("served")

A, B, C, D, EOS = 64, 65, 66, 67, 257
"""Ids of the tiny model: bytes in the order of their printable stand-ins."""


def letter(token_id: int) -> str:
    return {A: "a", B: "b", C: "c", D: "b", EOS: "</s>"}[token_id]


def scores(*chosen, offsets=(), top=None, named=None):
    found = {"chosen": list(chosen)}
    if offsets:
        found["offsets"] = list(offsets)
    if top:
        found["top_ids"] = [row and [i for i, _ in row] for row in top]
        found["top"] = [row and [s for _, s in row] for row in top]
    if named:
        found["named"] = list(named)
    return found


def test_the_likeliest_and_the_token_itself_by_their_texts():
    best = [[(B, -0.5), (D, -1.0), (A, -2.0)]]
    (row,) = iter_scores([C], scores(-3.0, top=best), [0])
    shown = CompletionLogprobs(2, letter).push([row], 1)
    assert shown == {
        "tokens": ["c"],
        "token_logprobs": [-3.0],
        "text_offset": [0],
        "top_logprobs": [{"b": -0.5, "c": -3.0}],
    }
    assert CompletionLogprobs(0, letter).push([row], 1)["top_logprobs"] == [{"c": -3.0}]


def test_a_row_without_scores_is_the_first_of_a_prompt():
    found = iter_scores([A, B], scores(None, -1.0, top=[None, [(B, -1.0)]]), [0, 1])
    shown = CompletionLogprobs(1, letter).push(list(found), 2)
    assert shown["token_logprobs"] == [None, -1.0]
    assert shown["top_logprobs"] == [None, {"b": -1.0}]


def test_tokens_that_were_forced():
    scored = scores(-1.0, -2.0, offsets=(0, 1)) | {"forced": [False, True]}
    shown = CompletionLogprobs(0, letter).push(list(iter_scores([A, B], scored, [0, 1])), 2)
    assert shown["forced"] == [False, True]
    chat = make_chat_logprobs([A, B], scored, 0, token_texts.load_token_texts("tiny"))
    assert [each["forced"] for each in chat["content"]] == [False, True]
    plain = make_chat_logprobs(
        [A], scores(-1.0, offsets=(0,)), 0, token_texts.load_token_texts("tiny")
    )
    assert "forced" not in plain["content"][0]


def test_tokens_wait_for_their_text_and_trimmed_ones_never_show():
    listed = CompletionLogprobs(0, letter)
    gained = list(iter_scores([A, B, C], scores(-1.0, -2.0, -3.0), [0, 1, 2]))
    assert listed.push(gained[:2], 1)["tokens"] == ["a"]  # b could still begin a stop string
    assert listed.push(gained[2:], 2)["tokens"] == ["b"]
    assert listed.push([], 2)["tokens"] == []


def test_tokens_without_text_are_listed_at_the_end():
    listed = CompletionLogprobs(0, letter)
    gained = list(iter_scores([A, EOS], scores(-1.0, -2.0), [0, 1]))
    assert listed.push(gained, 1)["tokens"] == ["a"]  # more text may follow
    assert listed.push([], 1, ends=True)["tokens"] == ["</s>"]


def test_sglangs_arrays():
    wish = SGLangLogprobs(True, 1, [C], -1)
    best = [[(B, -0.5), (A, -1.0)], [(A, -0.1), (B, -3.0)]]
    found = make_logprob_arrays(
        "output_", [A, B], scores(-1.0, -3.0, top=best, named=[[-7.0], [-8.0]]), wish, None
    )
    assert found == {
        "output_token_logprobs": [[-1.0, A, None], [-3.0, B, None]],
        "output_top_logprobs": [[[-0.5, B, None]], [[-0.1, A, None]]],
        "output_token_ids_logprobs": [[[-7.0, C, None]], [[-8.0, C, None]]],
    }
    only = make_logprob_arrays(
        "output_", [A], scores(-1.0, named=[[-7.0]]), SGLangLogprobs(False, 0, [C], -1), letter
    )
    assert only == {"output_token_ids_logprobs": [[[-7.0, C, "c"]]]}


PROMPT = [B, C]
EVENTS = [
    ChoiceEvent(
        0,
        [A],
        "",
        None,
        None,
        {
            "prompt_logprobs": scores(None, -4.0, top=[None, [(A, -2.0)]], named=[None, [-9.0]]),
            "logprobs": scores(-1.0, offsets=[0], top=[[(A, -1.0)]], named=[[-5.0]]),
        },
    ),
    ChoiceEvent(
        0,
        [B, EOS],
        "ab",
        "stop",
        EOS,
        {
            "logprobs": scores(
                -2.0, -3.0, offsets=[1, 2], top=[[(B, -2.0)], [(EOS, -3.0)]], named=[[-6.0], [-7.0]]
            ),
        },
    ),
]


def view(**changes) -> ResponseContext:
    fields = {"model": "tiny", "n": 1, "prompt_lengths": [2], "prompts": [PROMPT], **changes}
    return make_view(**fields)


def whole(wanted: ResponseContext):
    collected = CollectedResponse(wanted)
    collected.add(EVENTS)
    return collected.make_response(None)["choices"][0]


def streamed(wanted: ResponseContext):
    return [chunk["choices"][0] for _, chunk in Chunks(wanted).make_chunks(EVENTS)]


def joined(pieces):
    together = {}
    for piece in pieces:
        for name, values in piece["logprobs"].items():
            together.setdefault(name, []).extend(values)
    return together


def test_log_probabilities_list_the_tokens_of_the_text_and_the_one_that_ends_it():
    choice = whole(view(logprobs=1))
    assert choice["logprobs"] == {
        "tokens": ["a", "b", "</s>"],
        "token_logprobs": [-1.0, -2.0, -3.0],
        "text_offset": [0, 1, 2],
        "top_logprobs": [{"a": -1.0}, {"b": -2.0}, {"</s>": -3.0}],
    }
    pieces = streamed(view(logprobs=1))
    assert pieces[0]["logprobs"]["tokens"] == []
    assert joined(pieces) == choice["logprobs"]


def test_an_echo_comes_first_with_its_scores():
    wanted = view(logprobs=1, echo=["bc"])
    choice = whole(wanted)
    assert choice["text"] == "bcab"
    assert choice["logprobs"]["tokens"] == ["b", "c", "a", "b", "</s>"]
    assert choice["logprobs"]["token_logprobs"] == [None, -4.0, -1.0, -2.0, -3.0]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]
    assert choice["logprobs"]["top_logprobs"][:2] == [None, {"a": -2.0, "c": -4.0}]
    pieces = streamed(wanted)
    assert [piece["text"] for piece in pieces] == ["bc", "ab"]
    assert joined(pieces) == choice["logprobs"]


def test_offsets_behind_an_echo_that_ends_within_a_character():
    euro = model_files.load(model_files.load_catalog().entries["tiny"]).tokenizer.encode("\u20ac")
    open_end = {
        "echo": ["b\ufffd"],
        "open_ends": [OpenEnd("b", "e282")],
        "prompts": [[B, *euro.ids[1:3]]],
    }
    scored = {"logprobs": scores(-1.0, -2.0, offsets=[0, 1])}
    events = [ChoiceEvent(0, [euro.ids[3], A], "\u20aca", "length", None, scored)]
    collected = CollectedResponse(view(logprobs=0, **open_end))
    collected.add(events)
    choice = collected.make_response(None)["choices"][0]
    assert choice["text"] == "b\u20aca"
    assert choice["logprobs"]["text_offset"] == [1, 2]


@pytest.mark.parametrize("ends", ["length", ABORT])
def test_every_token_of_an_echoed_prompt_is_listed(ends: str):
    """Evaluations cut the list at the length of the prompt, and its last tokens may be special."""
    asked = {"prompts": [[B, EOS]], "echo": ["b"], "logprobs": 0}
    first = {"prompt_logprobs": scores(None, -4.0)}
    collected, chunks = CollectedResponse(view(**asked)), Chunks(view(**asked))
    events = [ChoiceEvent(0, [], "", ends, None, first)]
    collected.add(events)
    logprobs = collected.make_response(None)["choices"][0]["logprobs"]
    assert (logprobs["tokens"], logprobs["token_logprobs"]) == (["b", "</s>"], [None, -4.0])
    assert joined([chunk["choices"][0] for _, chunk in chunks.make_chunks(events)]) == logprobs


@pytest.mark.parametrize(("stop", "tokens"), [("b", ["a"]), (B, ["a", "b"]), (None, ["a", "b"])])
def test_what_a_stop_string_cuts_off_is_not_listed(stop: str | int | None, tokens: list[str]):
    scored = {"logprobs": scores(-1.0, -2.0, offsets=[0, 1])}
    events = [ChoiceEvent(0, [A, B], "a", "stop", stop, scored)]
    collected = CollectedResponse(view(logprobs=0))
    collected.add(events)
    assert collected.make_response(None)["choices"][0]["logprobs"]["tokens"] == tokens
    (chunk,) = Chunks(view(logprobs=0)).make_chunks(events)
    assert chunk[1]["choices"][0]["logprobs"]["tokens"] == tokens


def test_meta_info_lists_every_sampled_token():
    wanted = view(
        sglang_logprobs=[SGLangLogprobs(True, 1, [D], 0)], meta_info=True, text_in_logprobs=True
    )
    info = whole(wanted)["meta_info"]
    assert info["output_token_logprobs"] == [
        [-1.0, A, "a"],
        [-2.0, B, "b"],
        [-3.0, EOS, "</s>"],
    ]
    assert info["output_token_logprobs_length"] == 3
    assert info["input_token_logprobs"] == [[None, B, "b"], [-4.0, C, "c"]]
    assert info["input_top_logprobs"] == [None, [[-2.0, A, "a"]]]
    assert info["input_token_ids_logprobs"] == [None, [[-9.0, D, "d"]]]
    assert info["output_token_ids_logprobs"] == [
        [[-5.0, D, "d"]],
        [[-6.0, D, "d"]],
        [[-7.0, D, "d"]],
    ]
    assert streamed(wanted)[-1]["meta_info"] == info


def test_the_first_row_is_null_wherever_it_begins():
    late = whole(view(sglang_logprobs=[SGLangLogprobs(True, 0, (), 1)], meta_info=True))[
        "meta_info"
    ]
    assert late["input_token_logprobs"] == [[None, C, None]]
    past = whole(view(sglang_logprobs=[SGLangLogprobs(True, 0, (), 2)], meta_info=True))[
        "meta_info"
    ]
    assert past["input_token_logprobs"] == []
    none = whole(view(sglang_logprobs=[SGLangLogprobs(True, 0, (), -1)], meta_info=True))[
        "meta_info"
    ]
    assert none["input_token_logprobs"] == []


def test_a_stored_view_still_knows_what_was_asked():
    wanted = view(sglang_logprobs=[SGLangLogprobs(True, 1, [D], 0)], meta_info=True)
    assert ResponseContext.read(wanted.to_json()) == wanted
    assert ResponseContext.read(wanted.to_json()).sglang_logprobs == [(True, 1, [D], 0)]
