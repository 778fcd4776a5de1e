"""Ended batches with results, in a storage of the test's own."""

from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from completions.models import Batch
from tests.completions.admin.conftest import admin, in_role  # noqa: F401 - fixtures
from tests.completions.conftest import Tenant
from tests.completions.console.batch_of_results import ended_batch, reviewed_batch


@pytest.fixture
def folder(settings: Settings, tmp_path: Path) -> None:
    """A storage of the test's own."""
    backend = "django.core.files.storage.FileSystemStorage"
    own = {"BACKEND": backend, "OPTIONS": {"location": str(tmp_path / "files")}}
    settings.STORAGES = {**settings.STORAGES, "default": own}


@pytest.fixture
def batch(served: None, owner: Tenant) -> Batch:
    owner.organization.store_prompts = True
    owner.organization.save()
    owner.key.organization = owner.organization
    return ended_batch(owner.key, 140)


@pytest.fixture
def reviewed(served: None, owner: Tenant) -> Batch:
    owner.organization.store_prompts = True
    owner.organization.save()
    owner.key.organization = owner.organization
    return reviewed_batch(owner.key, 84)
