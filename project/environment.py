"""Reads settings from environment variables; a wrong value is refused by the variable's name."""

import math
import os
import re
from collections.abc import Sequence
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured
from redis.connection import parse_url

_SWITCHES = ("", "true", "on", "ok", "y", "yes", "1", "false", "off", "n", "no", "0")
"""What a variable for yes or no may hold; all but django-environ's own names of true are false."""
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


_FORMS = {int: "a whole number", float: "a number", _finite: "a number", bool: "true or false"}

MOST_SHARDS = 64
"""Each shard has connections of its own to every process."""
FOREIGN = (
    (
        r"CELERY_BROKER(_READ|_WRITE)?_URL",
        "Celery would use it instead of REDIS_URL; unset it, or give both the same address",
    ),
    (r"CELERY_RESULT_BACKEND", "Quire stores results itself; unset it"),
)
"""Patterns of variables that a library reads by itself, and why Quire does not start with them."""


def refuse_mixed_redis(
    servers: Sequence[str], broker: str, shards: int, *, is_cluster: bool
) -> None:
    """Raise ImproperlyConfigured if the variables of several servers of Redis do not fit together.
    `broker` is CELERY_BROKER_URL where there are `servers`."""
    if is_cluster and not servers:
        raise ImproperlyConfigured(
            "QUIRE_REDIS_CLUSTER is set, and REDIS_URLS is not: name nodes of the cluster there, "
            "separated by commas"
        )
    if shards > MOST_SHARDS:
        raise ImproperlyConfigured(f"QUIRE_SHARDS is {shards}; use at most {MOST_SHARDS}")
    if not servers:
        return
    if os.environ.get("REDIS_URL"):
        raise ImproperlyConfigured("REDIS_URL and REDIS_URLS are set; unset REDIS_URL")
    if not broker or broker.startswith("unix:"):
        raise ImproperlyConfigured(
            "REDIS_URLS needs CELERY_BROKER_URL: redis://... or rediss://... of a server, outside "
            "of the cluster, for Celery's messages and what belongs to no shard"
        )
    if shards < len(servers) and not is_cluster:
        raise ImproperlyConfigured(
            f"QUIRE_SHARDS is {shards}, and REDIS_URLS names {len(servers)} servers; use at least "
            "as many shards"
        )
    for url in servers:
        facts = parse_url(url)  # type: ignore[no-untyped-call]
        if is_cluster and (facts.get("db") or "path" in facts):
            raise ImproperlyConfigured(
                "REDIS_URLS names a node with a database number or a socket, which no cluster has; "
                "use redis://HOST:PORT"
            )


def _parse_redis_url(var: str, url: str) -> None:
    try:
        parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError:
        raise ImproperlyConfigured(
            f"{var} names no Redis server; use redis://USER:PASSWORD@HOST:PORT/DB, "
            "rediss://... for TLS, or unix://PATH?db=DB"
        ) from None


def refuse_foreign_variables(redis_url: str) -> None:
    """Raise ImproperlyConfigured if a variable would redirect a part of the service. One that is
    empty or repeats `parse_redis_url` changes nothing."""
    for pattern, reason in FOREIGN:
        for name, value in os.environ.items():
            if re.fullmatch(pattern, name) and value not in ("", redis_url):
                raise ImproperlyConfigured(f"{name} is set: {reason}")


class Environment(environ.Env):  # type: ignore[misc] # it has no types
    def get_value(self, var: str, cast: object = None, *args: object, **options: object) -> Any:
        """Return the value of `var`, converted by `cast`. Raises ImproperlyConfigured."""
        text = os.environ.get(var, "")
        is_valid = cast is not bool or text.strip().lower() in _SWITCHES
        if cast is float and text:  # django-environ would drop the letters of "300s" and "1e3"
            cast, is_valid = _finite, True
        try:
            if is_valid:
                return super().get_value(var, cast, *args, **options)
        except ValueError:
            pass
        raise ImproperlyConfigured(f"{var} is {text!r}; use {_FORMS.get(cast, 'JSON')}")

    def at_least(self, var: str, least: float, default: float) -> float:
        """Return the number in `var`. Raises ImproperlyConfigured."""
        value: float = self.float(var, default=default)
        if value < least:
            raise ImproperlyConfigured(f"{var} is '{value:g}'; use a number of at least {least:g}")
        return value

    def parse_origins(self, var: str) -> list[str]:
        """Return the origins in `var`, as browsers write them. Raises ImproperlyConfigured."""
        values: list[str] = [value.strip().lower() for value in self.list(var, default=[])]
        for value in values:
            if value != "*" and not _ORIGIN.fullmatch(value):
                raise ImproperlyConfigured(
                    f"{var} is {value!r}; use origins such as https://app.example.com, without a "
                    "path, or * for all"
                )
        return values

    def parse_redis_url(self, var: str) -> str:
        """Return the Redis URL in `var`, or "". Raises ImproperlyConfigured, which does not repeat
        the URL: it may hold a password."""
        url: str = self.str(var, default="")
        if url:
            _parse_redis_url(var, url)
        return url

    def parse_redis_urls(self, var: str) -> list[str]:
        """Return the Redis URLs in `var`, which commas separate. Raises ImproperlyConfigured."""
        urls = [url.strip() for url in self.list(var, default=[])]
        for url in urls:
            _parse_redis_url(var, url)
        return urls

    def parse_choice(self, var: str, choices: Sequence[str], default: str) -> str:
        """Return the value of `var`, one of `choices`. Raises ImproperlyConfigured."""
        value: str = self.str(var, default=default)
        if value not in (*choices, default):
            *others, last = choices
            raise ImproperlyConfigured(f"{var} is {value!r}; use {', '.join(others)} or {last}")
        return value
