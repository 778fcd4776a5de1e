"""Publishes a job's Celery message: its id, on the queue of its model."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from celery import current_app

GENERATE = "workers.tasks.generate"

# Publishing blocks and, with a broker that is gone, retries: never on the event loop.
_executor = ThreadPoolExecutor(2, thread_name_prefix="dispatch")


def dispatch(job_id: str, model: str, priority: int) -> None:
    """Publish the message. Raises kombu.exceptions.OperationalError when the broker is gone."""
    current_app.send_task(
        GENERATE,
        args=[job_id],
        task_id=job_id,
        queue=f"gen.{model}",
        priority=priority,
        ignore_result=True,
        retry=True,
        retry_policy={"max_retries": 2, "interval_start": 0.1, "interval_max": 0.3},
    )


async def dispatch_async(job_id: str, model: str, priority: int) -> None:
    """The same from the event loop."""
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(_executor, dispatch, job_id, model, priority)
