"""`manage.py worker_alive`: the health check of a container that runs an engine worker."""

import socket

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from redis.exceptions import RedisError

from completions.jobs.sharding.shards import Layout
from completions.jobs.workers import list_all_workers


class Command(BaseCommand):
    help = "Succeed while an engine worker of this host sends heartbeats."
    requires_system_checks = ()

    def handle(self, *args: object, **options: object) -> None:
        host = socket.gethostname()
        try:
            with Layout.read(settings).open(timeout=3) as shards:
                workers = list_all_workers(shards)
        except RedisError as error:
            raise CommandError(f"Redis does not answer: {error}") from error
        if host not in {worker.host for worker in workers}:
            raise CommandError(f"no worker on {host} sends heartbeats")
