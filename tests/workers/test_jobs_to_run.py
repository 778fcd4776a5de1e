"""When a worker looks for jobs."""

import pytest

from completions.jobs.execute import Claim, TakeReply
from completions.jobs.new_job import Level
from workers.jobs_to_run import JobsToRun
from workers.room import measure_room

REQUEST = b'{"prompts": [[1]], "sampling": {"max_tokens": 1}}'


class Queue:
    """Jobs that wait, of which each look takes as many as there is room for."""

    def __init__(self, waiting):
        self.waiting = waiting
        self.looks = 0

    def take(self, _model, rooms, _message_ids):
        self.looks += 1
        room = rooms[Level.LIVE].sequences
        taken, self.waiting = min(room, self.waiting), max(0, self.waiting - room)
        return TakeReply([Claim(f"{n}", 1, REQUEST, 60, 1) for n in range(taken)], {})


@pytest.mark.parametrize(("waiting", "looks"), [(19, 1), (20, 2), (21, 2)])
def test_after_an_end_it_looks_only_if_jobs_may_have_been_left(waiting, looks):
    jobs = JobsToRun(queue := Queue(waiting), "m", lambda: 0.0)
    jobs.take(lambda: measure_room([], 4, 2**20))  # for 20 jobs
    list(jobs.iter_claimed())
    jobs.note_end()
    jobs.take(lambda: measure_room([], 4, 2**20))
    assert queue.looks == looks
