"""Who runs next: by priority, as long as that starves nobody, then by fair shares of
organizations, then by arrival. No torch."""

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from workers.engine.sequence import Sequence

QUANTUM = 256
"""Tokens that every organization with waiting sequences is granted per round."""

_LOOK_AHEAD = 8
"""Waiting sequences of one organization among which the one with the longest cached prefix goes
first."""

_MAX_OVERTAKEN = 16
"""Times that the head of an organization's queue is overtaken before it is its turn whatever is
cached."""

MAX_PASSED_OVER = 32
"""Sequences that start before others of lower priority that have waited longer; then it is the
turn of one of these."""


@dataclass(slots=True, eq=False)
class _Tenant:
    """One organization inside one priority, while it has sequences that have not ended.

    ``credit`` is what it may still spend in this round, in tokens, and negative after sequences
    that took more; ``members`` counts its sequences, waiting and running.
    """

    waiting: OrderedDict[Sequence, None] = field(default_factory=OrderedDict)
    members: int = 0
    credit: int = 0
    overtaken: int = 0


@dataclass(slots=True)
class _Level:
    """One priority. ``ring`` are the tenants with waiting sequences, in order of their turns, and
    ``passed_over`` counts the sequences of higher priorities that started since it had a turn."""

    tenants: dict[str, _Tenant] = field(default_factory=dict)
    ring: deque[_Tenant] = field(default_factory=deque)
    passed_over: int = 0


class WaitingQueue:
    """A larger priority goes first, but one that is passed over too often has a turn: one of its
    sequences starts next and is *promoted*, so that it keeps what it got until it ends. There is
    one promoted sequence at most, which bounds what the higher priorities lose.

    Inside a priority, deficit round robin (Shreedhar and
    Varghese, 1995) over organizations: each round grants every waiting organization the same
    number of tokens, whoever has credit left has its sequences started, and what they compute and
    generate is charged to it, so that backlogged organizations get the same number of tokens.

    Credit is not saved up: an organization that begins to wait stands no better than the best of
    those that wait already.
    """

    def __init__(self, cached_tokens: Callable[[Sequence], int]) -> None:
        self._cached_tokens = cached_tokens
        self._levels: dict[int, _Level] = {}
        self._promoted: Sequence | None = None
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def top_priority(self) -> int | None:
        return max((p for p, level in self._levels.items() if level.ring), default=None)

    @property
    def top_rank(self) -> float | None:
        """The rank that whose turn it is will have."""
        return math.inf if self._overdue() is not None else self.top_priority

    def add(self, sequence: Sequence) -> None:
        """Take in a new sequence, which :meth:`forget` must end."""
        level = self._levels.setdefault(sequence.priority, _Level())
        tenant = level.tenants.setdefault(sequence.organization, _Tenant())
        tenant.members += 1
        self._insert(level, tenant, sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Take in again, before all others of its organization, what :meth:`remove` gave away."""
        level, tenant = self._find(sequence)
        self._insert(level, tenant, sequence)
        tenant.waiting.move_to_end(sequence, last=False)

    def remove(self, sequence: Sequence) -> bool:
        """Take a sequence out; False when it does not wait here."""
        if sequence.priority not in self._levels:
            return False
        level = self._levels[sequence.priority]
        tenant = level.tenants.get(sequence.organization)
        if tenant is None or sequence not in tenant.waiting:
            return False
        if sequence is next(iter(tenant.waiting)):
            tenant.overtaken = 0
        else:
            tenant.overtaken += 1
        del tenant.waiting[sequence]
        self._size -= 1
        if not tenant.waiting:
            level.ring.remove(tenant)
            if not level.ring:
                level.passed_over = 0
        return True

    def start(self, sequence: Sequence) -> None:
        """Take out the sequence whose turn it is, to run."""
        level = self._levels[sequence.priority]
        if level is self._overdue():
            sequence.promoted, self._promoted = True, sequence
        level.passed_over = 0
        self.remove(sequence)
        for priority, other in self._levels.items():
            if priority < sequence.priority and other.ring:
                other.passed_over += 1

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended, which does not wait any more."""
        if sequence is self._promoted:
            self._promoted = None
        level, tenant = self._find(sequence)
        tenant.members -= 1
        if not tenant.members:
            del level.tenants[sequence.organization]
        if not level.tenants:
            del self._levels[sequence.priority]

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """Count tokens against a sequence's organization, or give some back."""
        _, tenant = self._find(sequence)
        tenant.credit -= num_tokens

    def peek(self) -> Sequence | None:
        """Whose turn it is; the same until something changes."""
        level = self._overdue()
        if level is None:
            if (priority := self.top_priority) is None:
                return None
            level = self._levels[priority]
        tenant = self._turn(level.ring)
        if tenant.overtaken >= _MAX_OVERTAKEN or len(tenant.waiting) == 1:
            return next(iter(tenant.waiting))
        # max takes the first of equals, so without a cached prefix the order is that of arrival.
        return max(islice(tenant.waiting, _LOOK_AHEAD), key=self._cached_tokens)

    def _overdue(self) -> _Level | None:
        """The priority that was passed over too often, if nobody is promoted at the moment."""
        if self._promoted is not None:
            return None
        overdue = [x for x in self._levels.values() if x.passed_over >= MAX_PASSED_OVER]
        return max(overdue, key=lambda level: level.passed_over, default=None)

    @staticmethod
    def _turn(ring: deque[_Tenant]) -> _Tenant:
        best = max(tenant.credit for tenant in ring)
        if best <= 0:
            rounds = -best // QUANTUM + 1  # in fewer, nobody would have credit
            for tenant in ring:
                tenant.credit += rounds * QUANTUM
        while ring[0].credit <= 0:
            ring.rotate(-1)
        return ring[0]

    def _insert(self, level: _Level, tenant: _Tenant, sequence: Sequence) -> None:
        if not tenant.waiting:
            rivals = level.ring or [t for t in level.tenants.values() if t is not tenant]
            tenant.credit = min(tenant.credit, max((t.credit for t in rivals), default=0))
            level.ring.append(tenant)
        tenant.waiting[sequence] = None
        self._size += 1

    def _find(self, sequence: Sequence) -> tuple[_Level, _Tenant]:
        level = self._levels[sequence.priority]
        return level, level.tenants[sequence.organization]
