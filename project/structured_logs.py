"""Logs: one JSON object per line, or coloured text on a terminal.

Everything logs through the standard library; structlog renders. A line bears the fields of its
`extra`, and those of the HTTP request that it was written for.
"""

import logging
import sys
from typing import Any

import orjson
import structlog
from structlog.typing import EventDict, Processor

FORMATS = ("auto", "json", "console")

_KNOWN: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def configuration(level: str, wanted: str) -> dict[str, Any]:
    """For `logging.config.dictConfig`. `auto` means text on a terminal, else JSON."""
    on_terminal = wanted == "console" or (wanted == "auto" and sys.stderr.isatty())
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": _KNOWN,
                "processors": _console() if on_terminal else _json(),
            }
        },
        # A wrong Host, which anybody can send, says what to do without a traceback.
        "filters": {"message_alone": {"()": lambda: _without_traceback}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # uvicorn brings handlers of its own; without them its lines take ours.
            "uvicorn": {"handlers": [], "level": "INFO", "propagate": True},
            # The access line of project.server.gateway says what these would repeat.
            "uvicorn.access": {"handlers": [], "propagate": False},
            "django.request": {"level": "ERROR"},
            "django.security.DisallowedHost": {"filters": ["message_alone"]},
            "celery.worker.strategy": {"level": "WARNING"},  # a line per message
            "celery.beat": {"level": "WARNING"},  # a line per periodic task
            "celery.app.trace": {"level": "WARNING"},
        },
    }


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True


def _json() -> list[Processor]:
    return [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("message"),
        _render,
    ]


def _console() -> list[Processor]:
    return [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.dev.ConsoleRenderer(),
    ]


def _render(_logger: logging.Logger, _method: str, event: EventDict) -> str:
    return orjson.dumps(event, default=str).decode()
