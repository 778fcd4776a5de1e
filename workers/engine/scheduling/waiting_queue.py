"""Decides which sequence runs next: by priority, without starvation, then by fair shares of
organizations, then by arrival. No torch."""

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from workers.engine.core.sequence import Sequence

QUANTUM = 256
"""Tokens granted to every waiting organization per round."""

_LOOK_AHEAD = 8
"""How far into an organization's queue a longer cached prefix may overtake the head."""

_MAX_OVERTAKEN = 16
"""How often the head of an organization's queue is overtaken before it must go first."""

_PAID_AHEAD = 64
"""Output tokens that a sequence is charged for in advance, when it starts and whenever it has used
them up. So sequences that start together are charged before they generate anything."""

MAX_PASSED_OVER = 32
"""How many sequences of higher priorities may start before a waiting one of a lower priority."""


@dataclass(slots=True, eq=False)
class _Tenant:
    """One organization within one priority, while it has sequences that have not ended."""

    waiting: OrderedDict[Sequence, None] = field(default_factory=OrderedDict)
    members: int = 0
    """Its sequences, waiting and running."""
    running: int = 0
    credit: int = 0
    """Tokens that it may still spend in this round; negative if its sequences took more."""
    overtaken: int = 0
    """How often other sequences overtook the head of its queue."""


@dataclass(slots=True)
class _Level:
    """One priority."""

    tenants: dict[str, _Tenant] = field(default_factory=dict)
    ring: deque[_Tenant] = field(default_factory=deque)
    """Organizations with waiting sequences, in the order of their turns."""
    passed_over: int = 0
    """Sequences of higher priorities that started since its last turn."""


class WaitingQueue:
    """Waiting sequences in the order of their turns.

    A larger priority goes first. A priority that was overtaken too often gets a turn: one of its
    sequences starts next and is *promoted*, so that it keeps its slot and blocks until it ends. At
    most one sequence is promoted at a time, which bounds what the higher priorities lose.

    Within a priority, organizations take turns by deficit round robin (Shreedhar and Varghese,
    "Efficient fair queueing using deficit round robin", SIGCOMM 1995). Each round grants every
    waiting organization the same number of tokens. An organization with credit starts sequences
    and pays for the tokens that they compute and generate, so that backlogged organizations get
    equal numbers of tokens.

    An organization that runs nothing goes before others; among several, the one with the highest
    credit. So each has at least one sequence running if there are as many slots as organizations.

    Credit does not accumulate: an organization that begins to wait has no more than the highest
    credit among the organizations already waiting.
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
        """The rank of the sequence whose turn it is."""
        return math.inf if self._overdue() is not None else self.top_priority

    @property
    def owed(self) -> Sequence | None:
        """The sequence whose turn it is, if its organization runs nothing on its priority."""
        if self._overdue() is not None or (priority := self.top_priority) is None:
            return None
        ring = self._levels[priority].ring
        return self.peek() if any(not tenant.running for tenant in ring) else None

    def add(self, sequence: Sequence) -> None:
        """Add a new sequence. The caller must :meth:`forget` it when it ends."""
        level = self._levels.setdefault(sequence.origin.priority, _Level())
        tenant = level.tenants.setdefault(sequence.origin.organization, _Tenant())
        tenant.members += 1
        self._insert(level, tenant, sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Add a removed sequence again, at the head of its organization's queue. A promoted one
        gives its turn back to its priority."""
        level, tenant = self._find(sequence)
        self._insert(level, tenant, sequence)
        tenant.waiting.move_to_end(sequence, last=False)
        if sequence is self._promoted:
            sequence.turn.promoted, self._promoted = False, None
            level.passed_over = MAX_PASSED_OVER

    def remove(self, sequence: Sequence) -> bool:
        """Remove a sequence. Return False if it is not waiting."""
        if sequence.origin.priority not in self._levels:
            return False
        level = self._levels[sequence.origin.priority]
        tenant = level.tenants.get(sequence.origin.organization)
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
        """Remove the sequence whose turn it is, and count its start. The caller must :meth:`stop`
        it when it stops running."""
        level = self._levels[sequence.origin.priority]
        if level is self._overdue():
            sequence.turn.promoted, self._promoted = True, sequence
        level.passed_over = 0
        self.remove(sequence)
        level.tenants[sequence.origin.organization].running += 1
        for priority, other in self._levels.items():
            if priority < sequence.origin.priority and other.ring:
                other.passed_over += 1

    def stop(self, sequence: Sequence) -> None:
        """Note that a sequence runs no more: it has ended, or will be put back."""
        self._find(sequence)[1].running -= 1

    def forget(self, sequence: Sequence) -> None:
        """Drop a sequence that has ended and is not waiting, and give back what was charged for
        tokens that it did not use."""
        if sequence is self._promoted:
            self._promoted = None
        level, tenant = self._find(sequence)
        tenant.credit += max(0, sequence.turn.num_charged - sequence.num_tokens)
        tenant.members -= 1
        if not tenant.members:
            del level.tenants[sequence.origin.organization]
        if not level.tenants:
            del self._levels[sequence.origin.priority]

    def charge(self, sequence: Sequence) -> None:
        """Charge a sequence's tokens, and some ahead, to its organization."""
        paid = min(sequence.num_tokens + _PAID_AHEAD, sequence.max_total_tokens)
        if paid > sequence.turn.num_charged:
            _, tenant = self._find(sequence)
            tenant.credit -= paid - sequence.turn.num_charged
            sequence.turn.num_charged = paid

    def peek(self) -> Sequence | None:
        """Return the sequence whose turn it is: the same one until something changes."""
        level = self._overdue()
        if level is None:
            if (priority := self.top_priority) is None:
                return None
            level = self._levels[priority]
        tenant = self._turn(level.ring)
        if tenant.overtaken >= _MAX_OVERTAKEN or len(tenant.waiting) == 1:
            return next(iter(tenant.waiting))
        # max returns the first of equals, so without cached prefixes the order of arrival holds.
        return max(islice(tenant.waiting, _LOOK_AHEAD), key=self._cached_tokens)

    def _overdue(self) -> _Level | None:
        """Return the priority that was overtaken too often, if no sequence is promoted now."""
        if self._promoted is not None:
            return None
        overdue = [x for x in self._levels.values() if x.passed_over >= MAX_PASSED_OVER]
        return max(overdue, key=lambda level: level.passed_over, default=None)

    @staticmethod
    def _turn(ring: deque[_Tenant]) -> _Tenant:
        if idle := [tenant for tenant in ring if not tenant.running]:
            return max(idle, key=lambda tenant: tenant.credit)
        best = max(tenant.credit for tenant in ring)
        if best <= 0:
            rounds = -best // QUANTUM + 1  # fewer leave every organization without credit
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
        level = self._levels[sequence.origin.priority]
        return level, level.tenants[sequence.origin.organization]
