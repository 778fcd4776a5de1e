#!/usr/bin/env python
"""The Django command line."""

import atexit
import gc
import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    # A worker imports a million objects that live until it ends. Searching them for cycles again
    # and again would take a second at the start and another at the end.
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
    from django.core.exceptions import ImproperlyConfigured
    from django.db import OperationalError, ProgrammingError

    try:
        _execute()
        sys.stdout.flush()
    except ImproperlyConfigured as error:
        sys.exit(str(error))
    except (OperationalError, ProgrammingError) as error:
        sys.exit(_explain(error))
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell reports SIGINT
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        sys.exit(1)


def _execute() -> None:
    if sys.argv[1:2] == ["engine_worker"]:
        from project.management.commands import engine_worker

        engine_worker.main(sys.argv)
    else:
        from django.core.management import execute_from_command_line

        execute_from_command_line(sys.argv)


def _explain(error: Exception) -> str:
    """Return why the database could not run a command. Raises the error where that is unknown."""
    from django.db import DatabaseError, connection
    from django.db.migrations.executor import MigrationExecutor

    try:
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError as unreachable:
        return f"The database cannot be used: {unreachable}"
    if missing:
        return (
            f"The database lacks migrations ({error}). Run `python manage.py migrate`, or start "
            "the service with `python manage.py up`, which migrates first."
        )
    raise error


if __name__ == "__main__":
    main()
