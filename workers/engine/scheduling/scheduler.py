"""Which sequences compute how many tokens in a step. No torch, no text, no clock."""

from bisect import insort
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count

from workers.engine.scheduling.block_pool import BlockPool
from workers.engine.scheduling.prefix_cache import PrefixCache
from workers.engine.scheduling.waiting_queue import MAX_PASSED_OVER, WaitingQueue
from workers.engine.sequence import UNPLACED, Sequence

_PAID_AHEAD = 64
"""Output tokens that a sequence is charged for when it starts, and each time it has used them up:
many that start at once must count before they have generated anything."""


@dataclass(slots=True)
class SchedulerOutput:
    """One step's decision; the only thing the model runner sees of the scheduler.

    ``chunks`` gives each sequence that takes part the number of tokens it computes, counted from
    ``num_computed``. ``admitted`` are those whose slot and blocks are new, ``grown`` those that
    got more blocks. ``tainted`` blocks are to be scrubbed first.
    """

    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    grown: list[Sequence] = field(default_factory=list)
    tainted: list[int] = field(default_factory=list)


class Scheduler:
    """Continuous batching under a token budget.

    Every running sequence with one token left computes it; what remains of the budget goes to
    tokens that a grammar forced, then to prompts, cut into chunks where it does not suffice; then
    the waiting are admitted, in the order of :class:`WaitingQueue`.

    Seniority is rank, which is the priority except for a promoted sequence, then arrival. A
    sequence is admitted with the blocks of the tokens it has and gets more as it grows. When there
    are none, the most junior sequence is preempted: its blocks go, and it waits, first of its
    organization, to compute its tokens again. So the most senior sequence always runs, and since
    no sequence can need more than the whole pool, every sequence ends. The head of the queue is
    not overtaken by smaller ones that would fit, and a sequence of a higher priority takes slot
    and blocks from those of lower ones. However many arrive with higher priorities, each of a
    lower one has its turn: to start, as :class:`WaitingQueue` says, and to compute a chunk of its
    prompt.

    A sequence whose prompt begins like one that is being computed waits until that is done, and
    then shares its blocks.
    """

    def __init__(
        self,
        block_pool: BlockPool,
        prefix_cache: PrefixCache | None,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        self._pool = block_pool
        self._cache = prefix_cache
        self._block_size = block_size
        self._budget = max_num_batched_tokens
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._running: list[Sequence] = []  # most senior first
        self._queue = WaitingQueue(self._cached_tokens)
        self._arrivals = count()
        self._computing: dict[bytes, Sequence] = {}  # who computes a block that will be cached
        self._followers: dict[Sequence, list[Sequence]] = {}  # of each sequence in _computing
        self._following: dict[Sequence, Sequence] = {}
        self.preemptions = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._queue) + len(self._following)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._queue)

    def add(self, sequence: Sequence) -> None:
        sequence.arrival = next(self._arrivals)
        self._queue.add(sequence)

    def schedule(self) -> SchedulerOutput:
        """Decide one step. Admits and preempts, but advances nobody: that is :meth:`advance`."""
        output = SchedulerOutput()
        preemptions = self.preemptions
        self._grow(output)
        crowded = self.preemptions > preemptions  # what was freed is for those that still run
        if not crowded:
            self._make_way()
            output.grown = [seq for seq in output.grown if seq.slot != UNPLACED]
        chunks = output.chunks
        unfinished = []
        for sequence in self._running:
            if len(sequence.token_ids) - sequence.num_computed == 1:
                chunks.append((sequence, 1))
            else:
                unfinished.append(sequence)
        budget = self._budget - len(chunks)
        unfinished.sort(key=_turn)
        for sequence in unfinished:
            if not crowded and not _is_overdue(sequence):
                budget = self._admit(output, budget, above=sequence.rank)
            if placed := self._place(sequence, budget, chunks):
                sequence.passed_over = 0
                budget -= placed
        if not crowded:
            self._admit(output, budget)
        return output

    def look_ahead(self, rows: list[Sequence]) -> SchedulerOutput | None:
        """The step after the one that is giving a token to each of ``rows``, before it has: every
        running sequence computes that token, whatever it will be.

        None if more is to be decided: somebody could be admitted, is at its last token, has more
        to compute, or would need a block of others.
        """
        if len(rows) != len(self._running) or (self._queue and self._free_slots):
            return None
        ends = any(s.finished or s.num_tokens + 1 >= s.max_total_tokens for s in rows)
        short = [s for s in rows if s.num_tokens >= len(s.block_ids) * self._block_size]
        if ends or len(short) > self._pool.num_free:
            return None
        output = SchedulerOutput(chunks=[(sequence, 1) for sequence in rows], grown=short)
        for sequence in short:
            blocks = self._pool.allocate(1)
            assert blocks is not None
            sequence.block_ids += blocks
            output.tainted += self._pool.take_tainted(blocks)
        return output

    def advance(self, output: SchedulerOutput, faulty: Collection[Sequence] = ()) -> None:
        """Record that the step's tokens are in the KV cache.

        What led to a token that could be sampled may be shared; what led to logits that are no
        distribution, those of ``faulty`` sequences, must not reach anybody else.
        """
        for sequence, num_tokens in output.chunks:
            if sequence.finished:  # while the step was under way
                continue
            sequence.num_computed += num_tokens
            if sequence.num_computed == len(sequence.token_ids) and sequence not in faulty:
                self._confirm(sequence)
        for sequence in faulty:
            self._pool.taint(sequence.block_ids)
            if self._cache is not None:
                self._cache.discard(sequence.block_ids)

    def finish(self, sequence: Sequence) -> None:
        """Drop a sequence in any state and free what it holds at once. Idempotent."""
        if sequence.finished:
            return
        sequence.finished = True
        if sequence.arrival == UNPLACED:
            return
        if sequence.slot != UNPLACED:
            self._release(sequence)
        elif (leader := self._following.pop(sequence, None)) is not None:
            self._followers[leader].remove(sequence)
        else:
            self._queue.remove(sequence)
        if (unused := sequence.num_charged - sequence.num_tokens) > 0:
            self._queue.charge(sequence, -unused)
        self._queue.forget(sequence)

    # Running ------------------------------------------------------------------------------------

    def _grow(self, output: SchedulerOutput) -> None:
        """Give running sequences the blocks that their tokens need, the most senior first; where
        there are none, the most junior lose theirs."""
        for sequence in tuple(self._running):
            if sequence.slot == UNPLACED:
                return  # preempted, like all after it
            missing = self._blocks_needed(sequence) - len(sequence.block_ids)
            if missing <= 0:
                continue
            while sequence.slot != UNPLACED:
                if (blocks := self._pool.allocate(missing)) is not None:
                    sequence.block_ids += blocks
                    output.grown.append(sequence)
                    output.tainted += self._pool.take_tainted(blocks)
                    break
                self._preempt(self._running[-1])

    def _make_way(self) -> None:
        """Preempt sequences whose slot or blocks one of a higher priority waits for."""
        while self._running and (top := self._queue.top_priority) is not None:
            if self._running[-1].rank >= top:
                return
            head = self._queue.peek()
            assert head is not None
            if self._free_slots and self._has_room(head, self._match(head)):
                return
            self._preempt(self._running[-1])

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.num_computed = sequence.num_stored = 0
        self._queue.put_back(sequence)
        self.preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._pool.free(sequence.block_ids)
        self._free_slots.append(sequence.slot)
        sequence.block_ids, sequence.slot = [], UNPLACED
        self._dismiss_followers(sequence)

    def _confirm(self, sequence: Sequence) -> None:
        """All tokens of a sequence are computed and led to a next one."""
        if self._cache is not None:
            if sequence.num_computed // self._block_size > sequence.num_stored:
                self._cache.store(sequence)
            if sequence in self._followers:
                self._dismiss_followers(sequence)
        if sequence.num_tokens >= sequence.num_charged:
            self._charge(sequence)

    def _charge(self, sequence: Sequence) -> None:
        paid = min(sequence.num_tokens + _PAID_AHEAD, sequence.max_total_tokens)
        if paid > sequence.num_charged:
            self._queue.charge(sequence, paid - sequence.num_charged)
            sequence.num_charged = paid

    @staticmethod
    def _place(sequence: Sequence, budget: int, chunks: list[tuple[Sequence, int]]) -> int:
        num_tokens = min(sequence.num_uncomputed, budget)
        if num_tokens > 0:
            chunks.append((sequence, num_tokens))
        return num_tokens

    # Waiting ------------------------------------------------------------------------------------

    def _admit(self, output: SchedulerOutput, budget: int, above: float | None = None) -> int:
        """Start waiting sequences, of ranks ``above`` one if given; return what is left."""
        while budget > 0 and self._free_slots:
            sequence = self._next(above)
            if sequence is None:
                break
            output.admitted.append(sequence)
            output.tainted += self._pool.take_tainted(sequence.block_ids)
            budget -= self._place(sequence, budget, output.chunks)
        return budget

    def _next(self, above: float | None) -> Sequence | None:
        """Start whose turn it is, once nobody computes what it could share, if there is room."""
        while (top := self._queue.top_rank) is not None and (above is None or top > above):
            sequence = self._queue.peek()
            assert sequence is not None
            matched = self._match(sequence)
            if (leader := self._leader(sequence, len(matched))) is not None:
                self._queue.remove(sequence)
                self._followers[leader].append(sequence)
                self._following[sequence] = leader
                continue
            if not self._has_room(sequence, matched):
                return None
            self._start(sequence, matched)
            return sequence
        return None

    def _has_room(self, sequence: Sequence, matched: list[int]) -> bool:
        """Whether there are blocks for a sequence's tokens, and one more for each that runs."""
        self._pool.share(matched)
        needed = self._blocks_needed(sequence) - len(matched) + len(self._running)
        has_room = needed <= self._pool.num_free
        self._pool.free(matched)
        return has_room

    def _start(self, sequence: Sequence, matched: list[int]) -> None:
        self._queue.start(sequence)
        for other in self._running:
            other.passed_over += other.rank < sequence.rank
        self._pool.share(matched)
        blocks = self._pool.allocate(self._blocks_needed(sequence) - len(matched))
        assert blocks is not None
        sequence.block_ids = matched + blocks
        sequence.slot = self._free_slots.pop()
        sequence.num_computed = len(matched) * self._block_size
        sequence.num_stored = len(matched)
        insort(self._running, sequence, key=_seniority)
        if not sequence.num_charged:  # it starts for the first time
            sequence.cached_tokens = min(sequence.num_computed, sequence.prompt_len)
            sequence.num_charged = sequence.num_computed
            if self._cache is not None:
                self._cache.queries += sequence.num_tokens
                self._cache.hits += sequence.num_computed
        self._charge(sequence)
        if self._cache is not None:
            self._followers[sequence] = []
            for digest in self._cache.hashes(sequence)[len(matched) :]:
                self._computing.setdefault(digest, sequence)

    def _leader(self, sequence: Sequence, num_matched: int) -> Sequence | None:
        """Who is computing blocks that are worth waiting for: most of what either has to do."""
        if self._cache is None or not self._followers:
            return None
        usable = self._cache.usable_hashes(sequence)[num_matched:]
        leader = self._computing.get(usable[0]) if usable else None
        if leader is None or leader.priority < sequence.priority:
            return None
        shared = 0
        for digest in usable:
            if self._computing.get(digest) is not leader:
                break
            shared += self._block_size
        to_do = sequence.num_tokens - num_matched * self._block_size
        return leader if 2 * shared >= max(to_do, leader.num_uncomputed) else None

    def _dismiss_followers(self, leader: Sequence) -> None:
        """What a sequence computed is cached by now, or will not be: nobody waits for it more."""
        if leader not in self._followers:
            return
        for sequence in reversed(self._followers.pop(leader)):
            del self._following[sequence]
            self._queue.put_back(sequence)
        for digest in leader.block_hashes:
            if self._computing.get(digest) is leader:
                del self._computing[digest]

    def _match(self, sequence: Sequence) -> list[int]:
        return self._cache.match(sequence) if self._cache is not None else []

    def _cached_tokens(self, sequence: Sequence) -> int:
        return len(self._match(sequence)) * self._block_size

    def _blocks_needed(self, sequence: Sequence) -> int:
        return -(-len(sequence.token_ids) // self._block_size)


def _seniority(sequence: Sequence) -> tuple[float, int]:
    return -sequence.rank, sequence.arrival


def _turn(sequence: Sequence) -> tuple[bool, bool]:
    """Who decodes, and has several tokens at once because they were forced, goes before prompts;
    of these, who was passed over too often."""
    is_prefill = sequence.num_computed < sequence.prompt_len
    return is_prefill, not _is_overdue(sequence)


def _is_overdue(sequence: Sequence) -> bool:
    return sequence.passed_over >= MAX_PASSED_OVER
