"""`manage.py worker_alive`: the health check of a container that runs an engine worker."""

import socket

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from redis.exceptions import RedisError

from completions.jobs.connection import connect
from completions.jobs.store import JobStore
from completions.jobs.workers import list_workers_sync


class Command(BaseCommand):
    help = "Succeed while an engine worker of this host sends heartbeats."
    requires_system_checks = ()

    def handle(self, *args: object, **options: object) -> None:
        host = socket.gethostname()
        try:
            with connect(settings.REDIS_URL, timeout=3) as client:
                workers = list_workers_sync(JobStore(client, settings.REDIS_PREFIX))
        except RedisError as error:
            raise CommandError(f"Redis does not answer: {error}") from error
        if host not in {worker.host for worker in workers}:
            raise CommandError(f"no worker on {host} sends heartbeats")
