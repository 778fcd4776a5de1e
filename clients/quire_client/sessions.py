"""Sessions: conversations whose exact token ids the service keeps."""

import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from quire_client.exchange import Body, Send, Verb, request, retry

Run = Callable[[Verb[Any]], Any]


class Sessions:
    """`quire.sessions`. With `AsyncQuire`, each method returns an awaitable of the same.

    A turn carries an `Idempotency-Key`, so that one whose answer was lost is sent again without
    running twice.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def create(self, **fields: Any) -> Any:
        """Make a session. Returns the session object; `fields` are those of `POST /v1/sessions`."""
        return self._run(request("POST", "/sessions", fields))

    def chat(self, session: str, messages: Sequence[Any], **fields: Any) -> Any:
        """Add messages and return the chat completion that answers them. `session` is an id, or
        `new`; `fields` are those of a chat completion, such as `after`."""
        body = {"session": session, "messages": list(messages), **fields}
        return self._run(_turn("/chat/completions", body))

    def complete(self, session: str, prompt: Sequence[int] | str, **fields: Any) -> Any:
        """Add token ids, or a text, and return the completion that goes on from them."""
        return self._run(_turn("/completions", {"session": session, "prompt": prompt, **fields}))

    def list(self, **query: Any) -> Any:
        """Return a page of sessions; `query` has `limit`, `after` and `order`."""
        text = "&".join(f"{name}={value}" for name, value in query.items())
        return self._run(request("GET", f"/sessions?{text}" if text else "/sessions"))

    def get(self, session_id: str) -> Any:
        """Return the session object with its turns."""
        return self._run(request("GET", f"/sessions/{session_id}"))

    def delete(self, session_id: str) -> Any:
        """Delete a session and its turns."""
        return self._run(request("DELETE", f"/sessions/{session_id}"))

    def trajectory(self, session_id: str, choice: str | None = None) -> Any:
        """Return the turns of a session, or those up to a choice: a list of JSON objects."""
        return self._run(_read_trajectory(session_id, choice))


def _turn(path: str, body: Body) -> Verb[Body]:
    return request("POST", path, body, {"Idempotency-Key": str(uuid.uuid4())})


def _read_trajectory(session_id: str, choice: str | None) -> Verb[Sequence[Body]]:
    query = "" if choice is None else f"?choice={choice}"
    answer = yield from retry(Send("GET", f"/sessions/{session_id}/trajectory{query}"))
    return [json.loads(line) for line in answer.text.split("\n") if line]
