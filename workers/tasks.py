"""The task of an engine worker. Its message carries a job id; `EnginePool` does the work."""

from celery import shared_task

from workers.pool import GENERATE


@shared_task(name=GENERATE)
def generate(job_id: str) -> None:
    """Fail: an engine worker's pool takes the message instead of calling this."""
    raise RuntimeError(
        f"{job_id} reached a worker without an engine. Start one with `manage.py engine_worker`."
    )
