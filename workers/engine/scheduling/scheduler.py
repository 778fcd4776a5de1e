"""Decides which sequences compute how many tokens in a step. No torch, no text, no clock."""

from bisect import insort
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count

from workers.engine.scheduling.block_pool import BlockPool
from workers.engine.scheduling.pending_prefixes import PendingPrefixes
from workers.engine.scheduling.prefix_cache import PrefixCache
from workers.engine.scheduling.saved_states import StatefulPrefixCache, StateSave
from workers.engine.scheduling.turns import is_overdue, pop_newest, take_turns
from workers.engine.scheduling.waiting_queue import WaitingQueue
from workers.engine.sequence import UNPLACED, Sequence
from workers.engine.speculation.draft import NO_DRAFT, Draft

_PAID_AHEAD = 64
"""Output tokens that a sequence is charged for in advance, when it starts and whenever it has used
them up. So sequences that start together are charged before they generate anything."""


@dataclass(slots=True)
class SchedulerOutput:
    """One step's decision, and all that the model runner sees of the scheduler."""

    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    """The sequences of the step, each with the number of tokens it computes from
    ``num_computed`` on."""
    admitted: list[Sequence] = field(default_factory=list)
    """Sequences with a new slot and new blocks."""
    grown: list[Sequence] = field(default_factory=list)
    """Running sequences with additional blocks."""
    tainted: list[int] = field(default_factory=list)
    """Blocks to scrub before the step."""
    saves: list[StateSave] = field(default_factory=list)
    """States to save while the step computes them."""


