"""Requests that make no job, or are refused after long checks, count toward a key's limit."""

import json
from typing import Any

import pytest
from django.utils import timezone

from completions.accounts import changes
from completions.models import Batch, BatchStatus

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]

LONG = "x" * 4000


@pytest.fixture
def limited(live, owner) -> dict[str, str]:
    """The headers of a key with two requests per minute."""
    _, secret = changes.create(owner.organization, "limited", requests_per_minute=2)
    return {"Authorization": f"Bearer {secret}"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/tokenize", {"prompt": "a"}, 200),
        ("/v1/detokenize", {"tokens": [65]}, 200),
        ("/v1/grammars/validate", {"regex": "a"}, 200),
        ("/v1/completions", {"prompt": [65], "max_tokens": 1, "user": LONG}, 400),
        ("/v1/chat/completions", {"messages": [{"content": LONG}]}, 400),
    ],
)
async def test_the_third_of_two_per_minute_is_refused(
    live, limited, path: str, body: dict[str, Any], status: int
) -> None:
    content = json.dumps({"model": "tiny", **body})
    for left in ("1", "0"):
        response = await live.http.post(
            path, content, content_type="application/json", headers=limited
        )
        assert response.status_code == status
        assert response.headers["x-ratelimit-remaining-requests"] == left
    response = await live.http.post(path, content, content_type="application/json", headers=limited)
    assert response.status_code == 429
    assert json.loads(response.content)["error"]["type"] == "requests"


async def test_a_batch_that_is_sent_again_counts_as_one_that_is_created(
    live, limited, owner
) -> None:
    """Each time, all lines of its file are stored again."""
    batch = await Batch.objects.acreate(
        organization=owner.organization,
        api_key=owner.key,
        endpoint="/v1/completions",
        completion_window="24h",
        status=BatchStatus.FAILED,
        expires_at=timezone.now(),
        output_seconds=3600,
    )
    for status in (409, 409, 429):
        response = await live.http.post(f"/v1/batches/{batch.id}/resubmit", headers=limited)
        assert response.status_code == status


async def test_a_long_request_with_a_job_counts_once(live, limited) -> None:
    body = {"model": "tiny", "prompt": [[65]] * 9, "max_tokens": 1}
    response = await live.http.post(
        "/v1/completions", json.dumps(body), content_type="application/json", headers=limited
    )
    assert response.status_code == 200
    assert response.headers["x-ratelimit-remaining-requests"] == "1"
