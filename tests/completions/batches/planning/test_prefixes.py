"""Lines with common beginnings run together, and the cache does what is predicted."""

import random

import pytest

from completions.batches.planning.cache import CacheSize, count_cached_tokens
from completions.batches.planning.prefixes import (
    WIDTH,
    has_shared_prefix,
    hash_prefixes,
    plan_order,
)


def paths_of(prompts):
    return [hash_prefixes(prompt, "") for prompt in prompts]


def test_a_path_has_the_blocks_that_can_be_shared():
    prompt = list(range(64))
    assert len(hash_prefixes(prompt, "")) == 3 * WIDTH  # the last token must be computed
    assert hash_prefixes([*prompt, 1], "").startswith(hash_prefixes(prompt, ""))
    assert hash_prefixes(prompt, "salt") != hash_prefixes(prompt, "")
    assert hash_prefixes([5] * 16, "") == hash_prefixes([], "") == b""


def test_the_longest_shared_beginning_comes_first():
    short, long = [1] * 16, [2] * 48
    prompts = [[*short, 1], [*long, 1], [3] * 40, [*short, 2], [*long, 2], [*short, 3]]
    assert plan_order(paths_of(prompts)) == [1, 4, 0, 3, 5, 2]
    assert has_shared_prefix(paths_of(prompts))
    assert not has_shared_prefix(paths_of([[1] * 20, [2] * 20, [3], [4]]))


def test_without_common_beginnings_the_file_decides():
    assert plan_order(paths_of([[n] * 40 for n in range(50)])) == list(range(50))
    assert plan_order([b""] * 5) == list(range(5))
    assert plan_order([]) == []


def random_prompts(chance, count):
    """Prompts that grow out of each other, as in a trie."""
    prompts = [[chance.randrange(9)] * 8]
    for _ in range(count - 1):
        stem = chance.choice(prompts)
        cut = chance.randrange(len(stem) + 1)
        prompts.append([*stem[:cut], *(chance.randrange(9) for _ in range(chance.randrange(40)))])
    return prompts


@pytest.mark.parametrize("seed", range(20))
def test_every_beginning_is_met_once(seed):
    """The lines below any node of the trie are neighbours."""
    chance = random.Random(seed)  # noqa: S311
    paths = paths_of(random_prompts(chance, 120))
    order = plan_order(paths)
    assert sorted(order) == list(range(len(paths)))
    left = set()
    before = b""
    for path in (paths[index] for index in order):
        nodes = {path[:end] for end in range(WIDTH, len(path) + 1, WIDTH)}
        assert not nodes & left
        left |= {before[:end] for end in range(WIDTH, len(before) + 1, WIDTH)} - nodes
        before = path


@pytest.mark.parametrize("seed", range(20))
def test_a_cache_of_one_branch_spares_what_an_endless_one_spares(seed):
    chance = random.Random(seed)  # noqa: S311
    paths = paths_of(random_prompts(chance, 120))
    lines = [(paths[index], len(paths[index]) // WIDTH * 16 + 1) for index in plan_order(paths)]
    longest = max(tokens for _, tokens in lines) // 16 + 1
    endless = count_cached_tokens(lines, CacheSize(10**6, slots=1))
    assert count_cached_tokens(lines, CacheSize(2 * longest, slots=1)) == endless
    total = sum(len(path) // WIDTH for path, _ in lines)
    nodes = {path[:end] for path, _ in lines for end in range(WIDTH, len(path) + 1, WIDTH)}
    assert endless == 16 * (total - len(nodes))


def test_in_file_order_a_small_cache_forgets():
    prefixes = [[n] * 160 for n in range(10)]
    prompts = [[*prefixes[n % 10], n] for n in range(100)]
    paths = paths_of(prompts)
    size = CacheSize(blocks=40, slots=2)

    def spared(order):
        return count_cached_tokens([(paths[index], 161) for index in order], size)

    assert spared(plan_order(paths)) == 90 * 160
    assert spared(range(100)) < 60 * 160
