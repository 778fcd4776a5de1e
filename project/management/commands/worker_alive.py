"""`manage.py worker_alive`: the health check of a container that runs an engine worker."""

import asyncio
import socket
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from completions.jobs.workers import live_workers


class Command(BaseCommand):
    help = "Succeed while an engine worker of this host sends heartbeats."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        host = socket.gethostname()
        try:
            names = asyncio.run(_live_names())
        except RedisError as error:
            raise CommandError(f"Redis does not answer: {error}") from error
        if not any(name.startswith(f"{host}-") for name in names):
            raise CommandError(f"no worker of {host} sends heartbeats")


async def _live_names() -> list[str]:
    async with Redis.from_url(settings.REDIS_URL, socket_timeout=3) as client:
        return [worker.id for worker in await live_workers(client, settings.REDIS_PREFIX)]
