"""`manage.py reshard`: leaves the shards of Redis, so that the service can start with others."""

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from redis.exceptions import RedisError

from completions.jobs.sharding.resharding import LayoutError, leave_layout
from completions.jobs.sharding.shards import Layout


class Command(BaseCommand):
    help = "Check that no job is left in the shards of Redis, before their number is changed."
    requires_system_checks = ()

    def handle(self, *args: object, **options: object) -> None:
        layout = Layout.read(settings)
        try:
            with layout.open() as shards:
                leave_layout(layout, shards)
        except LayoutError as error:
            raise CommandError(str(error)) from error
        except RedisError as error:
            raise CommandError(f"Redis does not answer: {error}") from error
        self.stdout.write(
            "No job is left. Stop the workers and the background worker, change REDIS_URLS or "
            "QUIRE_SHARDS, and start the service."
        )
