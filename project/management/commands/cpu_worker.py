"""`manage.py cpu_worker`: the tasks that need SQL and no GPU, and the clock that sends them."""

import os
import socket
import sys
from typing import Any

from celery import bootsteps
from celery.beat import EmbeddedService
from django.core.management.base import BaseCommand, CommandParser

from project import celery_app
from workers.messages import DropForeign
from workers.wake_on_signal import WakeOnSignal


class BeatThread(bootsteps.StartStopStep):
    """Celery beat inside this process; Celery's own -B forks one that a kill -9 would orphan.

    Several may run: each periodic task takes a lock, so one of them does the work.
    """

    requires = ("celery.worker.components:Timer",)

    def create(self, worker: Any) -> Any:
        return EmbeddedService(worker.app, thread=True, scheduler_cls="celery.beat:Scheduler")

    def stop(self, parent: object) -> None:
        """Stop without waiting for the clock, which retries until Redis answers."""
        if self.obj is not None:
            self.obj.service.stop()


class Command(BaseCommand):
    help = "Run the background worker and the clock of the periodic tasks."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--concurrency", type=int, default=4, help="threads (default 4)")

    def handle(self, *args: object, **options: object) -> None:
        # Celery would run Django's checks, which load the URL table, and ignore what they return.
        os.environ.setdefault("CELERY_SKIP_CHECKS", "1")
        celery_app.steps["worker"].add(BeatThread)
        celery_app.steps["consumer"].update((WakeOnSignal, DropForeign))
        worker: Any = celery_app.Worker(
            hostname=f"cpu@{socket.gethostname()}",
            pool_cls="threads",
            queues=["cpu"],
            concurrency=options["concurrency"],
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            loglevel="INFO",
            quiet=True,  # no banner among the log lines
        )
        worker.start()
        sys.exit(int(worker.exitcode or 0))
