"""`manage.py workers`: lists the live engine workers, and drains or resumes one."""

import time
from argparse import ArgumentParser

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from redis.exceptions import RedisError

from completions.jobs import workers as registry
from completions.jobs.sharding.shards import Layout, SyncShards, run_each
from completions.jobs.workers import WorkerRecord

_LOOK_EVERY = 0.5
_COLUMNS = "{:<12} {:>7} {:>7} {:>7}  {}  {}"


class Command(BaseCommand):
    help = "List the live engine workers, or drain or resume one."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        action = parser.add_mutually_exclusive_group()
        action.add_argument(
            "--drain", metavar="WORKER", help="let a worker finish its jobs and take no new ones"
        )
        action.add_argument(
            "--resume", metavar="WORKER", help="let a drained worker take jobs again"
        )
        parser.add_argument(
            "--wait", action="store_true", help="with --drain: wait until its last job has ended"
        )

    def handle(
        self, *, drain: str | None, resume: str | None, wait: bool, **options: object
    ) -> None:
        if wait and not drain:
            raise CommandError("--wait needs --drain WORKER")
        try:
            with Layout.read(settings).open() as shards:
                self._run(shards, drain, resume, wait)
        except (RedisError, OSError) as error:
            raise CommandError(f"Redis does not answer: {error}") from error

    def _run(self, shards: SyncShards, drain: str | None, resume: str | None, wait: bool) -> None:
        if drain:
            worker = _only(shards, drain)
            run_each(shards, lambda store: registry.drain(store, worker.id))
            while wait and _has_jobs(shards, worker.id):
                time.sleep(_LOOK_EVERY)
            done = "has no jobs any more" if wait else "takes no new jobs within seconds"
            self.stdout.write(f"{worker.id} {done}")
        elif resume:
            worker = _only(shards, resume)
            run_each(shards, lambda store: registry.resume(store, worker.id))
            self.stdout.write(f"{worker.id} takes jobs again within seconds")
        else:
            self._list(registry.list_all_workers(shards))

    def _list(self, live: list[WorkerRecord]) -> None:
        if not live:
            raise CommandError("no engine worker is alive")
        self.stdout.write(_COLUMNS.format("STATE", "JOBS", "RUNNING", "WAITING", "WORKER", "MODEL"))
        for worker in live:
            counts = [worker.facts.get(name, 0) for name in ("jobs", "running", "waiting")]
            row = _COLUMNS.format(worker.standing, *counts, worker.id, worker.model)
            self.stdout.write(row)


def _only(shards: SyncShards, worker_id: str) -> WorkerRecord:
    """Return the worker with the id `worker_id`, else the one whose id begins so. Raises
    CommandError."""
    live = registry.list_all_workers(shards)
    matches = [worker for worker in live if worker.id == worker_id]
    matches = matches or [worker for worker in live if worker.id.startswith(worker_id)]
    if not matches:
        raise CommandError(
            f"no live worker's id begins with {worker_id!r}; list them with: manage.py workers"
        )
    if len(matches) > 1:
        candidates = "\n".join(f"  {worker.id}" for worker in matches)
        raise CommandError(f"{worker_id!r} matches several workers; name one of:\n{candidates}")
    return matches[0]


def _has_jobs(shards: SyncShards, worker_id: str) -> bool:
    return any(
        each.id == worker_id and each.standing != "drained"
        for each in registry.list_all_workers(shards)
    )
