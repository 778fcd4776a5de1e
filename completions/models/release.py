"""Gives a request's database connection back before the request waits for something else."""

from asgiref.sync import SyncToAsync, sync_to_async
from django.db import close_old_connections


async def release() -> None:
    """Close the connection of this request's thread, if it has one. A query opens it again.

    On PostgreSQL, a web process has a pool of eight. A request may wait minutes for its job, or for
    a client that reads slowly, and must not keep one of them meanwhile.
    """
    context = SyncToAsync.thread_sensitive_context.get(None)
    if context is not None and context in SyncToAsync.context_to_thread_executor:
        await sync_to_async(close_old_connections)()
