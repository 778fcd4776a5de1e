"""Captures of decode steps on two ranks, through mocks of torch's: all ranks capture, or none."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.running import PATIENCE
from tests.workers.engine.backends.cuda.without_gpu.mock_captures import Device
from tests.workers.engine.backends.parallel.pair import Work, on_two_ranks
from workers.engine.backends.cuda.graphs import DecodeGraphs
from workers.engine.backends.parallel.group import Ranks

pytestmark = pytest.mark.long

Answers = dict[Work, list[Any]]


@contextmanager
def mocked() -> Iterator[Device]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Device(monkeypatch)


def decode(table: Tensor, _: Tensor) -> Tensor:
    """A step whose logits are a sum of all ranks."""
    logits = torch.ones(len(table), 5)
    dist.all_reduce(logits)
    return logits


def capture(ranks: Ranks, device: Device, step: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Why the capture fails, if nobody waited for long; and whether the ranks are still in step."""
    began, complaint = time.monotonic(), None
    try:
        DecodeGraphs(4, 4, torch.device("cpu")).capture(step, ranks)
    except RuntimeError as error:
        complaint = str(error)
    at_once = time.monotonic() - began < PATIENCE / 2
    in_step = ranks.smallest(ranks.rank) == 0
    is_clean = device.current is device.stream and not device.serving_pool
    return complaint, at_once and in_step and is_clean and device.sync_mode == "default"


def nothing_fails(ranks: Ranks) -> Any:
    with mocked() as device:
        return *capture(ranks, device, decode), len(device.captured)


def a_capture_fails(ranks: Ranks) -> Any:
    with mocked() as device:
        device.fails_at = 1 if ranks.rank == 1 else None
        return capture(ranks, device, decode)


def memory_runs_out(ranks: Ranks) -> Any:
    """In the middle of a step, before its sum."""

    def step(table: Tensor, rows: Tensor) -> Tensor:
        if ranks.rank == 0 and len(table) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return decode(table, rows)

    with mocked() as device:
        return capture(ranks, device, step)


def a_step_waits(ranks: Ranks) -> Any:
    with mocked() as device:

        def step(table: Tensor, rows: Tensor) -> Tensor:
            if ranks.rank == 1 and device.sync_mode == "error":
                raise RuntimeError("called a synchronizing CUDA operation")
            return decode(table, rows)

        return capture(ranks, device, step)


@pytest.fixture(scope="module")
def answers() -> Answers:
    return on_two_ranks(nothing_fails, a_capture_fails, memory_runs_out, a_step_waits)


def test_all_ranks_capture_every_size(answers: Answers) -> None:
    assert answers[nothing_fails] == [(None, True, 3)] * 2


@pytest.mark.parametrize(
    ("work", "complaint"),
    [
        (a_capture_fails, "rank 1: RuntimeError('operation not permitted when stream is"),
        (memory_runs_out, "rank 0: CUDA out of memory"),
        (a_step_waits, "rank 1: RuntimeError('called a synchronizing CUDA operation')"),
    ],
)
def test_a_capture_that_fails_on_one_rank_fails_on_all_and_nobody_waits(
    answers: Answers, work: Work, complaint: str
) -> None:
    (first, is_fine), (second, is_fine_too) = answers[work]
    assert first == second
    assert first.startswith(complaint)
    assert is_fine
    assert is_fine_too
