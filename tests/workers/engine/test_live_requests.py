from tests.workers.engine.rows import row
from workers.engine.core.request import Request
from workers.engine.live_requests import Deadlines, RequestState


def state(deadline: float | None) -> RequestState:
    return RequestState(Request(((1,),), deadline=deadline, request_id="r"), [row(), row()])


def release(state: RequestState) -> None:
    for sequence in state.sequences:
        sequence.finished = True


def test_a_request_passes_its_deadline_once() -> None:
    deadlines = Deadlines()
    late, early, never = state(20.0), state(10.0), state(None)
    for each in (late, early, never):
        deadlines.add(each)
    assert deadlines.pop_passed(9.9) == []
    assert deadlines.pop_passed(10.0) == [early]
    assert deadlines.pop_passed(10.0) == []
    assert deadlines.pop_passed(99.0) == [late]


def test_seconds_are_those_to_the_earliest_and_never_negative() -> None:
    deadlines = Deadlines()
    assert deadlines.seconds_left(0.0) is None
    deadlines.add(state(20.0))
    deadlines.add(state(12.5))
    assert deadlines.seconds_left(10.0) == 2.5
    assert deadlines.seconds_left(13.0) == 0.0


def test_a_request_that_ended_passes_none() -> None:
    deadlines = Deadlines()
    ended = state(10.0)
    deadlines.add(ended)
    release(ended)
    assert deadlines.pop_passed(11.0) == []


def test_requests_that_ended_early_are_forgotten() -> None:
    deadlines = Deadlines()
    live = [state(1e9) for _ in range(10)]
    for each in live:
        deadlines.add(each)
    for _ in range(1000):
        ended = state(1e9)
        deadlines.add(ended)
        release(ended)
        assert len(deadlines) < 100
    assert set(deadlines.pop_passed(1e9)) == set(live)
