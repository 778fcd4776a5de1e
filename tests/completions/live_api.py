"""The API on one event loop, a real Redis and a worker without an engine."""

import asyncio
import json

from django.test import AsyncClient

from completions.jobs.store import JobStore
from completions.maintenance import settlement
from tests.completions.fake_worker import FakeWorker

PREFIX = "j:"
PATH = "/v1/completions"


class Caller:
    """A client with a tenant's key."""

    def __init__(self, tenant):
        self._client = AsyncClient()
        self._key = tenant.headers

    def __getattr__(self, method):
        def call(*args, headers=None, **options):
            headers = {**self._key, **(headers or {})}
            return getattr(self._client, method)(*args, headers=headers, **options)

        return call


class Live:
    """The API on one event loop; published jobs run at once, or when the test says."""

    def __init__(self, tenant, client):
        self.redis = client
        self.worker = FakeWorker(client, PREFIX)
        self.http = Caller(tenant)
        self.at_once = True
        self.sent = []
        self.dispatched = asyncio.Event()
        self.process = None  # the fixture starts it

    async def dispatch(self, job_id):
        self.sent.append(job_id)
        self.dispatched.set()
        if self.at_once:
            await asyncio.to_thread(self.worker.run, job_id)

    async def post(self, path=PATH, key=None, headers=None, **body):
        body = {"model": "tiny", "prompt": [65], "max_tokens": 2, **body}
        headers = {**(headers or {}), **({"Idempotency-Key": key} if key else {})}
        return await self.http.post(
            path, json.dumps(body), content_type="application/json", headers=headers
        )

    def settle(self):
        return settlement.settle(JobStore(self.redis, PREFIX))
