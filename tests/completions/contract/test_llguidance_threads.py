import os
import sys
import threading

import pytest

from completions.contract.llguidance_threads import NICENESS, STACK_BYTES, make_big_stack_threads


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_threads_step_back_behind_everything_else() -> None:
    with make_big_stack_threads(2, "test") as pool:
        niceness = pool.submit(os.getpriority, os.PRIO_PROCESS, 0).result()
    assert niceness == min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + NICENESS, 19)


def test_other_threads_keep_their_stacks() -> None:
    before = threading.stack_size()
    make_big_stack_threads(1, "test").shutdown()
    assert threading.stack_size() == before != STACK_BYTES
