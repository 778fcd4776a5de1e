"""`manage.py prepare_model [ID ...]`: bring checkpoints of models.toml onto this machine."""

import time
from argparse import ArgumentParser

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from completions.catalog import entries, model_files
from completions.chat.chat_style import find_chat_style
from workers.preparation import model_preparation


class Command(BaseCommand):
    help = (
        "Fetch or convert the models of models.toml into QUIRE_HOME/models, unless they are there."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("models", nargs="*", metavar="ID", help="default: all of models.toml")
        parser.add_argument("--verify", action="store_true", help="also compare every checksum")

    def handle(self, *args: object, models: list[str], verify: bool, **options: object) -> None:
        try:
            catalog = entries.load(settings.MODELS_FILE, settings.MODELS_DIR)
            for entry in [catalog.choose(name) for name in models] or list(catalog):
                self._prepare(entry)
                if verify and (damaged := model_preparation.verify(entry)):
                    raise CommandError(
                        f"{entry.id}: damaged: {', '.join(damaged)}\n"
                        f"Delete {entry.folder} and run prepare_model again."
                    )
        except (
            entries.CatalogError,
            model_preparation.CheckpointError,
            model_files.ModelFilesError,
        ) as error:
            raise CommandError(str(error)) from error

    def _prepare(self, entry: entries.ModelEntry) -> None:
        started = time.monotonic()
        is_new = model_preparation.prepare(entry, lambda line: self._say(f"{entry.id}: {line}"))
        files = model_files.load(entry)  # raises an error for a folder that no request could use
        if is_new:
            self._say(f"{entry.id}: ready after {time.monotonic() - started:.0f} s: {entry.folder}")
        else:
            self._say(f"{entry.id}: ready")
        self._say(f"{entry.id}: {find_chat_style(files).describe()}")

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
