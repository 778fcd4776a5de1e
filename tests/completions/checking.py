"""The threads and the validator that tests check requests with."""

import atexit
from functools import cache

from completions.grammars import Validator
from completions.requests.fair_semaphore import Checks
from completions.requests.validation import make_validator


@cache
def shared_validator() -> Validator:
    """One for all tests of a process: its children take a second to start."""
    validator = make_validator()
    atexit.register(validator.close)
    return validator


def new_checks() -> Checks:
    return Checks(shared_validator())
