"""`manage.py workers`: lists the live engine workers, and drains or resumes one."""

import time
from argparse import ArgumentParser
from typing import Any

import redis
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from redis.exceptions import RedisError

from completions.jobs import workers as registry
from completions.jobs.connection import connect
from completions.jobs.workers import WorkerRecord

_LOOK_EVERY = 0.5
_COLUMNS = "{:<12} {:>7} {:>7} {:>7}  {}  {}"


class Command(BaseCommand):
    help = "List the live engine workers, or drain or resume one."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        wish = parser.add_mutually_exclusive_group()
        wish.add_argument(
            "--drain", metavar="WORKER", help="let a worker finish its jobs and take no new ones"
        )
        wish.add_argument("--resume", metavar="WORKER", help="let a drained worker take jobs again")
        parser.add_argument(
            "--wait", action="store_true", help="with --drain: wait until its last job has ended"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["wait"] and not options["drain"]:
            raise CommandError("--wait needs --drain WORKER")
        try:
            with connect(settings.REDIS_URL) as client:
                self._run(client, options)
        except (RedisError, OSError) as error:
            raise CommandError(f"Redis does not answer: {error}") from error

    def _run(self, client: redis.Redis, options: dict[str, Any]) -> None:
        if wanted := options["drain"]:
            worker = _only(client, wanted)
            registry.drain(client, settings.REDIS_PREFIX, worker.id)
            while options["wait"] and not _has_none_left(client, worker.id):
                time.sleep(_LOOK_EVERY)
            done = "has no jobs any more" if options["wait"] else "takes no new jobs within seconds"
            self.stdout.write(f"{worker.id} {done}")
        elif wanted := options["resume"]:
            worker = _only(client, wanted)
            registry.resume(client, settings.REDIS_PREFIX, worker.id)
            self.stdout.write(f"{worker.id} takes jobs again within seconds")
        else:
            self._list(_live(client))

    def _list(self, live: list[WorkerRecord]) -> None:
        if not live:
            raise CommandError("no engine worker is alive")
        self.stdout.write(_COLUMNS.format("STATE", "JOBS", "RUNNING", "WAITING", "WORKER", "MODEL"))
        for worker in live:
            counts = [worker.facts.get(name, 0) for name in ("jobs", "running", "waiting")]
            row = _COLUMNS.format(worker.standing, *counts, worker.id, worker.model)
            self.stdout.write(row)


def _live(client: redis.Redis) -> list[WorkerRecord]:
    return registry.watch_workers(client, settings.REDIS_PREFIX)


def _only(client: redis.Redis, wanted: str) -> WorkerRecord:
    """Return the worker whose id begins with `wanted`. Raises CommandError."""
    found = [worker for worker in _live(client) if worker.id.startswith(wanted)]
    if not found:
        raise CommandError(
            f"no id of a live worker begins with {wanted!r}; list them with: manage.py workers"
        )
    if len(found) > 1:
        candidates = "\n".join(f"  {worker.id}" for worker in found)
        raise CommandError(f"{wanted!r} matches several workers; name one of:\n{candidates}")
    return found[0]


def _has_none_left(client: redis.Redis, worker_id: str) -> bool:
    """Return whether the worker is drained or gone."""
    standing = {worker.id: worker.standing for worker in _live(client)}
    return standing.get(worker_id, "drained") == "drained"
