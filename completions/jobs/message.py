"""The Celery message of a job: its id, on the queue of its model."""

from base64 import b64encode
from functools import lru_cache
from secrets import token_hex
from typing import Any

import orjson
from celery import current_app
from kombu import Connection
from kombu.transport.redis import PRIORITY_STEPS, Channel

from completions.catalog.entries import make_queue_name
from completions.jobs.submit import Message

GENERATE = "workers.tasks.generate"


def dispatch(job_id: str, model: str, priority: int, producer: Any = None) -> None:
    """Publish the message. Raises kombu.exceptions.OperationalError if the broker cannot be
    reached."""
    current_app.send_task(
        GENERATE,
        args=[job_id],
        task_id=job_id,
        queue=make_queue_name(model),
        priority=priority,
        ignore_result=True,
        retry=True,
        retry_policy={"max_retries": 2, "interval_start": 0.1, "interval_max": 0.3},
        producer=producer,
    )


def make_message(job_id: str, model: str, priority: int) -> Message:
    """Make the message that `dispatch` publishes, for a script in Redis to publish with the job.

    Celery takes longer to build a message than all else in a request's validation, and publishes it
    in a separate round trip. So Celery builds only a template.
    """
    template, queue = _template(), make_queue_name(model)
    payload = {
        **template,
        "body": b64encode(orjson.dumps([[job_id], *template["body"][1:]])).decode(),
        "headers": {
            **template["headers"],
            "id": job_id,
            "root_id": job_id,
            "argsrepr": repr([job_id]),
        },
        "properties": {
            **template["properties"],
            "correlation_id": job_id,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": priority,
            "delivery_tag": token_hex(16),
        },
    }
    step = max(each for each in PRIORITY_STEPS if each <= priority)
    return Message(f"{queue}{Channel.sep}{step}" if step else queue, orjson.dumps(payload))


@lru_cache
def _template() -> dict[str, Any]:
    """Make a message as Celery publishes it, read from an in-memory broker, with its body
    decoded."""
    with Connection("memory://") as connection:
        producer = current_app.amqp.Producer(connection, auto_declare=False)
        dispatch("a job", "a model", 0, producer)
        message = connection.SimpleQueue(make_queue_name("a model")).get_nowait()
        return {
            "body": message.payload,
            "content-encoding": message.content_encoding,
            "content-type": message.content_type,
            "headers": message.headers,
            "properties": message.properties,
        }
