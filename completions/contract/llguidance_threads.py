"""Threads for llguidance, which recurses deeply: a small grammar can overflow an ordinary stack."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

STACK_BYTES = 256 * 2**20
"""Stack size in address space; only touched pages take memory."""
NICENESS = 10
"""Added to the niceness of threads and processes that compile, to favour engine and streams."""
MAX_NICENESS = 19
"""The niceness of the lowest priority."""


def make_big_stack_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of threads with large stacks and low priority, all of them started."""
    pool = ThreadPoolExecutor(count, name, initializer=_lower_thread_priority)
    everyone = threading.Barrier(count + 1)
    # A new stack size applies only to threads that start later.
    before = threading.stack_size(STACK_BYTES)
    try:
        for _ in range(count):
            pool.submit(everyone.wait)
        everyone.wait()
    finally:
        threading.stack_size(before)
    return pool


def lower_priority(process: int) -> None:
    """Lower the priority of a process or, on Linux, of a thread given by its native id."""
    niceness = os.getpriority(os.PRIO_PROCESS, process) + NICENESS
    os.setpriority(os.PRIO_PROCESS, process, min(niceness, MAX_NICENESS))


def _lower_thread_priority() -> None:
    if sys.platform == "linux":  # elsewhere this would affect the whole process
        lower_priority(threading.get_native_id())
