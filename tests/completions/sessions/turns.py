"""Turns over HTTP: what is sent, and what is answered."""

import json

from completions.models import Job
from completions.requests.past import Turn

CHAT = "/v1/chat/completions"
A, B, EOS = 32, 33, 257
TEMPLATE = "<s><user>{}</s>\n<assistant>"


def body_of(response, status=200):
    assert response.status_code == status, response.content
    return json.loads(response.content)


def refusal(response):
    body = json.loads(response.content)["error"]
    return response.status_code, body["code"], body["param"]


async def say(live, text, session="new", status=200, **fields):
    messages = [{"role": "user", "content": text}]
    body = {"messages": messages, "session": session, "prompt": None, **fields}
    return body_of(await live.post(CHAT, **body), status)


async def request_of(turn_id):
    """The prompt that a turn's worker got, and what the turn stored as given."""
    job = await Job.objects.aget(id=turn_id)
    return Turn.decompress(job.turn)


async def lines_of(response):
    assert response.status_code == 200
    content = b"".join([part async for part in response.streaming_content])
    return [json.loads(line) for line in content.splitlines()]
