"""What ranks decide together, in two processes."""

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from tests.running import PATIENCE
from tests.workers.engine.backends.parallel.pair import Work, on_two_ranks
from workers.engine.backends.parallel.group import Ranks

pytestmark = pytest.mark.long

Answers = dict[Work, list[Any]]


def agree(ranks: Ranks) -> Any:
    return (
        ranks.smallest(5 + ranks.rank),
        ranks.largest(0.5 * ranks.rank),
        ranks.complaint(None),
        ranks.complaint("too warm" if ranks.rank == 1 else None),
    )


def exchange(mesh: DeviceMesh) -> list[Tensor]:
    """The exchanges of split layers."""
    own = torch.full((2, 4), float(mesh.get_rank() + 1))
    plain, gathered = own.clone(), torch.empty(4, 4)
    dist.all_reduce(plain)
    dist.all_gather_single(gathered, own)
    partly = DTensor.from_local(own, mesh, [Partial()]).redistribute(placements=[Replicate()])
    parts = DTensor.from_local(own, mesh, [Shard(1)]).redistribute(placements=[Replicate()])
    return [plain, gathered, partly.to_local(), parts.to_local()]


def exchange_together_and_alone(ranks: Ranks) -> Any:
    """Alone, rank 1 exchanges twice as often as rank 0."""
    mesh = init_device_mesh("cpu", (ranks.size,))
    together: list[Tensor] = exchange(mesh)
    found = [together]

    def attempt() -> None:
        found.extend(exchange(mesh) for _ in range(1 + ranks.rank))

    complaint = ranks.try_alone(attempt)
    shapes = [[x.shape for x in each] for each in found]
    return complaint, all(each == shapes[0] for each in shapes), [float(x[0, 0]) for x in together]


def fail_between_exchanges(ranks: Ranks) -> Any:
    def attempt() -> None:
        dist.all_reduce(torch.ones(2))
        if ranks.rank == 1:
            raise ValueError("no kernel")
        dist.all_reduce(torch.ones(2))

    began = time.monotonic()
    complaint = ranks.try_alone(attempt)
    return complaint, time.monotonic() - began < PATIENCE / 2, ranks.smallest(ranks.rank)


def lack_memory(ranks: Ranks) -> Any:
    def attempt() -> None:
        if ranks.rank == 0:
            raise torch.OutOfMemoryError("20 MiB are missing")

    with pytest.raises(torch.OutOfMemoryError) as raised:
        ranks.try_alone(attempt)
    return str(raised.value)


def send_alone(ranks: Ranks) -> Any:
    return ranks.try_alone(lambda: dist.send(torch.ones(1), 1 - ranks.rank))


def do_together(ranks: Ranks) -> Any:
    def attempt(fails: bool) -> int:
        if fails:
            raise MemoryError("full")
        return 7 + ranks.rank

    result = ranks.do_together(lambda: attempt(fails=False))
    with pytest.raises(RuntimeError) as raised:
        ranks.do_together(lambda: attempt(fails=ranks.rank == 0))
    return result, str(raised.value)


@pytest.fixture(scope="module")
def answers() -> Answers:
    return on_two_ranks(
        agree,
        exchange_together_and_alone,
        fail_between_exchanges,
        lack_memory,
        send_alone,
        do_together,
    )


def test_numbers_and_complaints_reach_all_ranks(answers: Answers) -> None:
    assert answers[agree] == [(5, 0.5, None, "rank 1: too warm")] * 2


def test_an_attempt_alone_exchanges_nothing_and_has_the_same_shapes(answers: Answers) -> None:
    assert answers[exchange_together_and_alone] == [(None, True, [3.0, 1.0, 3.0, 1.0])] * 2


def test_a_failure_between_exchanges_is_known_to_all_and_nobody_waits(answers: Answers) -> None:
    assert answers[fail_between_exchanges] == [("rank 1: ValueError('no kernel')", True, 0)] * 2


def test_a_lack_of_memory_is_one_on_all_ranks(answers: Answers) -> None:
    assert answers[lack_memory] == ["rank 0: 20 MiB are missing"] * 2


def test_other_communication_does_not_run_alone(answers: Answers) -> None:
    assert "c10d::send cannot run without the other ranks" in answers[send_alone][0]


def test_what_fails_on_one_rank_fails_on_all(answers: Answers) -> None:
    reason = "rank 0: MemoryError('full')"
    assert answers[do_together] == [(7, reason), (8, reason)]
