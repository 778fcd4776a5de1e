"""Sessions over HTTP with a real Redis: what a turn adds, what it comes after."""

import asyncio
import json
import tracemalloc
from functools import partial

import msgspec
import pytest
from msgspec import structs

from completions.exceptions import APIError
from completions.models import Job, Session
from completions.requests.past import Computation, Turn, TurnChoice
from tests.completions.requests.validating import prepared
from tests.completions.sessions.turns import (
    CHAT,
    EOS,
    TEMPLATE,
    A,
    B,
    body_of,
    lines_of,
    refusal,
    request_of,
    say,
)

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


async def test_a_turn_gives_only_what_is_new_and_keeps_each_id(session) -> None:
    first = await say(session, "x")
    assert first["session"]["id"].startswith("session_")
    assert first["session"]["after"] is None
    assert [choice["id"] for choice in first["choices"]] == [f"{first['id']}:0"]
    second = await say(session, "y", first["session"]["id"], return_token_ids=True)
    assert second["session"] == {
        "id": first["session"]["id"],
        "after": f"{first['id']}:0",
        "drift": None,
    }
    given_first, given_second = [(await request_of(each["id"])) for each in (first, second)]
    assert given_first.text == TEMPLATE.format("x")
    assert given_second.text == "\n<user>y</s>\n<assistant>"  # the answer ended itself
    whole = [*given_first.token_ids, A, B, EOS, *given_second.token_ids]
    assert second["choices"][0]["prompt_token_ids"] == whole
    assert second["usage"]["prompt_tokens"] == len(whole)


async def test_an_answer_that_was_cut_is_closed_by_the_next_turn(session) -> None:
    session.worker.run = partial(session.worker.run, tokens=(A, B))
    first = await say(session, "x")
    second = await say(session, "y", first["session"]["id"])
    assert (await request_of(second["id"])).text == "</s>\n<user>y</s>\n<assistant>"
    assert second["session"]["drift"] is None


async def test_turns_after_the_same_choice_are_branches(session) -> None:
    first = await say(session, "x")
    name, choice = first["session"]["id"], f"{first['id']}:0"
    both = await asyncio.gather(*(say(session, text, name, after=choice) for text in "yz"))
    assert [each["session"]["after"] for each in both] == [choice, choice]
    onward = await say(session, "w", name, after=f"{both[0]['id']}:0")
    again = await say(session, "v", name, after="root")
    assert again["session"]["after"] is None
    await asyncio.to_thread(session.settle)
    shown = body_of(await session.http.get(f"/v1/sessions/{name}"))
    after = {turn["id"]: turn["after"] for turn in shown["turns"]}
    assert after == {
        first["id"]: None,
        both[0]["id"]: choice,
        both[1]["id"]: choice,
        onward["id"]: f"{both[0]['id']}:0",
        again["id"]: None,
    }
    path = await session.http.get(
        f"/v1/sessions/{name}/trajectory", {"choice": f"{onward['id']}:0"}
    )
    lines = await lines_of(path)
    assert [line["turn"] for line in lines] == [first["id"], both[0]["id"], onward["id"]]
    assert [line["choice"] for line in lines] == [0, 0, 0]


async def test_answers_are_recorded_once_whether_or_not_a_client_reads_them(session) -> None:
    first = await say(session, "x")
    name = first["session"]["id"]
    accepted = await say(session, "y", name, 202, background=True)
    await asyncio.to_thread(session.settle)
    held = await Session.objects.aget(id=name)
    await asyncio.to_thread(session.settle)
    assert (await Session.objects.aget(id=name)).bytes == held.bytes > 0
    lines = await lines_of(await session.http.get(f"/v1/sessions/{name}/trajectory"))
    assert [line["turn"] for line in lines] == [first["id"], accepted["id"]]
    for line in lines:
        (choice,) = line["choices"]
        assert choice["token_ids"] == [A, B, EOS] == line["receipt"]["output_ids"][0]
        assert choice["message"] == {"role": "assistant", "content": "AB"}
    session.redis.flushall()  # SQL alone has it now
    session.worker.execution.beat("tiny", {})
    third = await say(session, "z", name, return_token_ids=True)
    assert third["session"]["after"] == f"{accepted['id']}:0"
    given = [*lines[0]["given"]["token_ids"], A, B, EOS, *lines[1]["given"]["token_ids"]]
    assert third["choices"][0]["prompt_token_ids"][: len(given)] == given


