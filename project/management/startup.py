"""Starts the services under a supervisor: what `up` and `demo` share."""

import contextlib
import os
import resource
from collections.abc import Callable, Iterator, Sequence

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import DatabaseError, connections

from completions.catalog import entries, model_files
from project.processes import logs, services, valkey
from project.processes.supervisor import AlreadyRunningError, Service, Supervisor
from workers.preparation import model_preparation

Say = Callable[[str], None]
SILENCE = 3.0
"""Seconds until a start says that it waits for Valkey."""
VALKEY_PATIENCE = 60.0
"""Seconds for the embedded Valkey to load its append-only file."""
OPEN_FILES = 65536
"""Descriptors that each process may have, if the system allows as many. A connection takes one;
shells and systemd start with 1024."""


@contextlib.contextmanager
def explain_errors() -> Iterator[None]:
    """Turn the errors of a start into CommandError, whose message says what to do."""
    try:
        yield
    except AlreadyRunningError as error:
        raise CommandError(
            f"{settings.QUIRE_HOME} is in use: {error}. Stop that one, or set QUIRE_HOME "
            "and PORT to run another beside it."
        ) from error
    except (
        entries.CatalogError,
        model_files.ModelFilesError,
        valkey.ValkeyUnavailableError,
    ) as error:
        raise CommandError(str(error)) from error
    except DatabaseError as error:
        raise CommandError(f"the database cannot be used: {error}") from error
    except (FileExistsError, NotADirectoryError) as error:
        raise CommandError(f"{error.filename} must be a folder. Move the file away.") from error
    except OSError as error:
        if error.filename is None:
            raise
        raise CommandError(f"{error.filename} cannot be used: {error.strerror}") from error


def prepare_process() -> None:
    """Set what the children inherit: a private umask and many open files."""
    os.umask(0o077)  # the database and the logs hold prompts and sessions
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(ValueError, OSError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def list_missing(models: entries.Catalog) -> list[entries.ModelEntry]:
    """Return the models that `prepare_model` has to bring onto this machine first."""
    return [entry for entry in models if not model_preparation.is_prepared(entry)]


def start(
    supervisor: Supervisor,
    chosen: Sequence[Service],
    with_database: Callable[[], None],
    say: Say,
) -> None:
    """Start the services in order; migrate and call `with_database` before the services that need
    SQL. `say` receives a message before each step that may take long.

    The engine worker needs no SQL and takes longest to start, so its model loads meanwhile.
    """
    early = [service for service in chosen if not services.needs_database(service)]
    for service in early:
        supervisor.start(service)
        if service.name == "valkey":
            _wait_for_valkey(supervisor, say)
    late = chosen[len(early) :]
    if late:
        say("bringing the tables of the database up to date")
        call_command("migrate", interactive=False, verbosity=0)
        with_database()
        for connection in connections.all(initialized_only=True):
            connection.close()
            if hasattr(connection, "close_pool"):  # PostgreSQL's keeps threads
                connection.close_pool()
    for service in late:
        supervisor.start(service)


def _wait_for_valkey(supervisor: Supervisor, say: Say) -> None:
    path = settings.VALKEY_SOCKET
    assert path is not None
    if not supervisor.wait_until(lambda: valkey.is_answering(path), SILENCE):
        say(f"waiting for valkey, which loads its data (log: {supervisor.get_log('valkey')})")
    if not supervisor.wait_until(lambda: valkey.is_answering(path), VALKEY_PATIENCE):
        tail = logs.read_tail(supervisor.get_log("valkey"))
        raise CommandError(f"valkey does not answer. The end of its log:\n{tail}")
