"""Two processes that form a group, for tests of what ranks do together."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.running import PATIENCE
from tests.workers.engine.backends.parallel.forking import make_context
from workers.engine.backends.parallel.group import Ranks

Work = Callable[[Ranks], Any]


def on_two_ranks(*works: Work) -> dict[Work, list[Any]]:
    """What each rank returns for each of ``works``. These are functions of a module, since they run
    in new processes; what both ranks get from them must not be left half done."""
    context = make_context()
    barrier, answers = context.Barrier(2), context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_join, args=(rank, Path(folder), barrier, answers, works))
            for rank in range(2)
        ]
        for process in processes:
            process.start()
        found = dict(answers.get() for _ in processes)
        for process in processes:
            process.join(PATIENCE)
    return {work: [found[rank][i] for rank in range(2)] for i, work in enumerate(works)}


def _join(rank: int, folder: Path, barrier: Any, answers: Any, works: tuple[Work, ...]) -> None:
    torch.set_num_threads(1)
    answer: list[Any] = []
    try:
        ranks = Ranks.join(rank, 2, torch.device("cpu"), folder, PATIENCE, barrier.wait)
        with torch.inference_mode():
            answer.extend(work(ranks) for work in works)
    except BaseException as error:  # noqa: BLE001 - the test shows it
        answer += [repr(error)] * (len(works) - len(answer))
    answers.put((rank, answer))
    barrier.wait()  # the other one may still need this one
    Ranks.leave()
