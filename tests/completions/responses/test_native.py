"""Chunks of SGLang's own route: each is the whole output so far, and all together stay small."""

from itertools import product

import orjson
import pytest

from completions.jobs.events import ChoiceEvent, EndEvent, JobError
from completions.responses.native import SGLangContext
from completions.responses.response_context import SGLangLogprobs
from tests.representatives import stand_for_all

LOGPROBS = SGLangLogprobs(tokens=True, top=2, ids=(7,), start=0)
ROW = {"chosen": [-1.0], "top": [[-1.5, -2.0]], "top_ids": [[3, 4]], "named": [[-3.0]]}
ENDED = EndEvent(0, "completed", None, None)


def make_context(logprobs=LOGPROBS, prompt=(1, 2), **fields):
    return SGLangContext(
        id="cmpl-1",
        model="m",
        created=1,
        n=1,
        prompts=[list(prompt)],
        prompt_lengths=[len(prompt)],
        sglang_logprobs=logprobs and [logprobs],
        **fields,
    )


def make_events(number, context):
    scored = {"logprobs": ROW} if context.sglang_logprobs else {}
    length = context.prompt_lengths[0]
    given = {"prompt_logprobs": {name: values * length for name, values in ROW.items()}}
    return [
        ChoiceEvent(
            0, [i], f"{i} ", "stop" if i == number - 1 else None, None,
            scored | (given if scored and not i else {}),
        )
        for i in range(number)
    ]  # fmt: skip


def stream(context, steps, end=ENDED):
    """The chunks as they were when each was made."""
    chunks = context.make_chunks()
    frames = [orjson.dumps(chunk) for step in steps for _, chunk in chunks.make_chunks(step)]
    frames += [orjson.dumps(chunk) for _, chunk in chunks.make_end(end)]
    return [orjson.loads(frame) for frame in frames], sum(map(len, frames))


@pytest.mark.represented_by("prompt0-None", "prompt1-None")
@pytest.mark.parametrize("logprobs", [None, LOGPROBS])
@pytest.mark.parametrize("prompt", [[1, 2], [1] * 3000])
def test_chunks_are_the_output_so_far_and_the_last_is_the_whole(logprobs, prompt) -> None:
    context = make_context(logprobs, prompt)
    events = make_events(900, context)
    chunks, _ = stream(context, [[event] for event in events])
    lengths = [len(chunk["output_ids"]) for chunk in chunks]
    assert lengths == sorted(set(lengths))
    assert (lengths[0], lengths[-1]) == (1, 900)
    assert [chunk["sequence_number"] for chunk in chunks] == list(range(1, len(chunks) + 1))
    for chunk in (chunks[0], chunks[len(chunks) // 2], chunks[-1]):
        length = len(chunk["output_ids"])
        whole = context.make_collected()
        whole.add(events[:length])
        expected = orjson.loads(orjson.dumps(whole.make_response(None)))
        if length < 900:
            expected["meta_info"]["finish_reason"] = None
        assert chunk == expected | {"sequence_number": chunk["sequence_number"]}


def test_a_short_stream_has_a_chunk_for_each_token() -> None:
    context = make_context()
    chunks, _ = stream(context, [[event] for event in make_events(60, context)])
    assert len(chunks) == 60


@pytest.mark.represented_by("None-2000")
@pytest.mark.parametrize(
    ("logprobs", "length"),
    [(None, 2000), (LOGPROBS, 500), pytest.param(LOGPROBS, 2000, marks=pytest.mark.long)],
)
def test_the_bytes_of_a_stream_grow_with_its_length(logprobs, length) -> None:
    context = make_context(logprobs)
    short, long = (
        stream(context, [[event] for event in make_events(number, context)])[1]
        for number in (length, 4 * length)
    )
    assert long < 6 * short


@pytest.mark.represented_by("None-2", "None-900")
@pytest.mark.parametrize(
    ("logprobs", "grouped"),
    stand_for_all([(None, 2), (LOGPROBS, 7), (None, 900)], product([None, LOGPROBS], [2, 7, 900])),
)
def test_chunks_do_not_depend_on_how_events_are_stored(logprobs, grouped) -> None:
    """A stream is read step by step as it comes, and several steps at a time once it is stored."""
    context = make_context(logprobs)
    events = make_events(900, context)
    stored = [events[i : i + grouped] for i in range(0, len(events), grouped)]
    assert stream(context, stored) == stream(context, [[event] for event in events])


@pytest.mark.wide
def test_an_error_comes_after_all_tokens() -> None:
    context = make_context()
    error = EndEvent(0, "failed", JobError("worker_error", "because"), None)
    *_, last, end = stream(context, [[each] for each in make_events(999, context)[:-1]], error)[0]
    assert len(last["output_ids"]) == 998
    assert "error" in end


def test_an_output_without_a_token_has_empty_arrays() -> None:
    context = make_context()
    info = context.make_collected().make_response(None)["meta_info"]
    assert (info["output_token_logprobs"], info["output_token_logprobs_length"]) == ([], 0)
