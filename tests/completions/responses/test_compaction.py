"""What a compaction seals, and who can open it."""

from typing import Any

import pytest
from django.test import override_settings

from completions.contract.usage import Usage
from completions.exceptions import APIError
from completions.jobs.events import ChoiceEvent
from completions.responses.compaction import CompactionContext, UnsealError, seal, unseal

ITEMS = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Grüße"}]}]
KEPT = {"type": "message", "role": "system", "content": []}


def test_what_is_sealed_is_opened_by_its_organization_alone() -> None:
    content = seal(ITEMS, 1)
    assert "message" not in content
    assert unseal(content, 1) == ITEMS
    with pytest.raises(UnsealError):
        unseal(content, 2)
    with override_settings(SECRET_KEY="another installation's"), pytest.raises(UnsealError):
        unseal(content, 1)


def test_what_is_sealed_opens_to_no_more_than_it_takes() -> None:
    """Else a small body of many such items would fill the memory."""
    text = " " * 100_000
    content = seal([{"type": "message", "role": "user", "content": text}], 1)
    assert len(content) > len(text)


@pytest.mark.parametrize("change", [lambda c: "", lambda c: c[:-4], lambda c: f"{c}\ud800",
                                    lambda c: c.swapcase(), lambda c: "gAAAAAB" * 9])  # fmt: skip
def test_other_content_is_not_opened(change: Any) -> None:
    with pytest.raises(UnsealError):
        unseal(change(seal(ITEMS, 1)), 1)


def collect(text: str) -> dict[str, Any]:
    shown = {"store": False, "kept": [KEPT], "owner": 1}
    collected = CompactionContext("resp_ab", "m", 7, 1, [9], shown=shown).make_collected()
    collected.add([ChoiceEvent(0, [65], text, "stop")])
    return collected.make_response(Usage(9, 1))


def test_a_summary_becomes_an_item_after_those_that_stay() -> None:
    made = collect(" We launch on Tuesday.\n")
    assert (made["id"], made["object"], made["created_at"]) == ("resp_ab", "response.compaction", 7)
    kept, item = made["output"]
    assert kept == {"id": "msg_ab_0", **KEPT}
    assert (item["id"], item["type"]) == ("cmp_ab_1", "compaction")
    asked, said = unseal(item["encrypted_content"], 1)
    assert [asked["role"], said["role"]] == ["user", "assistant"]
    assert said["content"] == [{"type": "output_text", "text": "We launch on Tuesday."}]
    assert made["usage"]["total_tokens"] == 10


def test_no_summary_is_an_error() -> None:
    with pytest.raises(APIError, match="wrote no summary"):
        collect(" \n")
