"""What Django works out anew for each test, though it is the same each time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.apps import apps
from django.contrib.contenttypes.models import ContentType
from django.core.management.commands import flush
from django.db import transaction
from whitenoise.middleware import WhiteNoiseMiddleware


@contextmanager
def keep() -> Iterator[None]:
    """Work it out once in this process."""
    with pytest.MonkeyPatch.context() as patch:
        _keep_rows(patch)
        _keep_static_files(patch)
        yield


def _keep_rows(patch: pytest.MonkeyPatch) -> None:
    """Insert content types, permissions and roles after a flush, which the handlers of
    `post_migrate` otherwise make one by one."""
    make, kept = flush.emit_post_migrate_signal, []

    def fill(*args: Any, **options: Any) -> None:
        if kept:
            ContentType.objects.clear_cache()
            with transaction.atomic():  # which checks at its end whether each reference has its row
                for rows in kept:
                    type(rows[0])._base_manager.bulk_create(rows)
        else:
            make(*args, **options)
            every = apps.get_models(include_auto_created=True)
            tables = [list(model._base_manager.all()) for model in every]
            kept.extend(rows for rows in tables if rows)

    patch.setattr(flush, "emit_post_migrate_signal", fill)


def _keep_static_files(patch: pytest.MonkeyPatch) -> None:
    """Keep the files that WhiteNoise finds, for which each new client of a test would search."""
    search, kept = WhiteNoiseMiddleware.add_files_from_finders, {}

    def add(middleware: Any) -> None:
        if not kept:
            search(middleware)
            kept.update(middleware.files)
        middleware.files.update(kept)

    patch.setattr(WhiteNoiseMiddleware, "add_files_from_finders", add)
