"""The plan of a batch: the order in which its lines run, and what the KV cache saves that way."""

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from django.db import transaction

from completions.batches.planning.cache import CacheSize, count_cached_tokens
from completions.batches.planning.prefixes import (
    BLOCK,
    has_shared_prefix,
    hash_prefixes,
    plan_order,
)
from completions.contract.job_request import JobRequest
from completions.database.parts import parts
from completions.database.updates import update_each
from completions.models import Batch, BatchLine

MAX_OUTPUT = 256
"""The most completion tokens that a line is assumed to hold in the cache: few use their maximum."""
_BATCH_SIZE = 2000


class Plan(NamedTuple):
    """Prompt tokens of all lines, and how many of them must be computed, if that is predictable."""

    prompt_tokens: int
    computed_tokens: int | None
    file_order_tokens: int | None
    """The same, for the lines in file order."""


def add_plans(plans: Sequence[Plan]) -> Plan:
    """Return the plan of all lines, from those of each model."""
    prompt, *others = zip(*plans, strict=True)
    computed, in_file_order = (None if None in each else sum(each) for each in others)
    return Plan(sum(prompt), computed, in_file_order)


class Planner:
    """Collects the lines of one batch, at 8 bytes per prompt block, and orders them."""

    def __init__(self, size: CacheSize | None) -> None:
        self._size = size
        self._numbers = array("I")
        self._paths: list[bytes] = []
        self._tokens = array("I")
        self.prompt_tokens = 0

    def add(self, number: int, request: JobRequest) -> None:
        """Add a line. Only its first prompt counts for the plan."""
        prompts = request.prompts
        salt = repr((request.cache_salt, request.adapters and request.adapters[0]))
        block_size = self._size.block_size if self._size else BLOCK
        self._numbers.append(number)
        self._paths.append(hash_prefixes(prompts[0], salt, block_size))
        output = min(request.sampling.max_tokens, MAX_OUTPUT)
        self._tokens.append(len(prompts[0]) + output)
        self.prompt_tokens += sum(map(len, prompts))

    def order(self) -> tuple[Sequence[int], Plan]:
        """Return the line numbers in the order in which they run, and the plan."""
        file_order = range(len(self._paths))
        if not has_shared_prefix(self._paths):
            return self._numbers, Plan(self.prompt_tokens, self.prompt_tokens, self.prompt_tokens)
        order = plan_order(self._paths)
        plan = Plan(
            self.prompt_tokens, self._count_computed(order), self._count_computed(file_order)
        )
        return [self._numbers[index] for index in order], plan

    def _count_computed(self, order: Sequence[int]) -> int | None:
        if self._size is None:
            return None
        lines = ((self._paths[index], self._tokens[index]) for index in order)
        return self.prompt_tokens - count_cached_tokens(lines, self._size)


def store(batch: Batch, order: Sequence[int], alive: Callable[[], bool]) -> bool:
    """Assign positions to the lines of a batch. Returns False if another worker took over."""
    for part in parts(enumerate(order), _BATCH_SIZE):
        if not alive():
            return False
        rows = [(position, batch.id, number) for position, number in part]
        with transaction.atomic():
            update_each(BatchLine, ("position",), ("batch_id", "number"), rows)
    return True
