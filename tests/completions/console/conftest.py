"""Ended batches with results, in a storage of the test's own."""

import pytest

from completions.models import Batch
from tests.completions.conftest import Tenant
from tests.completions.console.batch_of_results import ended_batch, reviewed_batch


@pytest.fixture
def batch(served: None, open_owner: Tenant) -> Batch:
    return ended_batch(open_owner.key, 140)


@pytest.fixture
def reviewed(served: None, open_owner: Tenant) -> Batch:
    return reviewed_batch(open_owner.key, 84)


@pytest.fixture
def open_owner(owner: Tenant) -> Tenant:
    """A tenant whose texts the admin shows."""
    owner.organization.store_prompts = True
    owner.organization.save()
    owner.key.organization = owner.organization
    return owner
