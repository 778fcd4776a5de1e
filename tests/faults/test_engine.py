"""An engine whose step never ends."""

import pytest

from benchmarks.service.scripted_worker import HANG
from tests.acceptance.service import MODEL
from tests.faults.invariants import require_background_done, until

pytestmark = pytest.mark.faults


def test_a_stuck_worker_ends_itself_and_its_jobs_continue_elsewhere(scripted):
    """The job that hangs every worker fails after three; its neighbours' streams go on."""
    call = {"model": MODEL, "max_tokens": 30, "return_token_ids": True, "background": True}
    with scripted.http() as http:
        poison = http.post("/v1/completions", json={**call, "prompt": [HANG], "seed": 1}).json()
        accepted = {
            http.post("/v1/completions", json={**call, "prompt": [7], "seed": n}).headers[
                "Location"
            ]: n
            for n in range(8)
        }
        for _ in range(3):
            until(lambda: not scripted.worker_runs(), "the worker notices and ends")
            assert scripted.worker_exit() == 70
            scripted.start_worker()
        where = f"/v1/completions/{poison['id']}"
        failed = until(
            lambda: (b := http.get(where, params={"wait": 5}).json())["status"] == "failed" and b,
            "the poison fails",
        )
    assert failed["error"]["code"] == "worker_error"
    require_background_done(scripted, accepted)
