"""Where the keys of an installation lie, and what happens without one shard."""

from dataclasses import dataclass, field

import pytest
from redis.crc import key_slot
from redis.exceptions import RedisError

from completions.jobs.connection import connect
from completions.jobs.sharding.resharding import LayoutError, leave_layout, require_layout
from completions.jobs.sharding.shards import (
    Layout,
    Shards,
    find_shard,
    name_shard,
    run_each,
    run_grouped,
)
from completions.jobs.store import JobStore
from completions.models.timed_ids import new_id, read_time


@dataclass
class Redis:
    """The settings of Redis."""

    REDIS_URL: str = "redis://central:1"
    REDIS_URLS: list[str] = field(default_factory=list)
    REDIS_CLUSTER: bool = False
    REDIS_PREFIX: str = "quire:"
    SHARDS: int = 1


def test_the_only_shard_has_the_keys_of_old() -> None:
    layout = Layout.read(Redis())
    assert layout.shards == [layout.central]
    assert (layout.central.url, layout.central.prefix) == ("redis://central:1", "quire:")
    shards = layout.connect()
    assert shards.broker is None
    assert list(shards) == [shards.central]
    row_id = new_id("cmpl-")
    assert name_shard(row_id, 7, 1) == row_id
    assert find_shard(row_id, 1) == find_shard("nothing of ours", 1) == 0


def test_shards_are_dealt_to_servers() -> None:
    layout = Layout.read(Redis(REDIS_URLS=["redis://a:1", "redis://b:1"], SHARDS=3))
    assert [address.url for address in layout.shards] == ["redis://a:1", "redis://b:1"] * 1 + [
        "redis://a:1"
    ]
    assert [address.prefix for address in layout.shards] == [f"quire:{{{n}}}:" for n in range(3)]
    assert layout.per_server == 2
    shards = layout.connect()
    assert shards.broker is shards.central


def test_a_shard_of_a_cluster_is_a_slot() -> None:
    nodes = ["redis://:secret@a:1", "redis://b:2"]
    layout = Layout.read(Redis(REDIS_URLS=nodes, REDIS_CLUSTER=True, SHARDS=2))
    pool = connect(layout.shards[1].url).connection_pool
    slot = pool.connection_kwargs["slot"]
    assert slot.number == key_slot(b"quire:{1}:job:x")
    assert slot.nodes == [("a", 1), ("b", 2)]
    assert slot.options == {"password": "secret"}


@pytest.mark.parametrize("count", [2, 3, 7, 64])
def test_an_id_names_the_shard_of_its_organization(count: int) -> None:
    for organization_id in (1, 2, 255, 256, 10**6):
        row_id = new_id("batch_")
        named = name_shard(row_id, organization_id, count)
        assert len(named) == len(row_id)
        assert read_time(named) == read_time(row_id)
        line = f"cmpl-{named.removeprefix('batch_')}-12"
        assert find_shard(named, count) == find_shard(line, count) == organization_id % count
    assert find_shard("cmpl-of-another-form", count) == 0


@pytest.fixture
def shards(redis_client):
    """Two shards on one server, and what is central."""
    stores = [JobStore(redis_client, f"q:{{{n}}}:") for n in range(2)]
    return Shards(JobStore(redis_client, "q:"), stores)


def test_a_shard_that_is_down_stops_only_what_lies_there(shards, tmp_path) -> None:
    absent = JobStore(connect(f"unix://{tmp_path}/absent.sock"), "q:{1}:")
    one_down = Shards(shards.central, [shards.stores[0], absent])
    assert run_each(one_down, lambda store: store.client.ping()) == [True]
    ids = [name_shard(new_id("cmpl-"), number, 2) for number in (0, 1, 2)]
    asked = run_grouped(one_down, ids, lambda store, own: (store.client.ping(), own))
    assert asked == [(True, [ids[0], ids[2]])]
    with pytest.raises(RedisError):
        run_each(Shards(absent, [absent]), lambda store: store.client.ping())


def test_the_number_of_shards_changes_only_without_jobs(shards, valkey) -> None:
    def read(**options) -> Layout:
        return Layout.read(Redis(REDIS_URL=valkey.url, REDIS_PREFIX="q:", **options))

    two, three, one = read(SHARDS=2), read(SHARDS=3), read()
    client = shards.central.client
    client.zadd("q:open", {"cmpl-1": 1})
    with pytest.raises(LayoutError, match="one shard"):
        require_layout(two, shards)
    client.delete("q:open")
    require_layout(one, Shards.make_single(shards.central))
    assert not client.exists("q:layout")
    require_layout(two, shards)
    for other in (three, one):
        with pytest.raises(LayoutError, match="2 shards on 1 servers"):
            require_layout(other, shards)
    client.zadd("q:{1}:open", {"cmpl-1": 1})
    with pytest.raises(LayoutError, match="1 jobs"):
        leave_layout(two, shards)
    client.delete("q:{1}:open")
    leave_layout(two, shards)
    require_layout(three, shards)
