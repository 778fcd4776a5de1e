"""`manage.py engine_worker`: one engine, one model at a time, one GPU (or the CPU).

It needs the settings but no Django application. manage.py runs it without `django.setup()`, which
saves a second.
"""

import logging
import logging.config
import sys
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from completions.catalog import entries
from completions.catalog.entries import ModelEntry
from completions.jobs.sharding.shards import Layout
from project.celery import make_engine_app

logger = logging.getLogger(__name__)


class Command(BaseCommand):
    help = "Run an engine worker for a model of models.toml, or for several by turns."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        served = parser.add_mutually_exclusive_group()
        served.add_argument("--model", help="model id; may be left out when there is only one")
        served.add_argument(
            "--models",
            metavar="A,B,...",
            type=lambda text: text.split(","),
            help="ids of models of which one at a time is loaded, by what waits",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            catalog = entries.load(settings.MODELS_FILE, settings.MODELS_DIR)
            names = options["models"] or [options["model"]]
            chosen = [_require_files(catalog.choose(name)) for name in names]
        except entries.CatalogError as error:
            raise CommandError(str(error)) from error
        if len({entry.id for entry in chosen}) < len(chosen):
            raise CommandError(f"--models names a model twice: {', '.join(names)}")
        _check_device()
        if len(chosen) > 1:
            sys.exit(_swap([entry.id for entry in chosen]))
        [entry] = chosen
        if settings.TENSOR_PARALLEL_SIZE and entry is next(iter(catalog)):
            entry = replace(entry, tensor_parallel_size=settings.TENSOR_PARALLEL_SIZE)
        _log_chat_style(entry)
        sys.exit(_serve(entry))


def _require_files(entry: ModelEntry) -> ModelEntry:
    if not (entry.folder / "config.json").exists():
        raise CommandError(
            f"{entry.id} is not in {entry.folder}; run: manage.py prepare_model {entry.id}"
        )
    return entry


def _check_device() -> None:
    from workers.launch import check_device

    try:
        check_device(settings.DEVICE)
    except ValueError as error:
        raise CommandError(str(error)) from error


def _log_chat_style(entry: ModelEntry) -> None:
    """Log how the model calls tools and thinks. The web tier decides it by the same files."""
    from completions.catalog import model_files
    from completions.chat.chat_style import find_chat_style

    try:
        find_chat_style(model_files.load(entry))  # says it itself
    except model_files.ModelFilesError as error:
        logger.warning("no request can use %s: %s", entry.id, error)


def _serve(entry: ModelEntry) -> int:
    from workers.launch import WorkerOptions, run

    options = WorkerOptions(
        redis=Layout.read(settings),
        device=settings.DEVICE,
        dtype=settings.DTYPE,
        shutdown_grace=settings.SHUTDOWN_GRACE,
        step_limit=settings.STEP_LIMIT,
        step_ms=settings.STEP_MS,
        max_held_bytes=settings.MAX_HELD_BYTES,
        adapter_store=settings.ADAPTER_STORE,
        max_adapter_bytes=settings.ADAPTER_MEMORY,
    )
    return run(make_engine_app(), entry, options)


def _swap(models: list[str]) -> int:
    from project.processes.swapper import Swapper

    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "engine_worker", "--model"]
    with Layout.read(settings).open() as shards:
        grace = settings.SHUTDOWN_GRACE
        return Swapper(shards, models, lambda model: [*command, model], grace).run()


def main(arguments: list[str]) -> None:
    """Run the command line `arguments`. Of `django.setup()`, only the logging is set up."""
    logging.config.dictConfig(settings.LOGGING)
    Command().run_from_argv(arguments)
