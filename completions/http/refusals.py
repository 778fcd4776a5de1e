"""Counts the requests that are refused, where their answers leave the process."""

from collections.abc import Mapping
from typing import Any

from completions.http import access_log
from completions.http.process import WebProcess
from completions.usage.refusals import RefusalCounter

_HIDDEN = "{}: the answer may quote the request, and its organization does not store prompts."


def count(scope: Mapping[str, Any], status: int, facts: dict[str, Any]) -> None:
    """Count an answered request if it was refused, for its key or, without a valid one, for its
    address. Takes the facts out that no log line has."""
    error = facts.pop(access_log.ERROR, None)
    stores_prompts = facts.pop(access_log.STORES_PROMPTS, False)
    if error is None or error.ends_job or status < 400:
        return
    if "api_key" in facts:
        owner = (facts["organization"], facts["api_key"])
        # What names a parameter may quote its value.
        may_store = stores_prompts or error.param is None
        message = error.message if may_store else _HIDDEN.format(facts.get("param", "a parameter"))
        _find(scope).count(*owner, error.code, message, facts["request_id"])
    elif "wrong_key" in facts:
        address, _port = scope.get("client") or ("", 0)
        _find(scope).count_wrong_key(facts["wrong_key"], address, error.code)


def _find(scope: Mapping[str, Any]) -> RefusalCounter:
    process: WebProcess = scope["state"]["process"]
    return process.refusals
