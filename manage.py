#!/usr/bin/env python
"""The Django command line."""

import atexit
import gc
import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    # At its end, Python looks for cycles among a million objects: a second, where torch is loaded.
    atexit.register(gc.freeze)
    try:
        _execute()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` perhaps, has enough
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
