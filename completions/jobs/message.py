"""The Celery message of a job: its id, on the queue of its model."""

from base64 import b64encode
from functools import lru_cache
from secrets import token_hex
from typing import Any

import orjson
from celery import current_app
from kombu import Connection
from kombu.transport.redis import PRIORITY_STEPS, Channel

from completions.jobs.submit import Message

GENERATE = "workers.tasks.generate"


def dispatch(job_id: str, model: str, priority: int) -> None:
    """Publish the message. Raises kombu.exceptions.OperationalError if the broker is away."""
    _send(job_id, model, priority)


def message_of(job_id: str, model: str, priority: int) -> Message:
    """The message that `dispatch` publishes, for callers that write to Redis anyway.

    Celery takes longer to make it than everything else in a request's validation, and publishes it
    in a round trip of its own; so its form is learnt from Celery once.
    """
    form, queue = _form(), _queue(model)
    payload = {
        **form,
        "body": b64encode(orjson.dumps([[job_id], *form["body"][1:]])).decode(),
        "headers": {
            **form["headers"], "id": job_id, "root_id": job_id, "argsrepr": repr([job_id]),
        },
        "properties": {
            **form["properties"],
            "correlation_id": job_id,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": priority,
            "delivery_tag": token_hex(16),
        },
    }  # fmt: skip
    step = max(each for each in PRIORITY_STEPS if each <= priority)
    return Message(f"{queue}{Channel.sep}{step}" if step else queue, orjson.dumps(payload))


@lru_cache
def _form() -> dict[str, Any]:
    """The message as Celery publishes it, caught by a broker in memory, with its body decoded."""
    with Connection("memory://") as connection:
        producer = current_app.amqp.Producer(connection, auto_declare=False)
        _send("a job", "a model", 0, producer)
        message = connection.SimpleQueue(_queue("a model")).get_nowait()
        return {
            "body": message.payload,
            "content-encoding": message.content_encoding,
            "content-type": message.content_type,
            "headers": message.headers,
            "properties": message.properties,
        }


def _queue(model: str) -> str:
    return f"gen.{model}"


def _send(job_id: str, model: str, priority: int, producer: Any = None) -> None:
    current_app.send_task(
        GENERATE,
        args=[job_id],
        task_id=job_id,
        queue=_queue(model),
        priority=priority,
        ignore_result=True,
        retry=True,
        retry_policy={"max_retries": 2, "interval_start": 0.1, "interval_max": 0.3},
        producer=producer,
    )
