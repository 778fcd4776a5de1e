"""Settings of Celery: broker, queues, acknowledgement and periodic tasks."""

from typing import Any

from django.conf import settings
from kombu import Queue

VISIBILITY_TIMEOUT = 60
"""Seconds until an unacknowledged message goes to another worker."""


def redis_broker_url(redis_url: str) -> str:
    """Convert a redis-py URL to kombu's form, which has its own scheme for unix sockets."""
    if redis_url.startswith("unix://"):
        return "redis+socket://" + redis_url.removeprefix("unix://").replace(
            "?db=", "?virtual_host="
        )
    return redis_url


def _transport_options() -> dict[str, Any]:
    options: dict[str, Any] = {
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
        options["socket_keepalive"] = True
    return options


broker_url = redis_broker_url(settings.REDIS_URL)
broker_transport_options = _transport_options()
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
imports = ["completions.tasks"]

worker_prefetch_multiplier = 1
worker_send_task_events = False
worker_enable_remote_control = False
worker_hijack_root_logger = False
worker_cancel_long_running_tasks_on_connection_loss = False

beat_schedule = {
    "settle": {
        "task": "completions.tasks.settle",
        "schedule": 2.0,
        "options": {"expires": 10},
    },
    "advance batches": {
        "task": "completions.tasks.advance_batches",
        "schedule": 1.0,
        "options": {"expires": 3},
    },
    "reconcile": {
        "task": "completions.tasks.reconcile",
        "schedule": 5.0,
        "options": {"expires": 10},
    },
    "note last use": {
        "task": "completions.tasks.note_last_use",
        "schedule": 30.0,
        "options": {"expires": 30},
    },
    "sample load": {
        "task": "completions.tasks.sample_load",
        "schedule": 60.0,
        "options": {"expires": 30},
    },
    "prune": {
        "task": "completions.tasks.prune",
        "schedule": 60.0,
        "options": {"expires": 60},
    },
}