async def test_a_turn_that_was_closed_is_closed_when_it_is_generated_again(session) -> None:
    name = (await say(session, "x", regex="[A-Z]{2}", close=True))["session"]["id"]
    await say(session, "y", name, regex="[A-Z]{2}")
    await asyncio.to_thread(session.settle)
    lines = await lines_of(await session.http.get(f"/v1/sessions/{name}/trajectory"))
    assert [line["request"].get("close", False) for line in lines] == [True, False]
    assert [line["receipt"]["close"] for line in lines] == [True, False]


async def test_a_turn_of_another_version_is_read_and_exported(session) -> None:
    first = await say(session, "x")
    await asyncio.to_thread(session.settle)
    job = await Job.objects.aget(id=first["id"])
    computation = Computation.decompress(job.turn)
    request = msgspec.json.decode(computation.request) | {"field_of_another_version": 1}
    changed = structs.replace(computation, request=msgspec.Raw(json.dumps(request).encode()))
    job.turn = Turn.decompress(job.turn).compress(changed)
    await job.asave()
    name = first["session"]["id"]
    assert (await say(session, "y", name))["session"]["after"] == f"{first['id']}:0"
    await asyncio.to_thread(session.settle)
    line = (await lines_of(await session.http.get(f"/v1/sessions/{name}/trajectory")))[0]
    assert line["request"]["max_tokens"] == request["sampling"]["max_tokens"]


def test_a_path_is_read_without_its_grammars() -> None:
    turn = Turn(token_ids=list(range(30_000)), choices=[TurnChoice([1])])
    content = turn.compress(Computation(msgspec.Raw(b'"%b"' % (b"g" * 10**6)), None))
    assert Turn.decompress(content) == turn
    tracemalloc.start()
    Turn.decompress(content)
    assert tracemalloc.get_traced_memory()[1] < 10**6 * 2
    tracemalloc.stop()


async def test_a_turn_that_failed_a_moment_ago_is_passed_over(session) -> None:
    first = await say(session, "x")
    name = first["session"]["id"]
    session.at_once = False
    second = await say(session, "y", name, 202, background=True)
    session.worker.run(second["id"], "failed", "worker_error")
    session.at_once = True
    failed = await session.post(
        CHAT,
        messages=[{"role": "user", "content": "z"}],
        session=name,
        after=f"{second['id']}:0",
        prompt=None,
    )
    assert refusal(failed) == (400, "invalid_value", "after")
    third = await say(session, "z", name)
    assert third["session"]["after"] == f"{first['id']}:0"


async def test_no_turn_follows_one_whose_answer_is_gone(session) -> None:
    """Where Redis loses a turn that SQL did not have yet, it is computed again, and may fail."""
    first = await say(session, "x")
    name = first["session"]["id"]
    second = await say(session, "y", name)
    await asyncio.to_thread(session.settle)
    job = await Job.objects.aget(id=first["id"])
    job.turn, job.status = (
        structs.replace(Turn.decompress(job.turn), choices=()).compress(),
        "failed",
    )
    await job.asave()
    body = {"messages": [{"role": "user", "content": "z"}], "session": name, "prompt": None}
    for after in (None, f"{second['id']}:0"):
        assert refusal(await session.post(CHAT, after=after, **body))[2] == "after"


async def test_turns_at_once_follow_no_choice_that_a_client_did_not_name(session) -> None:
    """Only the first of them is the next turn."""
    first = await say(session, "x")
    name = first["session"]["id"]
    messages = [{"role": "user", "content": "y"}]
    body = {"messages": messages, "session": name, "prompt": None}
    answers = await asyncio.gather(*(session.post(CHAT, **body) for _ in range(4)))
    made = [body_of(answer) for answer in answers if answer.status_code == 200]
    others = [refusal(answer) for answer in answers if answer.status_code != 200]
    assert set(others) <= {(409, "turn_in_progress", "after")}
    befores = [each["session"]["after"] for each in made]
    assert len(set(befores)) == len(befores) > 0


async def test_a_session_counts_the_prompts_that_its_turns_return(session) -> None:
    first = body_of(await session.post(session="new", prompt=[1] * 60, return_token_ids=True))
    job = await Job.objects.aget(id=first["id"])
    held = await Session.objects.aget(id=first["session"]["id"])
    assert held.bytes >= len(json.dumps(job.context, separators=(",", ":"))) > 120


