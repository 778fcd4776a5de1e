"""The processes of a group: none outlives another, however that one ends."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from completions.contract.sampling import SamplingParams
from tests.running import PATIENCE, until_gone
from workers.engine.backends.parallel import followers as followers_module
from workers.engine.core.request import Request
from workers.engine.exceptions import RankLost

pytestmark = pytest.mark.long

LAUNCH = followers_module._launch
"""What other tests replace by forks."""

ROOT = Path(__file__).resolve().parents[5]
HANG_SECONDS = 60.0
"""How long a rank waits for one that is stopped; much longer than any step of the tiny model."""
ENDLESS = Request(
    request_id="endless",
    prompts=((1, 2, 3),),
    sampling=SamplingParams(max_tokens=400, ignore_eos=True),
)

LEADER = """
import sys, time
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
config = EngineConfig(
    device="cpu", dtype="float32", max_num_seqs=8, kv_cache_bytes=2**20, tensor_parallel_size=2
)
engine = build_engine(sys.argv[1], config)
print(*engine.followers.pids, flush=True)
time.sleep(1000)
"""


class Watched:
    """A started engine, and how it ended."""

    def __init__(self, engine):
        self.engine = engine
        self.token_ids = []
        self.began, self.ended = threading.Event(), threading.Event()
        self.error = None
        engine.start(self._take, self._end)

    def _take(self, outputs):
        for output in outputs:
            for choice in output.deltas:
                self.token_ids += choice.token_ids
                self.began.set()

    def _end(self, error):
        self.error = error
        self.ended.set()


def test_a_killed_follower_ends_the_engine_during_a_request(make_ranks):
    engine = make_ranks("llama", 2)
    pids = engine.followers.pids
    watched = Watched(engine)
    engine.submit(ENDLESS)
    assert watched.began.wait(PATIENCE)
    os.kill(pids[0], signal.SIGKILL)
    assert watched.ended.wait(PATIENCE)
    engine.stop()
    until_gone(pids)


def test_a_killed_follower_ends_an_idle_engine_and_the_other_followers(make_ranks):
    engine = make_ranks("one_kv_head", 3)
    pids = engine.followers.pids
    watched = Watched(engine)
    os.kill(pids[1], signal.SIGKILL)
    assert watched.ended.wait(PATIENCE)
    assert isinstance(watched.error, RankLost)
    assert str(watched.error) == f"rank 2 (process {pids[1]}) was ended by SIGKILL"
    engine.stop()
    until_gone(pids)


def test_a_stopped_follower_ends_the_engine_after_the_timeout(make_ranks):
    engine = make_ranks("llama", 2, rank_timeout=HANG_SECONDS)
    pids = engine.followers.pids
    watched = Watched(engine)
    engine.submit(ENDLESS)
    assert watched.began.wait(PATIENCE)
    os.kill(pids[0], signal.SIGSTOP)
    engine.submit(replace(ENDLESS, request_id="further"))  # the first may have ended by now
    assert watched.ended.wait(PATIENCE)
    engine.stop()
    until_gone(pids)


def test_signals_for_the_whole_terminal_leave_a_follower_alone(make_ranks):
    """Rank 0 lets its jobs end first, and needs its followers for that."""
    engine = make_ranks("llama", 2)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(engine.followers.pids[0], number)
    (completion,) = engine.generate([ENDLESS])
    assert len(completion.choices[0].token_ids) == 400
    pids = engine.followers.pids
    engine.stop()
    until_gone(pids)


def test_followers_die_with_rank_0_even_if_they_are_stopped(folder_of):
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER, str(folder_of("llama"))],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with leader:
        try:
            pids = [int(pid) for pid in leader.stdout.readline().split()]
            assert len(pids) == 1
            os.kill(pids[0], signal.SIGSTOP)
        finally:
            leader.kill()  # leaving the context waits for it
    until_gone(pids)


def test_what_a_follower_cannot_load_is_reported_with_its_reason(make_ranks, monkeypatch):
    def too_long(config, rank):
        return followers_module.replace(config, max_model_len=9999)

    monkeypatch.setattr(followers_module, "_assign_device", too_long)
    with pytest.raises(RankLost, match="rank 1 cannot continue: max_model_len 9999 exceeds"):
        make_ranks("llama", 2)


def test_a_follower_that_does_not_even_start_is_named(make_ranks, monkeypatch):
    monkeypatch.setattr(followers_module, "_launch", LAUNCH)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RankLost, match=r"rank 1 \(process \d+\) ended with code 1"):
        make_ranks("llama", 2)
