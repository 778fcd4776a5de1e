"""When keys were used last: from many web processes to SQL, in bulk."""

import asyncio
from datetime import UTC, datetime

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from redis import Redis

from completions.accounts import last_use
from completions.jobs.connection import connect_async
from completions.jobs.store import JobStore
from tests.completions.conftest import Tenant
from tests.conftest import PrivateValkey

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


def test_uses_reach_sql_in_bulk(
    owner: Tenant, stranger: Tenant, valkey: PrivateValkey, redis_client: Redis
) -> None:
    async def note(used: dict[int, float]) -> None:
        client = connect_async(valkey.url)
        await last_use.note(JobStore(client, "u:"), used)
        await client.aclose()

    gone = 10**9
    asyncio.run(note({owner.key.pk: 1_000_000_000.0, gone: 1.0}))
    asyncio.run(note({stranger.key.pk: 1_100_000_000.0, owner.key.pk: 1_200_000_000.0}))
    with CaptureQueriesContext(connection) as queries:
        assert last_use.flush(JobStore(redis_client, "u:")) == 3
    assert len([query for query in queries if query["sql"].startswith("UPDATE")]) == 1
    for tenant, at in ((owner, 1_200_000_000), (stranger, 1_100_000_000)):
        tenant.key.refresh_from_db()
        assert tenant.key.last_used_at == datetime.fromtimestamp(at, UTC)
    assert last_use.flush(JobStore(redis_client, "u:")) == 0