class Scheduler:
    """Continuous batching under a token budget.

    Every running sequence with one token left to compute does so. The rest of the budget goes to
    tokens that a grammar forced, then to prompts, in chunks if necessary, then to waiting
    sequences in the order of :class:`WaitingQueue`.

    Seniority is rank, then arrival. Rank is the priority, except for a promoted sequence. A
    sequence starts with the blocks for the tokens it has and gets more as it grows. When the pool
    is empty, the most junior sequence is preempted: it loses its blocks, waits at the head of its
    organization, and computes its tokens again. So the most senior sequence always runs, and since
    no sequence needs more than the whole pool, every sequence ends.

    An organization that runs nothing gets a slot of the one that has most on the same priority, as
    soon as one of its sequences may yield. However long others generate, nobody waits for their
    end.

    Smaller sequences that would fit do not overtake the head of the queue. A sequence of a higher
    priority takes its slot and blocks from lower-priority ones. However many high-priority
    sequences arrive, a lower priority still gets its turn to start, as :class:`WaitingQueue`
    describes, and to compute a chunk of its prompt.

    A sequence whose prompt begins like one that is being computed waits for it, then shares its
    blocks.
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
        self._least_budget = 2 * max_num_seqs
        self.free_slots = list(range(max_num_seqs - 1, -1, -1))
        self.running: list[Sequence] = []  # most senior first
        self._queue = WaitingQueue(self._cached_tokens)
        self._arrivals = count()
        self._pending = PendingPrefixes(prefix_cache, block_size)
        self.preemptions = 0

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        return len(self._queue) + len(self._pending)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self._queue)

    def add(self, sequence: Sequence) -> None:
        sequence.arrival = next(self._arrivals)
        self._queue.add(sequence)

    def schedule(self) -> SchedulerOutput:
        """Decide one step: admit and preempt sequences. :meth:`advance` records progress."""
        output = SchedulerOutput()
        preemptions = self.preemptions
        self._grow(output)
        crowded = self.preemptions > preemptions  # freed blocks go to running sequences
        if not crowded:
            self._make_way()
            self._give_turn()
            output.grown = [seq for seq in output.grown if seq.slot != UNPLACED]
        chunks = output.chunks
        unfinished = []
        for sequence in self.running:
            if len(sequence.token_ids) - sequence.num_computed == 1:
                chunks.append((sequence, 1))
            else:
                unfinished.append(sequence)
        budget = self._budget - len(chunks)
        if not crowded:
            budget = self._admit_owed(output, budget, unfinished)
        unfinished = take_turns(unfinished)
        for sequence in unfinished:
            if not crowded and not is_overdue(sequence):
                budget = self._admit(output, budget, above=sequence.rank)
            if placed := self._place(sequence, budget, chunks):
                sequence.passed_over = 0
                budget -= placed
        if not crowded:
            self._admit(output, budget)
        if isinstance(self._cache, StatefulPrefixCache):
            output.saves = self._cache.plan(chunks)
        return output

    def look_ahead(self, flying: SchedulerOutput, rows: list[Sequence]) -> SchedulerOutput | None:
        """Decide the step after the one ``flying``, which adds a token to each of ``rows``. In the
        new step, every running sequence computes that token, whatever it turns out to be.

        Returns None if the step needs a real decision: a sequence could be admitted, must make way,
        is at its last token, has more to compute, or needs a block that is not free.
        """
        may_start = self._queue and (
            self.free_slots or self._is_outranked or self._find_victims() is not None
        )
        if len(rows) != len(self.running) or may_start:
            return None
        short = []
        for sequence, size in flying.chunks:
            num_tokens = len(sequence.token_ids)
            if (
                sequence.finished
                or num_tokens + 1 >= sequence.max_total_tokens
                or num_tokens - sequence.num_computed != size
            ):
                return None
            if num_tokens >= len(sequence.block_ids) * self._block_size:
                short.append(sequence)
        if len(short) > self._pool.num_free:
            return None
        output = SchedulerOutput(chunks=[(sequence, 1) for sequence in rows])
        for sequence in short:
            self._lengthen(sequence, 1, output)
        return output

    def halve_budget(self) -> int | None:
        """Let later steps have half as many tokens. Return how many, or None if prompts would
        hardly advance beside a full batch; then nothing changes."""
        if self._budget // 2 < self._least_budget:
            return None
        self._budget //= 2
        return self._budget

    def extend(self, output: SchedulerOutput, index: int, draft: Draft) -> bool:
        """Let the step compute a draft after its ``index``-th chunk, which must reach the end of
        its sequence. Return False if no block remains for it after reserving one for the next
        token of each running sequence: a draft never preempts a sequence."""
        sequence, size = output.chunks[index]
        num_tokens = len(sequence.token_ids) + len(draft.token_ids)
        missing = -(-num_tokens // self._block_size) - len(sequence.block_ids)
        if missing > 0:
            if missing > self._pool.num_free - len(self.running):
                return False
            self._lengthen(sequence, missing, output)
        sequence.draft = draft
        output.chunks[index] = (sequence, size + len(draft.token_ids))
        return True

    def settle(self, sequence: Sequence, spoilt: bool) -> int:
        """Drop a sequence's draft, except for accepted tokens. Return how many were accepted.

        If its keys and values are ``spoilt``, the sequence computes all its tokens again.
        """
        draft, sequence.draft = sequence.draft, NO_DRAFT
        gained = sequence.token_ids[sequence.num_computed :]
        kept = 0
        for drafted, actual in zip(draft.token_ids, gained, strict=False):
            if drafted != actual:
                break
            kept += 1
        if sequence.finished:
            return kept
        if spoilt:
            self._preempt(sequence)
            return kept
        # The last token is computed even if it was before: its logits are needed.
        sequence.num_computed += min(kept, len(gained) - 1) if gained else 0
        self._confirm(sequence)
        return kept

    def advance(self, output: SchedulerOutput, faulty: Collection[Sequence] = ()) -> None:
        """Record that the step's tokens are in the KV cache.

        Blocks that led to a sampled token may be shared. Those of ``faulty`` sequences, whose
        logits were not finite, must not reach another sequence.
        """
        for sequence, num_tokens in output.chunks:
            if sequence.finished:  # while the step was under way
                continue
            sequence.num_computed += num_tokens - len(sequence.draft.token_ids)
            if sequence.num_computed == len(sequence.token_ids) and sequence not in faulty:
                self._confirm(sequence)
        for sequence in faulty:
            self._pool.taint(sequence.block_ids)
            if self._cache is not None:
                self._cache.discard(sequence.block_ids)

    def taint_drafts(self, sequences: Collection[Sequence]) -> None:
        """Have the blocks that hold drafted tokens of ``sequences`` scrubbed before they are
        allocated again."""
        for sequence in sequences:
            first = sequence.num_computed // self._block_size
            self._pool.taint(sequence.block_ids[first:])

    def finish(self, sequence: Sequence) -> None:
        """Drop a sequence in any state and free what it holds at once. Idempotent."""
        if sequence.finished:
            return
        sequence.finished = True
        if sequence.arrival == UNPLACED:
            return
        if sequence.slot != UNPLACED:
            self._release(sequence)
        elif not self._pending.leave(sequence):
            self._queue.remove(sequence)
        if (unused := sequence.num_charged - sequence.num_tokens) > 0:
            self._queue.charge(sequence, -unused)
        self._queue.forget(sequence)

    # Running ------------------------------------------------------------------------------------

    def _grow(self, output: SchedulerOutput) -> None:
        """Give running sequences the blocks that their tokens need, the most senior first. When
        none is left, the most junior sequences lose theirs."""
        for sequence in tuple(self.running):
            if sequence.slot == UNPLACED:
                return  # preempted, like all sequences after it
            missing = self._blocks_needed(sequence) - len(sequence.block_ids)
            if missing <= 0:
                continue
            while sequence.slot != UNPLACED and not self._lengthen(sequence, missing, output):
                self._preempt(self.running[-1])

    def _lengthen(self, sequence: Sequence, missing: int, output: SchedulerOutput) -> bool:
        """Give a sequence that many more blocks. Return False if too few are free."""
        if (blocks := self._pool.allocate(missing)) is None:
            return False
        sequence.block_ids += blocks
        output.grown.append(sequence)
        output.tainted += self._pool.take_tainted(blocks)
        return True

    @property
    def _is_outranked(self) -> bool:
        """Whether a waiting sequence has a higher priority than the most junior running one."""
        top = self._queue.top_priority
        return top is not None and bool(self.running) and self.running[-1].rank < top

    def _make_way(self) -> None:
        """Preempt sequences whose slot or blocks a waiting sequence of a higher priority needs."""
        while self._is_outranked:
            head = self._queue.peek()
            assert head is not None
            if self.free_slots and self._has_room(head, self._match(head)):
                return
            self._preempt(self.running[-1])

    def _give_turn(self) -> None:
        """Preempt for an organization that runs nothing, if others of its priority do."""
        if not self._queue:
            return
        for victim in self._find_victims() or ():
            victim.has_yielded = True
            self._preempt(victim)

    def _find_victims(self) -> list[Sequence] | None:
        """The newest sequences of the organizations with the most slots, as many as must make way
        for an organization that runs nothing; None if there is none, or they do not suffice.

        An organization keeps its last slot until the sequence in it has progressed, and a
        sequence that has yielded before does not again until then. So time goes into progress, not
        into computing tokens again and again.
        """
        head = self._queue.owed
        if head is None or (self.free_slots and self._has_room(head, self._match(head))):
            return None
        by_owner: dict[str, list[Sequence]] = {}
        for sequence in self.running:  # the oldest of each organization first
            if sequence.rank == head.rank:
                by_owner.setdefault(sequence.organization, []).append(sequence)
        missing = self._blocks_missing(head, self._match(head))
        holders = Counter[int]()
        victims: list[Sequence] = []
        while not victims or missing > 0:
            if (victim := pop_newest(by_owner)) is None:
                return None
            victims.append(victim)
            holders.update(victim.block_ids)
            freed = sum(holders[b] == self._pool.references[b] for b in victim.block_ids)
            missing -= freed + 1
        return victims

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.num_computed = sequence.num_stored = 0
        self._queue.put_back(sequence)
        self.preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._queue.stop(sequence)
        self._pool.free(sequence.block_ids)
        self.free_slots.append(sequence.slot)
        sequence.block_ids, sequence.slot = [], UNPLACED
        if self._cache is not None:
            self._cache.abandon(sequence)
        self._end_waits(sequence)

    def _confirm(self, sequence: Sequence) -> None:
        """Store a sequence's blocks: all its tokens are computed and the next one is sampled."""
        if self._cache is not None:
            if sequence.num_computed // self._block_size > sequence.num_stored:
                self._cache.store(sequence)
            self._end_waits(sequence)
        if len(sequence.token_ids) >= sequence.num_charged:
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
            begun = min(sequence.prompt_len, sequence.num_computed + num_tokens)
            sequence.num_begun = max(sequence.num_begun, begun)
        return num_tokens

    # Waiting ------------------------------------------------------------------------------------

    def _admit_owed(self, output: SchedulerOutput, budget: int, unfinished: list[Sequence]) -> int:
        """Start a sequence of each organization that runs nothing, before prompts of the same rank
        take the budget. Return the budget left."""
        while budget > 0 and self.free_slots and (head := self._queue.owed) is not None:
            if any(each.rank > head.rank or is_overdue(each) for each in unfinished):
                break
            if (sequence := self._next(None)) is None:
                break
            budget = self._begin(sequence, output, budget)
        return budget

    def _admit(self, output: SchedulerOutput, budget: int, above: float | None = None) -> int:
        """Start waiting sequences, only those ranked ``above`` if given. Return the budget left."""
        while budget > 0 and self.free_slots:
            sequence = self._next(above)
            if sequence is None:
                break
            budget = self._begin(sequence, output, budget)
        return budget

    def _begin(self, sequence: Sequence, output: SchedulerOutput, budget: int) -> int:
        output.admitted.append(sequence)
        output.tainted += self._pool.take_tainted(sequence.block_ids)
        return budget - self._place(sequence, budget, output.chunks)

    def _next(self, above: float | None) -> Sequence | None:
        """Start the sequence whose turn it is, if there is room and no running sequence computes a
        prefix that it could share. Return it, or None."""
        while (top := self._queue.top_rank) is not None and (above is None or top > above):
            sequence = self._queue.peek()
            assert sequence is not None
            matched = self._match(sequence)
            if self._pending.wait(sequence, len(matched)):
                self._queue.remove(sequence)
                continue
            if not self._has_room(sequence, matched):
                return None
            self._start(sequence, matched)
            return sequence
        return None

    def _has_room(self, sequence: Sequence, matched: list[int]) -> bool:
        """Whether the pool has blocks for a sequence's tokens and one more for each running one."""
        return self._blocks_missing(sequence, matched) <= 0

    def _blocks_missing(self, sequence: Sequence, matched: list[int]) -> int:
        """How many blocks too few the pool has for :meth:`_has_room`; negative if it has more."""
        self._pool.share(matched)
        needed = self._blocks_needed(sequence) - len(matched) + len(self.running)
        missing = needed - self._pool.num_free
        self._pool.free(matched)
        return missing

    def _start(self, sequence: Sequence, matched: list[int]) -> None:
        self._queue.start(sequence)
        for other in self.running:
            other.passed_over += other.rank < sequence.rank
        self._pool.share(matched)
        blocks = self._pool.allocate(self._blocks_needed(sequence) - len(matched))
        assert blocks is not None
        sequence.block_ids = matched + blocks
        sequence.slot = self.free_slots.pop()
        sequence.num_at_start = len(sequence.token_ids)
        sequence.num_computed = len(matched) * self._block_size
        sequence.num_cached_at_start = sequence.num_computed
        sequence.num_stored = len(matched)
        insort(self.running, sequence, key=_seniority)
        if not sequence.num_charged:  # it starts for the first time
            sequence.cached_tokens = min(sequence.num_computed, sequence.prompt_len)
            sequence.num_charged = sequence.num_computed
            if self._cache is not None:
                self._cache.queries += sequence.num_tokens
                self._cache.hits += sequence.num_computed
        self._charge(sequence)
        if self._cache is not None:
            self._cache.begin(sequence, len(matched))
        self._pending.begin(sequence, len(matched))

    def _end_waits(self, owner: Sequence) -> None:
        """Put back the sequences that wait for a sequence's blocks."""
        for sequence in reversed(self._pending.end(owner)):
            self._queue.put_back(sequence)

    def _match(self, sequence: Sequence) -> list[int]:
        return self._cache.match(sequence) if self._cache is not None else []

    def _cached_tokens(self, sequence: Sequence) -> int:
        return len(self._match(sequence)) * self._block_size

    def _blocks_needed(self, sequence: Sequence) -> int:
        return -(-len(sequence.token_ids) // self._block_size)


def _seniority(sequence: Sequence) -> tuple[float, int]:
    return -sequence.rank, sequence.arrival
