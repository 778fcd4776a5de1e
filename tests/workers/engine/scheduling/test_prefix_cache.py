from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.contract.sampling import SamplingParams
from workers.engine.core.sequence import Sequence
from workers.engine.core.sequence_parts import Prefix, PromptHashes
from workers.engine.scheduling import prefix_cache
from workers.engine.scheduling.block_pool import BlockPool
from workers.engine.scheduling.prefix_cache import BlockPrefixCache, chain_salt

SIZE = 4


def sequence(tokens: list[int], salt: bytes = b"") -> Sequence:
    return Sequence(
        sampling=SamplingParams(),
        choice=Mock(),
        token_ids=list(tokens),
        prompt_len=len(tokens),
        max_total_tokens=100,
        prefix=Prefix(salt),
    )


def computed(
    pool: BlockPool, cache: BlockPrefixCache, tokens: list[int], salt: bytes = b""
) -> Sequence:
    """A sequence with all its tokens in blocks of its own, and stored."""
    seq = sequence(tokens, salt)
    blocks = pool.allocate(-(-len(tokens) // SIZE))
    assert blocks is not None
    seq.block_ids, seq.num_computed = blocks, len(tokens)
    cache.store(seq, seq.num_computed)
    return seq


def make(num_blocks: int = 10) -> tuple[BlockPool, BlockPrefixCache]:
    pool = BlockPool(num_blocks + 1)
    return pool, BlockPrefixCache(pool, SIZE)


@given(
    st.lists(st.integers(0, 1), max_size=20),
    st.lists(st.integers(0, 1), min_size=1, max_size=20),
    st.booleans(),
)
def test_what_is_found_is_the_common_prefix_in_full_blocks(
    stored: list[int], asked: list[int], same_salt: bool
) -> None:
    pool, cache = make()
    seq = computed(pool, cache, stored, b"a")
    common = 0
    while common < min(len(stored), len(asked) - 1) and stored[common] == asked[common]:
        common += 1
    found = cache.match(sequence(asked, b"a" if same_salt else b"b"))
    assert found == (seq.block_ids[: common // SIZE] if same_salt else [])


def test_equal_blocks_are_kept_once() -> None:
    pool, cache = make()
    first, second = (computed(pool, cache, [1, 2, 3, 4, 5]) for _ in range(2))
    pool.free(first.block_ids)
    pool.free(second.block_ids)
    assert pool.num_idle == 1
    assert cache.match(sequence([1, 2, 3, 4, 9])) == first.block_ids[:1]


def test_the_end_of_a_chain_is_given_up_before_its_beginning() -> None:
    pool, cache = make(4)
    seq = computed(pool, cache, list(range(16)))
    pool.free(seq.block_ids)
    assert pool.allocate(2) is not None
    assert cache.match(sequence(list(range(16)))) == seq.block_ids[:2]


def test_discarded_blocks_are_free_once_nobody_holds_them() -> None:
    pool, cache = make(4)
    seq = computed(pool, cache, list(range(12)))
    pool.share(seq.block_ids[:1])
    pool.free(seq.block_ids)
    cache.discard(seq.block_ids)
    assert (pool.num_idle, pool.num_free) == (0, 3)
    assert cache.match(sequence(list(range(12)))) == []
    pool.free(seq.block_ids[:1])
    assert (pool.num_idle, pool.num_free) == (0, 4)


def test_a_chain_grows_with_its_sequence() -> None:
    pool, cache = make()
    seq = computed(pool, cache, [1, 2, 3, 4, 5])
    before = list(cache.hashes(seq))
    seq.token_ids += [6, 7, 8]
    assert cache.hashes(seq) == cache.hashes(sequence([1, 2, 3, 4, 5, 6, 7, 8]))
    assert cache.hashes(seq)[:1] == before


def test_a_prompt_is_hashed_once_for_all_of_its_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    _, cache = make()
    prompt, endings = list(range(4 * SIZE + 1)), ([], [91, 92, 93], [94] * SIZE)
    expected = [cache.hashes(sequence([*prompt, *ending])) for ending in endings]
    counted = Mock(wraps=prefix_cache.hashlib.sha256)
    monkeypatch.setattr(prefix_cache.hashlib, "sha256", counted)
    shared = PromptHashes(len(prompt))
    for ending, hashes in zip(endings, expected, strict=True):
        one = sequence([*prompt, *ending])
        one.prefix.prompt = shared
        assert cache.hashes(one) == hashes
    assert counted.call_count == 4 + 1 + 1


def test_every_part_of_the_salt_counts() -> None:
    salts = [
        chain_salt("a"), chain_salt("b"), chain_salt("a", "b"), chain_salt("", "a"),
        chain_salt("a", "", "b"), chain_salt("a', 'b"), chain_salt("a", "b", "None"),
    ]  # fmt: skip
    assert len(set(salts)) == len(salts)
