"""Requests to a contender and its answers: one JSON object a line, over standard input and
output."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """One batch, submitted at once. Without ``schema`` every prompt gets exactly ``max_tokens``
    tokens, greedily, under ``regex`` if there is one; with it, a document at ``temperature``."""

    prompts: list[list[int]]
    max_tokens: int
    regex: str | None = None
    schema: str | None = None
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The number of tokens of all texts, their seconds of wall time and of processor time of all
    threads, and the texts of documents."""

    seconds: float
    processor_seconds: float
    tokens: int
    texts: list[str]


Runner = Callable[[Job], list[tuple[list[int], str]]]
"""Token ids and text of each prompt."""


def serve(load: Callable[..., tuple[Runner, dict[str, Any]]]) -> None:
    """Answer jobs until the input ends.

    ``load`` gets the model, and a dtype if there is one. It returns the function that runs a job,
    and what the figures depend on: versions and settings. What libraries print goes to standard
    error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run, about = load(*sys.argv[1:])
    print(json.dumps(about), file=answers, flush=True)
    for line in sys.stdin:
        job = Job(**json.loads(line))
        start, used = time.perf_counter(), time.process_time()
        outputs = run(job)
        seconds, used = time.perf_counter() - start, time.process_time() - used
        tokens = sum(len(ids) for ids, _ in outputs)
        answer = Answer(seconds, used, tokens, [text for _, text in outputs] if job.schema else [])
        print(json.dumps(asdict(answer)), file=answers, flush=True)
