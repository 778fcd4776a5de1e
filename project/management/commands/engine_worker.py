"""`manage.py engine_worker`: one engine, one model, one GPU (or the CPU).

It needs the settings but no Django application. manage.py runs it without `django.setup()`, which
saves a second.
"""

import logging.config
import sys
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from completions.catalog import entries
from project.celery import make_engine_app


class Command(BaseCommand):
    help = "Run an engine worker for one model of models.toml."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--model", help="model id; may be left out when there is only one")

    def handle(self, *args: Any, **options: Any) -> None:
        from workers.launch import WorkerOptions, check_device, run

        try:
            models = entries.load(settings.MODELS_FILE, settings.MODELS_DIR)
            entry = models.choose(options["model"])
        except entries.CatalogError as error:
            raise CommandError(str(error)) from error
        if settings.TENSOR_PARALLEL_SIZE and entry is next(iter(models)):
            entry = replace(entry, tensor_parallel_size=settings.TENSOR_PARALLEL_SIZE)
        if not (entry.folder / "config.json").exists():
            raise CommandError(
                f"{entry.id} is not in {entry.folder}; run: manage.py prepare_model {entry.id}"
            )
        try:
            check_device(settings.DEVICE)
        except ValueError as error:
            raise CommandError(str(error)) from error
        worker_options = WorkerOptions(
            redis_url=settings.REDIS_URL,
            redis_prefix=settings.REDIS_PREFIX,
            device=settings.DEVICE,
            dtype=settings.DTYPE,
            shutdown_grace=settings.SHUTDOWN_GRACE,
            step_limit=settings.STEP_LIMIT,
            step_ms=settings.STEP_MS,
            max_held_bytes=settings.MAX_HELD_BYTES,
        )
        sys.exit(run(make_engine_app(), entry, worker_options))


def main(arguments: list[str]) -> None:
    """Run the command line `arguments`. Of `django.setup()`, only the logging is set up."""
    logging.config.dictConfig(settings.LOGGING)
    Command().run_from_argv(arguments)
