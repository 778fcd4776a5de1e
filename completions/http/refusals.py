"""Counts the requests that are refused, where their answers leave the process."""

from collections.abc import Mapping
from typing import Any

from completions.http import access_log
from completions.http.process import WebProcess
from completions.usage.refusals import RefusalCounter


def count(scope: Mapping[str, Any], status: int, facts: dict[str, Any]) -> None:
    """Count an answered request if it was refused, for its key or, without a valid one, for its
    address. Takes the error out of the facts."""
    error = facts.pop(access_log.ERROR, None)
    if error is None or error.ends_job or status < 400:
        return
    if "api_key" in facts:
        owner = (facts["organization"], facts["api_key"])
        _find(scope).count(*owner, error.code, error.message, facts["request_id"])
    elif "wrong_key" in facts:
        address, _port = scope.get("client") or ("", 0)
        _find(scope).count_wrong_key(facts["wrong_key"], address, error.code)


def _find(scope: Mapping[str, Any]) -> RefusalCounter:
    process: WebProcess = scope["state"]["process"]
    return process.refusals
