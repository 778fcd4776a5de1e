"""Runs web processes that differ in their models.toml: imports once, and forks one for each line of
its input, which has the path of a models.toml and a port. A further line ends the one before.

Django imports the views with the first request, which would keep the event loop of each fork busy.
"""

import os
import signal
import sys
from pathlib import Path

import uvicorn
from django.conf import settings
from django.urls import get_resolver

from project.asgi import application


def main() -> None:
    get_resolver().resolve("/readyz")
    running = 0
    for line in sys.stdin:
        _end(running)
        models, port = line.split()
        running = os.fork()
        if not running:
            settings.MODELS_FILE = Path(models)
            uvicorn.run(
                application, host="127.0.0.1", port=int(port), loop="uvloop", lifespan="on",
                http="project.server.http_protocol:Protocol", log_level="warning",
            )  # fmt: skip
            os._exit(0)
    _end(running)


def _end(pid: int) -> None:
    if pid:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
