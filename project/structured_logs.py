"""Logs: one JSON object per line, or coloured text on a terminal.

All code logs through the standard library, and structlog renders. A line has the fields of its
`extra` and of the HTTP request that it belongs to.
"""

import json
import logging
import sys

import orjson
import structlog
from django.http import HttpRequest
from structlog.typing import EventDict, Processor

from completions.contract.strict_json import encode_line


def _remove_query(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Name a request by its path alone: its query may be the code of a sign-in."""
    if isinstance(request := event.get("request"), HttpRequest):
        event["request"] = f"{request.method} {request.path}"
    return event


_KNOWN: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.ExtraAdder(),
    _remove_query,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def make_configuration(level: str, level_name: str) -> dict[str, object]:
    """Return a configuration for `dictConfig`. `auto` is text on a terminal, else JSON."""
    on_terminal = level_name == "console" or (level_name == "auto" and sys.stderr.isatty())
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": _KNOWN,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    *([structlog.dev.ConsoleRenderer()] if on_terminal else _JSON),
                ],
            }
        },
        # Anyone can send a wrong Host header: log the message without a traceback.
        "filters": {"message_alone": {"()": lambda: _keep_without_traceback}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # Without uvicorn's own handlers, its lines are rendered like all others.
            "uvicorn": {"handlers": [], "level": "INFO", "propagate": True},
            # project.server.gateway logs each request already.
            "uvicorn.access": {"handlers": [], "propagate": False},
            "django.request": {"level": "ERROR"},
            "django.security.DisallowedHost": {"filters": ["message_alone"]},
            "celery.worker.strategy": {"level": "WARNING"},  # one line per message
            "celery.beat": {"level": "WARNING"},  # one line per periodic task
            "celery.app.trace": {"level": "WARNING"},
        },
    }


def _keep_without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True


def _render(_logger: logging.Logger, _method: str, event: EventDict) -> str:
    try:
        return encode_line(event, default=str).decode()
    except orjson.JSONEncodeError:  # half a surrogate pair, or an integer beyond 64 bits
        return json.dumps(event, default=str)


_JSON: list[Processor] = [
    structlog.processors.format_exc_info,
    structlog.processors.EventRenamer("message"),
    _render,
]
