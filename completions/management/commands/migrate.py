"""Django's own command, for databases that recorded a migration before it replaced others."""

from django.core.management.commands import migrate
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder


class Command(migrate.Command):
    def handle(self, *args: object, **options: object) -> None:
        if not (options["plan"] or options["check_unapplied"]):
            record_replaced(connections[str(options["database"])])
        super().handle(*args, **options)


def record_replaced(connection: BaseDatabaseWrapper) -> None:
    """Record the migrations that a recorded one replaces.

    Django always records both. But between 0.1.0 and the next version, `0001_tables` replaced none,
    and databases of that time have its name alone. Django would take it for unapplied there.
    """
    recorder = MigrationRecorder(connection)
    with transaction.atomic(using=connection.alias):
        applied = recorder.applied_migrations()
        for key, migration in MigrationLoader(None).replacements.items():
            if key in applied:
                for app, name in set(migration.replaces) - applied.keys():
                    recorder.record_applied(app, name)
