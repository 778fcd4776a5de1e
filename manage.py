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

    try:
        _execute()
        sys.stdout.flush()
    except ImproperlyConfigured as error:
        sys.exit(str(error))
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


if __name__ == "__main__":
    main()
