"""Gives a request's database connection back before the request waits for something else."""

from collections.abc import Callable
from typing import TypeVar

from asgiref.sync import SyncToAsync, sync_to_async
from django.db import close_old_connections

_T = TypeVar("_T")


async def release() -> None:
    """Close the connection of this request's thread, if it has one. A query opens it again.

    On PostgreSQL, a web process has a pool of eight. A request may wait minutes for its job, or for
    a client that reads slowly, and must not keep one of them meanwhile.
    """
    context = SyncToAsync.thread_sensitive_context.get(None)
    if context is not None and context in SyncToAsync.context_to_thread_executor:
        await sync_to_async(close_old_connections)()


async def run_and_release(query: Callable[[], _T]) -> _T:
    """Run `query` in the request's thread and close that thread's connection at once. A task that
    outlives its request would otherwise reopen a connection that nobody closes."""

    def run() -> _T:
        try:
            return query()
        finally:
            close_old_connections()

    return await sync_to_async(run)()
