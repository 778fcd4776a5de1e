"""Rows of adapters, sessions, queue, cache and ids, and of fields without effect."""

import uuid

from tests.acceptance.contract.answers import Answer, Form
from tests.acceptance.contract.rows import (
    BAD,
    BOOLEAN,
    INTEGER,
    TEXT,
    TOO_HIGH,
    TOO_LOW,
    Refused,
    Row,
    ignored,
    row,
    wrong,
)
from tests.acceptance.small_model import ADAPTER, SMALL


def another(answer: Answer, control: Answer | None) -> None:
    assert control is not None
    for given, without in zip(answer.each("token_ids"), control.each("token_ids"), strict=True):
        assert given != without
    assert answer.body["model"] == SMALL


def uncached(answer: Answer, _: Answer | None) -> None:
    assert answer.usage["prompt_tokens_details"] == {"cached_tokens": 0}


def own_id(answer: Answer, _: Answer | None) -> None:
    rid = answer.body["rid"]
    assert rid.startswith("job-")
    numbered = (
        [rid] if answer.form.choices == 1 else [f"{rid}_{i}" for i in range(answer.form.choices)]
    )
    assert [info["id"] for info in answer.each("meta_info")] == numbered


def one_prompt(form: Form) -> bool:
    return form.prompts == 1


def in_session(answer: Answer, _: Answer | None) -> None:
    assert answer.body["session"]["id"].startswith("session_")
    assert answer.each("id") == [f"{answer.body['id']}:{i}" for i in range(answer.form.choices)]


TEXTS = (
    "user", "safety_identifier", "prompt_cache_key", "guided_decoding_backend",
    "guided_whitespace_pattern",
)  # fmt: skip


ROWS: list[Row] = [
    row(
        "lora_path",
        ADAPTER,
        another,
        [
            *wrong("lora_path", 1, True, {}),
            Refused({"lora_path": "../x"}, "adapter_not_found", "lora_path", 404),
            Refused({"lora_path": [ADAPTER] * 3}, BAD, "lora_path"),
        ],
        control=True,
    ),
    Row("lora_path", lambda form: {"lora_path": [ADAPTER] * form.prompts}, another, control=True),
    row(
        "adapter",
        ADAPTER,
        another,
        [
            *wrong("adapter", *TEXT),
            Refused({"adapter": "nobody"}, "adapter_not_found", "adapter", 404),
            *wrong("adapter", {"generation": "0" * 64}, code="unsupported_value"),
        ],
        control=True,
    ),
    row(
        "session",
        "new",
        in_session,
        [
            *wrong("session", *TEXT),
            Refused({"session": "session_0"}, "session_not_found", "session", 404),
        ],
        fits=one_prompt,
        alike=False,
    ),
    row(
        "after",
        "root",
        in_session,
        [
            *wrong("after", *TEXT),
            *wrong("after", "x" * 81, "root", code=BAD),
            Refused({"session": "new", "after": "nobody"}, BAD, "after"),
        ],
        beside={"session": "new"},
        fits=one_prompt,
        alike=False,
    ),
    row(
        "on_drift",
        "rebase",
        in_session,
        [*wrong("on_drift", *TEXT), *wrong("on_drift", "x", "keep", code=BAD)],
        beside={"session": "new"},
        fits=one_prompt,
        alike=False,
    ),
    row(
        "priority",
        -5,
        lambda answer, _: None,
        [
            *wrong("priority", *INTEGER),
            *wrong("priority", 101, code=TOO_HIGH),
            *wrong("priority", -101, code=TOO_LOW),
            Refused({"priority": 1}, "permission_denied", "priority", 403),
        ],
    ),
    Row(
        "cache_salt",
        lambda form: {"cache_salt": uuid.uuid4().hex},
        uncached,
        refused=[*wrong("cache_salt", *TEXT), *wrong("cache_salt", "x" * 257, code=BAD)],
    ),
    Row(
        "rid",
        lambda form: {"rid": f"job-{uuid.uuid4()}"},
        own_id,
        refused=[
            *wrong("rid", 1, True, {}),
            *wrong("rid", "", "a b", "x" * 65, ["a", "b", "c"], code=BAD),
        ],
    ),
    *[
        row(name, "x", ignored(name), [*wrong(name, *TEXT), *wrong(name, "x" * 257, code=BAD)])
        for name in TEXTS
    ],
    *[
        row(name, "auto", ignored(name), wrong(name, *TEXT))
        for name in ("service_tier", "prompt_cache_retention")
    ],
    row("metadata", {"a": "b"}, ignored("metadata"), wrong("metadata", 1, "x", [])),
    row("store", False, ignored("store"), wrong("store", *BOOLEAN)),
    row("background", False, lambda answer, _: None, wrong("background", *BOOLEAN)),
    row(
        "completion_window",
        None,
        lambda answer, _: None,
        [
            Refused({"completion_window": "5m"}, BAD, "completion_window"),
            *(
                Refused({"background": True, "completion_window": window}, BAD, "completion_window")
                for window in ("0m", "-5m", "8d", "5 parsecs")
            ),
            *wrong("completion_window", *TEXT),
        ],
    ),
    row(
        "on_late",
        None,
        lambda answer, _: None,
        [
            Refused({"on_late": "refuse"}, BAD, "on_late"),
            *wrong("on_late", *TEXT),
            *wrong("on_late", "run", code=BAD),
        ],
    ),
]
