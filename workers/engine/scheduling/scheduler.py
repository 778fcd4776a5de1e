"""Decides which sequences compute how many tokens in a step. No torch, no text, no clock."""

from bisect import insort
from collections.abc import Collection
from itertools import count

from workers.engine.core.draft import NO_DRAFT, Draft
from workers.engine.core.prefix_cache import PrefixCache
from workers.engine.core.sequence import Sequence
from workers.engine.core.sequence_parts import UNPLACED
from workers.engine.core.step import SchedulerOutput, StateRestore, StateSave
from workers.engine.scheduling.block_pool import BlockPool, SequenceBlocks
from workers.engine.scheduling.chunk_sizes import ChunkSizes, StepRoom
from workers.engine.scheduling.pending_prefixes import PendingPrefixes
from workers.engine.scheduling.turns import find_victims, is_before, is_overdue, take_turns
from workers.engine.scheduling.waiting_queue import WaitingQueue


class Scheduler:
    """Continuous batching under a budget of tokens, and of time where somebody waits for them.

    Every running sequence with one token left to compute does so, and so does one whose state was
    restored. The rest of the budget goes to tokens that a grammar forced, then to prompts, in
    chunks if necessary, the shortest first; then to waiting sequences in the order of
    :class:`WaitingQueue`. The head of the queue starts before a running prompt of the same rank
    goes on, if it is shorter than the rest of that one.

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
    describes, and to compute a chunk of its prompt. So does a long prompt beside shorter ones.

    A sequence whose prompt begins like one that is being computed waits and shares its blocks.
    """

    def __init__(
        self,
        block_pool: BlockPool,
        prefix_cache: PrefixCache | None,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        chunk_sizes: ChunkSizes | None = None,
    ) -> None:
        self._pool = block_pool
        self._cache = prefix_cache
        self._blocks = SequenceBlocks(block_pool, prefix_cache, block_size)
        self._sizes = chunk_sizes or ChunkSizes()
        self._budget = max_num_batched_tokens
        self._least_budget = 2 * max_num_seqs
        self.free_slots = list(range(max_num_seqs - 1, -1, -1))
        self.running: list[Sequence] = []  # most senior first
        self._queue = WaitingQueue(self._blocks.count_cached_tokens)
        self._arrivals = count()
        self._pending = PendingPrefixes(prefix_cache, block_size)
        self._restores: dict[Sequence, StateRestore] = {}
        """Copies of states that the next step restores."""
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
        sequence.turn.arrival = next(self._arrivals)
        self._queue.add(sequence)

    def schedule(self) -> SchedulerOutput:
        """Decide one step: admit and preempt sequences. :meth:`advance` records progress."""
        restored, self._restores = self._restores, {}
        output = SchedulerOutput(restores=list(restored.values()))
        preemptions = self.preemptions
        self._grow(output)
        crowded = self.preemptions > preemptions  # freed blocks go to running sequences
        if not crowded:
            self._make_way()
            self._give_turn()
            output.grown = [seq for seq in output.grown if seq.slot != UNPLACED]
        chunks = output.chunks
        unfinished = []
        num_left = self._budget
        for sequence in self.running:
            missing = len(sequence.token_ids) - sequence.num_computed
            if missing == 1 or sequence in restored:  # the step before had at least as many tokens
                chunks.append((sequence, missing))
                num_left -= missing
            else:
                unfinished.append(sequence)
        room = self._sizes.open(self.running, chunks, num_left)
        if not crowded:
            self._admit_owed(output, room, unfinished)
        for sequence in take_turns(unfinished) if len(unfinished) > 1 else unfinished:
            if not crowded and not is_overdue(sequence):
                self._admit(output, room, before=sequence)
            if room.place(sequence, output):
                sequence.turn.passed_over = 0
        if not crowded:
            self._admit(output, room)
        if self._cache is not None:
            output.saves = self._cache.plan((s, s.num_computed, size) for s, size in chunks)
        return output

    def look_ahead(self, flying: SchedulerOutput, rows: list[Sequence]) -> SchedulerOutput | None:
        """Plan the step after ``flying``, before the tokens that it adds to ``rows`` are known.

        Returns None unless nothing can change: no admission, no preemption, no last token, no more
        of a prompt to compute, and no block needed that is not free.
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
            if num_tokens >= len(sequence.block_ids) * self._blocks.block_size:
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
        its sequence. Return False if that leaves less than a free block for each running one."""
        sequence, size = output.chunks[index]
        num_tokens = len(sequence.token_ids) + len(draft.token_ids)
        missing = self._blocks.count_missing(sequence, num_tokens)
        if missing > 0:
            if missing > self._pool.num_free - len(self.running):
                return False
            self._lengthen(sequence, missing, output)
        if draft.state_row is not None:
            output.saves.append(StateSave(sequence, sequence.num_tokens, draft.state_row))
        if self._cache is not None:
            output.saves += self._cache.plan(
                [(sequence, sequence.num_tokens, len(draft.token_ids))]
            )
        sequence.draft = draft
        output.chunks[index] = (sequence, size + len(draft.token_ids))
        return True

    def settle(self, sequence: Sequence, spoilt: bool) -> int:
        """Drop a sequence's draft, except for accepted tokens. Return how many were accepted.

        If its keys and values are ``spoilt``, the sequence computes all its tokens again. If tokens
        that are dropped changed its state, that is restored, and accepted ones are computed again.
        """
        kept = sequence.count_accepted()
        draft, sequence.draft = sequence.draft, NO_DRAFT
        if sequence.finished:
            return kept
        if spoilt:
            self._preempt(sequence)
            return kept
        # The last token is computed even if it was before: its logits are needed.
        num_right = max(0, min(kept, sequence.num_uncomputed - 1))
        if draft.state_row is None or num_right == len(draft.token_ids):
            sequence.num_computed += num_right
        else:
            self._restores[sequence] = StateRestore(draft.state_row, sequence.slot)
            if self._cache is not None:
                self._cache.abandon(sequence)
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
        """Have the blocks with drafted tokens of ``sequences`` scrubbed before others get them."""
        for sequence in sequences:
            self._blocks.taint_uncomputed(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Drop a sequence in any state and free what it holds at once. Idempotent."""
        if sequence.finished:
            return
        sequence.finished = True
        if sequence.turn.arrival == UNPLACED:
            return
        if sequence.slot != UNPLACED:
            # What led to logits that were not finite is tainted, and must reach nobody.
            is_clean = self._pool.tainted.isdisjoint(sequence.block_ids)
            if sequence.draft is not NO_DRAFT and is_clean and self._cache is not None:
                self._cache.store(sequence, sequence.num_computed + sequence.count_accepted())
            self._release(sequence)
        elif not self._pending.leave(sequence):
            self._queue.remove(sequence)
        self._queue.forget(sequence)

    # Running ------------------------------------------------------------------------------------

    def _grow(self, output: SchedulerOutput) -> None:
        """Give running sequences the blocks that their tokens need, the most senior first. When
        none is left, the most junior sequences lose theirs."""
        for sequence in tuple(self.running):
            if sequence.slot == UNPLACED:
                return  # preempted, like all sequences after it
            missing = self._blocks.count_missing(sequence, sequence.num_tokens)
            if missing <= 0:
                continue
            while sequence.slot != UNPLACED and not self._lengthen(sequence, missing, output):
                self._preempt(self.running[-1])

    def _lengthen(self, sequence: Sequence, missing: int, output: SchedulerOutput) -> bool:
        """Give a sequence that many more blocks. Return False if too few are free."""
        if (tainted := self._blocks.lengthen(sequence, missing)) is None:
            return False
        output.grown.append(sequence)
        output.tainted += tainted
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
            if self.free_slots and self._has_room(head):
                return
            self._preempt(self.running[-1])

    def _give_turn(self) -> None:
        """Preempt for an organization that runs nothing, if others of its priority do."""
        if not self._queue:
            return
        for victim in self._find_victims() or ():
            victim.turn.has_yielded = True
            self._preempt(victim)

    def _find_victims(self) -> list[Sequence] | None:
        """Sequences that must make way for an organization that runs nothing; None if there is
        none, or they do not suffice."""
        head = self._queue.owed
        if head is None or (self.free_slots and self._has_room(head)):
            return None
        missing = self._blocks.count_lacking(head, self._blocks.match(head), len(self.running))
        return find_victims(self.running, head.rank, missing, self._pool.references)

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.num_computed = sequence.prefix.num_stored = 0
        self._queue.put_back(sequence)
        self.preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._queue.stop(sequence)
        self.free_slots.append(sequence.slot)
        sequence.slot = UNPLACED
        self._blocks.release(sequence)
        self._end_waits(sequence)

    def _confirm(self, sequence: Sequence) -> None:
        """Store a sequence's blocks: all its tokens are computed and the next one is sampled."""
        if self._cache is not None:
            if sequence.num_computed // self._blocks.block_size > sequence.prefix.num_stored:
                self._cache.store(sequence, sequence.num_computed)
            self._end_waits(sequence)
        if len(sequence.token_ids) >= sequence.turn.num_charged:
            self._queue.charge(sequence)

    # Waiting ------------------------------------------------------------------------------------

    def _admit_owed(
        self, output: SchedulerOutput, room: StepRoom, unfinished: list[Sequence]
    ) -> None:
        """Start a sequence of each organization that runs nothing, before prompts of the same rank
        take the room."""
        while not room.is_full and self.free_slots and (head := self._queue.owed) is not None:
            if any(each.rank > head.rank or is_overdue(each) for each in unfinished):
                break
            if (sequence := self._next(None)) is None:
                break
            self._begin(sequence, output, room)

    def _admit(
        self, output: SchedulerOutput, room: StepRoom, before: Sequence | None = None
    ) -> None:
        """Start waiting sequences, only those that go ``before`` a running one if given."""
        while not room.is_full and self.free_slots:
            sequence = self._next(before)
            if sequence is None:
                break
            self._begin(sequence, output, room)

    def _begin(self, sequence: Sequence, output: SchedulerOutput, room: StepRoom) -> None:
        output.admitted.append(sequence)
        if (row := sequence.prefix.states.restored_from) is not None:
            output.restores.append(StateRestore(row, sequence.slot))
        output.tainted += self._pool.take_tainted(sequence.block_ids)
        room.place(sequence, output)

    def _next(self, before: Sequence | None) -> Sequence | None:
        """Start the sequence whose turn it is, if there is room and no running sequence computes a
        prefix that it could share. Return it, or None."""
        while (sequence := self._queue.peek()) is not None:
            rank = self._queue.top_rank
            assert rank is not None
            if before is not None and not is_before(rank, sequence, before):
                return None
            matched = self._blocks.match(sequence)
            lacking = self._blocks.count_lacking(sequence, matched, len(self.running))
            if self._pending.wait(sequence, len(matched)):
                self._queue.remove(sequence)
                continue
            if lacking > 0:
                return None
            self._start(sequence, matched)
            return sequence
        return None

    def _has_room(self, sequence: Sequence) -> bool:
        """Return whether the pool has blocks for a sequence and one more for each running one."""
        matched = self._blocks.match(sequence)
        return self._blocks.count_lacking(sequence, matched, len(self.running)) <= 0

    def _start(self, sequence: Sequence, matched: list[int]) -> None:
        self._queue.start(sequence)
        for other in self.running:
            other.turn.passed_over += other.is_starting and other.rank <= sequence.rank
        self._blocks.start(sequence, matched)
        sequence.slot = self.free_slots.pop()
        sequence.turn.num_at_start = len(sequence.token_ids)
        sequence.turn.num_cached_at_start = sequence.num_computed
        insort(self.running, sequence, key=_seniority)
        if not sequence.turn.num_charged:  # it starts for the first time
            sequence.cached_tokens = min(sequence.num_computed, sequence.prompt_len)
            sequence.turn.num_charged = sequence.num_computed
            if self._cache is not None:
                self._cache.queries += sequence.num_tokens
                self._cache.hits += sequence.num_computed
        self._queue.charge(sequence)
        if self._cache is not None:
            self._cache.begin(sequence, len(matched))
        self._pending.begin(sequence, len(matched))

    def _end_waits(self, owner: Sequence) -> None:
        """Put back the sequences that wait for a sequence's blocks."""
        for sequence in reversed(self._pending.end(owner)):
            self._queue.put_back(sequence)


def _seniority(sequence: Sequence) -> tuple[float, int]:
    return -sequence.rank, sequence.turn.arrival
