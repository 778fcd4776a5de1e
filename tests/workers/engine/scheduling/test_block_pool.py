import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from workers.engine.core.plan import NULL_BLOCK
from workers.engine.scheduling.block_pool import BlockPool

SIZE = 12


def test_a_request_for_too_many_takes_none() -> None:
    pool = BlockPool(4)
    assert pool.allocate(4) is None
    assert pool.num_free == pool.num_blocks == 3


def test_freeing_twice_is_a_bug() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    assert blocks is not None
    pool.free(blocks)
    with pytest.raises(AssertionError):
        pool.free(blocks)


def test_the_blocks_freed_last_go_out_first() -> None:
    pool = BlockPool(8)
    first = pool.allocate(2)
    pool.allocate(2)
    assert first is not None
    pool.free(first)
    assert pool.allocate(2) == first


def test_kept_blocks_outlive_their_holders_and_go_last() -> None:
    pool = BlockPool(6)
    evicted: list[int] = []
    pool.on_evict = evicted.append
    kept = pool.allocate(2)
    assert kept is not None
    for block in kept:
        pool.keep(block)
    pool.free(kept)
    assert (pool.num_idle, pool.num_used, pool.num_free) == (2, 0, 5)
    assert not set(pool.allocate(3) or ()) & set(kept)
    pool.share(kept[:1])
    assert evicted == []
    assert pool.allocate(1) == kept[1:] == evicted
    assert pool.allocate(1) is None


def test_sharing_a_free_block_is_a_bug() -> None:
    pool = BlockPool(4)
    with pytest.raises(AssertionError):
        pool.share([1])


class BlockPoolMachine(RuleBasedStateMachine):
    """The pool against plain lists of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(SIZE)
        self.pool.on_evict = self.evict
        self.held: list[list[int]] = []
        self.kept: list[int] = []  # least recently let go of first

    def evict(self, block: int) -> None:
        idle = [b for b in self.kept if not any(b in blocks for blocks in self.held)]
        assert block == idle[0]
        self.kept.remove(block)

    def num_used(self) -> int:
        return len({block for blocks in self.held for block in blocks})

    @rule(count=st.integers(0, SIZE + 1))
    def allocate(self, count: int) -> None:
        fits = count <= SIZE - 1 - self.num_used()
        blocks = self.pool.allocate(count)
        assert (blocks is not None) == fits
        if blocks is not None:
            assert len(set(blocks)) == count
            assert not set(blocks) & {b for owned in self.held for b in owned}
            assert not set(blocks) & set(self.kept)
            self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        blocks = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.free(blocks)
        for block in reversed(blocks):
            if block in self.kept and not any(block in other for other in self.held):
                self.kept.remove(block)
                self.kept.append(block)

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([b for blocks in self.held for b in blocks]))
        self.pool.keep(block)
        if block not in self.kept:
            self.kept.append(block)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.kept), unique=True))
        self.pool.share(blocks)
        self.held.append(blocks)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def unkeep(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.kept))
        self.pool.unkeep(block)
        self.kept.remove(block)

    @invariant()
    def no_block_is_lost_or_counted_wrongly(self) -> None:
        held = [block for blocks in self.held for block in blocks]
        assert self.pool.num_used == self.num_used()
        assert NULL_BLOCK not in held
        assert self.pool.num_free + self.pool.num_used == self.pool.num_blocks == SIZE - 1
        assert self.pool.num_idle == len(set(self.kept) - set(held))


BlockPoolMachine.TestCase.settings = settings(stateful_step_count=30)
TestBlockPool = BlockPoolMachine.TestCase