async def test_token_ids_go_on_from_token_ids(session) -> None:
    first = body_of(await session.post(session="new", prompt=[1, 2, 3]))
    name = first["session"]["id"]
    second = body_of(await session.post(session=name, prompt=[4], return_token_ids=True))
    assert second["choices"][0]["prompt_token_ids"] == [1, 2, 3, A, B, EOS, 4]
    refused = await session.post(CHAT, session=name, messages=[{"content": "a"}], prompt=None)
    assert refusal(refused) == (400, "invalid_value", "messages")


async def test_a_session_is_made_before_its_first_turn(session) -> None:
    body = {"model": "tiny", "expires_after": {"anchor": "last_active_at", "seconds": 60}}
    made = body_of(await session.post("/v1/sessions", **body, prompt=None, max_tokens=None), 400)
    assert made["error"]["code"] == "unknown_parameter"
    made = body_of(
        await session.http.post("/v1/sessions", json.dumps(body), content_type="application/json")
    )
    assert (made["model"], made["on_drift"], made["bytes"]) == ("tiny", "keep", 0)
    assert made["expires_at"] - made["created_at"] == 60
    first = await say(session, "x", made["id"])
    assert first["session"] == {"id": made["id"], "after": None, "drift": None}
    listed = body_of(await session.http.get("/v1/sessions"))
    assert [row["id"] for row in listed["data"]] == [made["id"]]
    deleted = body_of(await session.http.delete(f"/v1/sessions/{made['id']}"))
    assert deleted == {"id": made["id"], "object": "session", "deleted": True}
    assert not await Job.objects.aexists()


async def test_a_turn_is_deleted_with_its_session_only(session) -> None:
    first = await say(session, "x")
    answer = await session.http.delete(f"{CHAT}/{first['id']}")
    assert refusal(answer) == (409, "completion_in_session", "id")


async def test_a_turn_can_be_sent_again(session) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "session": "new", "prompt": None}
    first, again = [body_of(await session.post(CHAT, key="k", **body)) for _ in range(2)]
    assert first == again
    assert await Session.objects.acount() == 1


async def test_what_happens_when_the_template_writes_an_answer_in_another_way(session) -> None:
    session.worker.run = partial(session.worker.run, tokens=(B, A, EOS))  # whose text is AB
    first = await say(session, "x")
    name, choice = first["session"]["id"], f"{first['id']}:0"
    kept = await say(session, "y", name, after=choice, return_token_ids=True)
    assert kept["session"]["drift"] == {"from_message": 1, "action": "keep"}
    assert (await request_of(kept["id"])).text == "\n<user>y</s>\n<assistant>"
    assert B in kept["choices"][0]["prompt_token_ids"]
    messages = [{"role": "user", "content": "y"}]
    body = {"messages": messages, "session": name, "after": choice, "prompt": None}
    failed = await session.post(CHAT, **body, on_drift="fail")
    assert refusal(failed) == (409, "session_drift", "messages")
    rebased = await say(session, "y", name, after=choice, on_drift="rebase", return_token_ids=True)
    assert rebased["session"]["drift"] == {"from_message": 1, "action": "rebase"}
    turn = await request_of(rebased["id"])
    assert turn.is_rebased
    assert turn.text == "<s><user>x</s>\n<assistant>AB</s>\n<user>y</s>\n<assistant>"
    assert rebased["choices"][0]["prompt_token_ids"] == turn.token_ids
    onward = await say(session, "z", name, after=f"{rebased['id']}:0", return_token_ids=True)
    given = [*turn.token_ids, B, A, EOS]
    assert onward["choices"][0]["prompt_token_ids"][: len(given)] == given
    assert onward["session"]["drift"] == {"from_message": 3, "action": "keep"}


async def test_what_the_prompt_depends_on_holds_for_later_turns(session) -> None:
    variables = {"chat_template_kwargs": {"unread": 1}}
    first = await say(session, "x", **variables)
    second = await say(session, "y", first["session"]["id"])
    assert (await request_of(second["id"])).fields == variables
    other = {"chat_template_kwargs": {"unread": 2}}
    third = await say(session, "z", first["session"]["id"], **other)
    assert (await request_of(third["id"])).fields == other


@pytest.mark.usefixtures("served")
def test_a_line_of_a_batch_is_no_turn() -> None:
    with pytest.raises(APIError) as caught:
        prepared({"model": "tiny", "prompt": [1], "session": "new"})
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "session")
