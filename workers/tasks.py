"""The one task of an engine worker. Its message carries a job id; `EnginePool` does the work."""

from celery import shared_task

from workers.pool import GENERATE


@shared_task(name=GENERATE)
def generate(job_id: str) -> None:
    """Never runs: an engine worker's pool takes the message before Celery would call this."""
    raise RuntimeError(
        f"{job_id} reached a worker without an engine; run `manage.py engine_worker`"
    )
