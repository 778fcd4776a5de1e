"""The texts of an ended job, for organizations that store them: its prompts and its answers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from completions.accounts import audit
from completions.catalog import model_files
from completions.catalog.entries import CatalogError
from completions.catalog.model_files import ModelFilesError
from completions.contract.json_lines import decompress_lines
from completions.models import Organization, StoredPrompt
from completions.responses.constraint_report import make_report
from completions.responses.whole_response import collect

_PROMPT_TOKENS = 4000
"""The number of prompt tokens shown."""


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """One choice. Texts are empty where it has none."""

    title: str
    """Its number, if there are several, and how it ended."""
    reasoning: str
    content: str
    calls: Sequence[tuple[str, str]]
    """Name and input of each tool call."""
    report: Mapping[str, object]
    """What its constraint did, if the request asked for that."""


def decode_prompt(model: str, ids: Sequence[int]) -> str:
    cut = f" … {len(ids) - _PROMPT_TOKENS} more tokens" if len(ids) > _PROMPT_TOKENS else ""
    prompt = list(ids[:_PROMPT_TOKENS])
    try:
        tokenizer = model_files.load(model_files.load_catalog().choose(model)).tokenizer
    except (CatalogError, ModelFilesError):  # the model is no longer served
        return f"{prompt}{cut}"
    return f"{tokenizer.decode(prompt, skip_special_tokens=False)}{cut}"


def list_answers(stored: StoredPrompt) -> list[ShownAnswer]:
    """Return the choices of a job as its client got them, also of one that did not complete."""
    if stored.events is None:  # of an earlier version, or deleted before it was stored
        return []
    context, *stream = decompress_lines(stored.events)
    collected = collect(stored.job_id, context, stream)
    records = collected.choices.records
    return [_show(collected.make_choice(each), each, len(records)) for each in records]


def describe_late_sight(organization: Organization, began: datetime) -> str:
    """Say that the texts of a job or batch became visible only after it began; empty if they were
    from the start."""
    since = audit.find_last_change(organization, "store_prompts")
    if since is None or since <= began:
        return ""
    return (
        "Older than the switch “Store prompts” of its organization: its texts became visible when "
        f"that was turned on, at {since.astimezone(UTC):%Y-%m-%d %H:%M} UTC."
    )


def _show(choice: Mapping[str, Any], record: Any, count: int) -> ShownAnswer:
    message = choice.get("message") or {"content": choice.get("text")}
    number = f"Choice {record.index}: " if count > 1 else ""
    return ShownAnswer(
        title=f"{number}{choice['finish_reason']}",
        reasoning=message.get("reasoning") or message.get("reasoning_content") or "",
        content=message.get("content") or "",
        calls=[_show_call(call) for call in message.get("tool_calls") or ()],
        report=make_report(record, record.constraint) if record.constraint else {},
    )


def _show_call(call: Mapping[str, Any]) -> tuple[str, str]:
    """Return a call's name and its input, arguments on lines of their own."""
    body = call[call["type"]]
    text = body.get("arguments", body.get("input", ""))
    try:
        return body["name"], json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    except ValueError:  # it was cut, or is no JSON
        return body["name"], text
