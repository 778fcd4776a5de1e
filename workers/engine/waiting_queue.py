"""Who runs next: by priority, then by fair shares of organizations, then by arrival. No torch."""

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
    """One priority. ``ring`` are the tenants with waiting sequences, in order of their turns."""

    tenants: dict[str, _Tenant] = field(default_factory=dict)
    ring: deque[_Tenant] = field(default_factory=deque)


class WaitingQueue:
    """A larger priority always goes first. Inside one, deficit round robin (Shreedhar and
    Varghese, 1995) over organizations: each round grants every waiting organization the same
    number of tokens, whoever has credit left has its sequences started, and what they compute and
    generate is charged to it, so that backlogged organizations get the same number of tokens.

    Credit is not saved up: an organization that begins to wait stands no better than the best of
    those that wait already.
    """

    def __init__(self, cached_tokens: Callable[[Sequence], int]) -> None:
        self._cached_tokens = cached_tokens
        self._levels: dict[int, _Level] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def top_priority(self) -> int | None:
        return max((p for p, level in self._levels.items() if level.ring), default=None)

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
        return True

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended, which does not wait any more."""
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
        priority = self.top_priority
        if priority is None:
            return None
        tenant = self._turn(self._levels[priority].ring)
        if tenant.overtaken >= _MAX_OVERTAKEN or len(tenant.waiting) == 1:
            return next(iter(tenant.waiting))
        # max takes the first of equals, so without a cached prefix the order is that of arrival.
        return max(islice(tenant.waiting, _LOOK_AHEAD), key=self._cached_tokens)

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
