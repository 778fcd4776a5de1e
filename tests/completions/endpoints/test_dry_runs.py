"""A dry run that nobody waits for."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from completions.batches.validation import InterruptedValidationError
from completions.endpoints import batches
from completions.exceptions import APIError
from completions.models import Batch, File
from tests.completions.conftest import FakeProcess


@pytest.mark.django_db(transaction=True)
def test_a_dry_run_ends_when_its_client_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 50,000 lines takes minutes, and only a few files are checked at a time."""
    began, ended = threading.Event(), threading.Event()

    def slow(_batch: Batch, _validator: Any, _cache_of: Any, alive: Any) -> Any:
        began.set()
        late = time.monotonic() + 120
        while alive():
            assert time.monotonic() < late
            time.sleep(0.01)
        ended.set()
        raise InterruptedValidationError

    monkeypatch.setattr(batches, "perform_dry_run", slow)
    batch = Batch(endpoint="/v1/completions", completion_window="24h")
    owner: Any = SimpleNamespace(organization_id=1, key_id=1)
    process: Any = FakeProcess()

    async def hang_up() -> None:
        asked = asyncio.create_task(batches._rehearse(process, batch, File(), owner))
        assert await asyncio.to_thread(began.wait, 120)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(hang_up())
    assert ended.is_set()


@pytest.mark.django_db(transaction=True)
def test_dry_runs_that_wait_are_bounded(owner, settings, monkeypatch):
    """As batches that wait for their validation are."""
    settings.MAX_VALIDATING_BATCHES = 3
    hold = threading.Event()

    def slow(_batch: Batch, _validator: Any, _cache_of: Any, _alive: Any) -> Any:
        hold.wait(60)
        return SimpleNamespace(forecast={})

    monkeypatch.setattr(batches, "perform_dry_run", slow)
    asking: Any = SimpleNamespace(organization_id=owner.organization.pk, key_id=owner.key.pk)
    process: Any = FakeProcess()

    def dry_run() -> Any:
        batch = Batch(endpoint="/v1/completions", completion_window="24h")
        return batches._rehearse(process, batch, File(), asking)

    async def ask() -> None:
        checks = process.checks
        waiting = []
        for number in range(3):
            waiting.append(asyncio.create_task(dry_run()))
            while checks.files.count(asking.organization_id) <= number:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        with pytest.raises(APIError) as refused:
            await dry_run()
        assert refused.value.code == "batch_limit_exceeded"
        hold.set()
        assert await asyncio.gather(*waiting) == [{}, {}, {}]
        assert checks.files.count(asking.organization_id) == 0
        assert await dry_run() == {}

    asyncio.run(ask())


@pytest.mark.django_db(transaction=True)
def test_dry_runs_that_come_together_are_bounded(owner, settings, monkeypatch):
    settings.MAX_VALIDATING_BATCHES = 3
    hold = threading.Event()

    def slow(_batch: Batch, _validator: Any, _cache_of: Any, _alive: Any) -> Any:
        hold.wait(60)
        return SimpleNamespace(forecast={})

    monkeypatch.setattr(batches, "perform_dry_run", slow)
    asking: Any = SimpleNamespace(organization_id=owner.organization.pk, key_id=owner.key.pk)
    process: Any = FakeProcess()

    async def ask() -> Any:
        together = [
            asyncio.create_task(
                batches._rehearse(
                    process,
                    Batch(endpoint="/v1/completions", completion_window="24h"),
                    File(),
                    asking,
                )
            )
            for _ in range(8)
        ]
        refused, _ = await asyncio.wait(together, timeout=0)
        while len(refused) < 5 and process.checks.files.count(asking.organization_id) < 4:
            refused, _ = await asyncio.wait(together, timeout=0.01)
        hold.set()
        return await asyncio.gather(*together, return_exceptions=True)

    answers = asyncio.run(ask())
    assert answers.count({}) == 3
    codes = [each.code for each in answers if isinstance(each, APIError)]
    assert codes == ["batch_limit_exceeded"] * 5
