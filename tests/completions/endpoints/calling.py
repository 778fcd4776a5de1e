"""What calls of the completions API answer."""

import json
from typing import Any


async def body_of(response: Any) -> Any:
    if response.streaming:
        return b"".join([part async for part in response.streaming_content])
    return json.loads(response.content)


def code(response: Any, status: int) -> str:
    assert response.status_code == status, response.content
    shown: str = json.loads(response.content)["error"]["code"]
    return shown
