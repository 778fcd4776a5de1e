"""Settings of Celery: broker, queues, acknowledgement and periodic tasks."""

from datetime import UTC, datetime, timedelta
from time import monotonic

from celery.schedules import schedule
from django.conf import settings
from kombu import Queue

VISIBILITY_TIMEOUT = 60
"""Seconds until an unacknowledged message goes to another worker."""


def make_broker_url(redis_url: str) -> str:
    """Convert a redis-py URL to kombu's form, which has its own scheme for unix sockets."""
    if not redis_url.startswith("unix://"):
        return redis_url
    return redis_url.replace("unix://", "redis+socket://").replace("?db=", "?virtual_host=")


broker_url = make_broker_url(settings.REDIS_URL)
broker_transport_options = {
    "global_keyprefix": settings.REDIS_PREFIX,
    "visibility_timeout": VISIBILITY_TIMEOUT,
    "unacked_restore_interval": 5,
    "unacked_restore_throttle": 1,
    "socket_timeout": 15,
    "socket_connect_timeout": 5,
    "health_check_interval": 10,
    "max_connections": 20,
    "retry_on_timeout": False,
}
if not settings.REDIS_URL.startswith("unix://"):
    broker_transport_options["socket_keepalive"] = True
broker_connection_retry_on_startup = True
broker_connection_max_retries = None
broker_channel_error_retry = True
"""Retry when Redis refuses a write, as at maxmemory, so that the worker keeps its model loaded."""

# A message holds one job id. It is acknowledged after the job's terminal event.
task_serializer = "json"
accept_content = ["json"]
task_acks_late = True
task_ignore_result = True
task_default_queue = "cpu"
task_default_priority = 6
task_queues = [Queue("cpu")]
task_create_missing_queues = True
imports = ["completions.maintenance.tasks"]

worker_prefetch_multiplier = 1
worker_send_task_events = False
worker_enable_remote_control = False
worker_hijack_root_logger = False
worker_cancel_long_running_tasks_on_connection_loss = False

_START = datetime.now(UTC) - timedelta(seconds=monotonic())


def get_steady_time() -> datetime:
    """Return a time that no change of the system's clock moves. By the clock of the system, a step
    back by an hour would stop all periodic tasks for an hour."""
    return _START + timedelta(seconds=monotonic())


# Per task: seconds between two runs, and seconds until the message of a run expires.
beat_schedule = {
    name: {
        "task": f"completions.tasks.{name}",
        "schedule": schedule(every, nowfun=get_steady_time),
        "options": {"expires": expires},
    }
    for name, every, expires in (
        ("settle", 2.0, 10),
        ("advance_batches", 1.0, 3),
        ("reconcile", 5.0, 10),
        ("recount", 60.0, 30),
        ("note_last_use", 30.0, 30),
        ("sample_load", 60.0, 30),
        ("warn_of_budgets", 60.0, 30),
        ("deliver_webhooks", 5.0, 5),
        ("prune", 60.0, 60),
    )
}
