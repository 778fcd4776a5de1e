"""Which folders are copied into the store, and what stays there."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.catalog.adapter_store import (
    AdapterError,
    AdapterLimits,
    AdapterNotFoundError,
    StoredAdapter,
    copy_adapter,
    delete_left,
    find_source,
    mark_retired,
)
from completions.contract.adapters import (
    CONFIG_FILE,
    RETIRED_FILE,
    WEIGHTS_FILE,
    compute_digest,
    make_reference,
    read_digest,
    read_name,
)

LIMITS = AdapterLimits(bytes=10_000, rank=16)
MATRIX = {"dtype": "F32", "shape": [4, 8], "data_offsets": [0, 128]}


def store_adapter(source: Path, own: Path, store: Path, limits: AdapterLimits) -> StoredAdapter:
    with copy_adapter(source, own, store, limits) as stored:
        return stored


def make_adapter(folder: Path, header: Any = None, config: Any = None, body: bytes = b"") -> Path:
    """Write a folder whose weights are zeros."""
    folder.mkdir(parents=True)
    text = json.dumps({"a.lora_A.weight": MATRIX} if header is None else header).encode()
    (folder / WEIGHTS_FILE).write_bytes(
        len(text).to_bytes(8, "little") + text + (body or bytes(128))
    )
    config = {"peft_type": "LORA", "r": 4} if config is None else config
    (folder / CONFIG_FILE).write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "sources" / "acme"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_a_copy_lies_under_its_digest_and_never_changes(own: Path, store: Path) -> None:
    source = make_adapter(own / "one")
    stored = store_adapter(source, own, store, LIMITS)
    assert (stored.rank, stored.digest) == (4, compute_digest(source))
    assert stored.bytes == (source / WEIGHTS_FILE).stat().st_size
    make_adapter(own / "two", body=b"\1" * 128)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        (source / name).write_bytes((own / "two" / name).read_bytes())
    other = store_adapter(source, own, store, LIMITS)
    assert sorted(path.name for path in store.iterdir()) == sorted([stored.digest, other.digest])
    assert all(compute_digest(folder) == folder.name for folder in store.iterdir())
    assert store_adapter(own / "two", own, store, LIMITS) == other


@pytest.mark.parametrize(
    "given", ["../rival/a", "/etc", "..", "nowhere", "a/../../rival/a", "link", "file", "a\0b", "~"]
)
def test_a_path_beyond_the_organizations_own_folder_is_not_found(own: Path, given: str) -> None:
    make_adapter(own / "a")
    rival = make_adapter(own.parent / "rival" / "a")
    (own / "link").symlink_to(rival)
    (own / "file").write_text("x")
    with pytest.raises(AdapterNotFoundError, match=r"there is no folder"):
        find_source(own.parent, "acme", given)


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "a\0b"])
def test_an_organization_whose_name_is_no_folder_has_none(own: Path, name: str) -> None:
    own.mkdir(parents=True)
    with pytest.raises(AdapterNotFoundError, match="names no folder"):
        find_source(own.parent, name, "a")


def test_paths_may_be_relative_absolute_or_linked_within(own: Path) -> None:
    folder = make_adapter(own / "a")
    (own / "link").symlink_to(folder)
    for path in ("a", str(folder), "link", "a/../a/"):
        assert find_source(own.parent, "acme", path) == folder


def test_links_of_a_snapshot_to_its_blobs_are_followed_within_only(own: Path, store: Path) -> None:
    blob = make_adapter(own / "blobs") / WEIGHTS_FILE
    snapshot = make_adapter(own / "snapshot")
    (snapshot / WEIGHTS_FILE).unlink()
    (snapshot / WEIGHTS_FILE).symlink_to(blob)
    assert store_adapter(snapshot, own, store, LIMITS).rank == 4
    rival = make_adapter(own.parent / "rival") / WEIGHTS_FILE
    (snapshot / WEIGHTS_FILE).unlink()
    (snapshot / WEIGHTS_FILE).symlink_to(rival)
    with pytest.raises(AdapterError, match="lies outside"):
        store_adapter(snapshot, own, store, LIMITS)


def test_a_folder_that_becomes_a_link_is_not_followed(
    own: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one that changes between the check of a path and the opening of its file."""
    folder = make_adapter(own / "a")
    rival = make_adapter(own.parent / "rival" / "a", body=b"\1" * 128)
    resolve = Path.resolve

    def swap(path: Path, strict: bool = False) -> Path:
        real = resolve(path, strict)
        if path.name == WEIGHTS_FILE:
            folder.rename(own / "away")
            folder.symlink_to(rival)
        return real

    monkeypatch.setattr(Path, "resolve", swap)
    with pytest.raises(AdapterError, match=f"{WEIGHTS_FILE} cannot be read"):
        store_adapter(folder, own, store, LIMITS)
    assert list(store.iterdir()) == []


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_a_damaged_copy_is_replaced(own: Path, store: Path, name: str) -> None:
    """The engine says of one: load it again."""
    source = make_adapter(own / "a")
    stored = store_adapter(source, own, store, LIMITS)
    for damage in (lambda path: path.write_bytes(b"x"), Path.unlink):
        damage(store / stored.digest / name)
        assert store_adapter(source, own, store, LIMITS) == stored
        assert compute_digest(store / stored.digest) == stored.digest


def test_a_pipe_is_refused_and_read_by_nobody(own: Path, store: Path) -> None:
    folder = make_adapter(own / "a")
    (folder / CONFIG_FILE).unlink()
    os.mkfifo(folder / CONFIG_FILE)
    with pytest.raises(AdapterError, match="is not a file"):
        store_adapter(folder, own, store, LIMITS)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"config": {"peft_type": "IA3"}}, "'IA3'; only LORA"),
        ({"config": {"peft_type": "x" * 10_000}}, "^.{,200}$"),
        ({"config": {"peft_type": ["x" * 10_000]}}, "a list; only LORA"),
        ({"config": "[" * 100_000}, "is not JSON"),
        ({"config": "[1]"}, "peft_type None"),
        ({"header": {}}, "no weights"),
        ({"header": []}, "no JSON object"),
        ({"header": {"a": {**MATRIX, "shape": [4]}}}, "a is not a matrix"),
        ({"header": {"a": {**MATRIX, "shape": [4, True]}}}, "a is not a matrix"),
        ({"header": {"a": {**MATRIX, "dtype": "I8"}}}, "a is not a matrix of F32, F16, BF16"),
        ({"header": {"a": 1}}, "a is not a matrix"),
        ({"header": {"a": {**MATRIX, "shape": [17, 80]}}}, "rank is 17; it may be at most 16"),
        ({"body": bytes(20_000)}, "has 20.* bytes; it may have at most 10000"),
    ],
)
def test_what_cannot_be_an_adapter_is_refused_and_leaves_nothing(
    own: Path, store: Path, change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(AdapterError, match=complaint):
        store_adapter(make_adapter(own / "a", **change), own, store, LIMITS)
    assert list(store.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"PK\3\4" * 10, (9).to_bytes(8, "little")])
def test_weights_in_another_format_are_refused(own: Path, store: Path, content: bytes) -> None:
    folder = make_adapter(own / "a")
    (folder / WEIGHTS_FILE).write_bytes(content)
    with pytest.raises(AdapterError, match=WEIGHTS_FILE):
        store_adapter(folder, own, store, LIMITS)


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_a_missing_file_is_named(own: Path, store: Path, name: str) -> None:
    folder = make_adapter(own / "a")
    (folder / name).unlink()
    with pytest.raises(AdapterError, match=f"it has no {name}"):
        store_adapter(folder, own, store, LIMITS)


def test_only_old_folders_that_nobody_needs_are_deleted(own: Path, store: Path) -> None:
    assert delete_left(store, ()) == 0
    old = [
        store_adapter(make_adapter(own / str(i), body=bytes([i] * 128)), own, store, LIMITS).digest
        for i in range(3)
    ]
    (store / ".draft-x").mkdir()
    (store / "notes").mkdir()
    for name in (*old[:2], ".draft-x", "notes"):
        os.utime(store / name, (0, 0))
    assert delete_left(store, {old[0]}) == 2
    assert {path.name for path in store.iterdir()} == {old[0], old[2], "notes"}


def test_a_version_is_marked_while_no_name_means_it(own: Path, store: Path) -> None:
    digest = store_adapter(make_adapter(own / "a"), own, store, LIMITS).digest
    mark_retired(store, (), {digest, "0" * 64})
    assert (store / digest / RETIRED_FILE).exists()
    mark_retired(store, {digest}, {digest})
    assert not (store / digest / RETIRED_FILE).exists()
    assert not (store / ("0" * 64)).exists()


@given(st.text(min_size=1), st.binary(min_size=32, max_size=32))
def test_a_reference_says_what_it_was_made_of(name: str, digest: bytes) -> None:
    reference = make_reference(name, digest.hex())
    assert (read_name(reference), read_digest(reference)) == (name, digest.hex())


@given(st.text(alphabet=st.characters(exclude_characters="@")))
def test_a_plain_name_has_no_digest(name: str) -> None:
    assert (read_name(name), read_digest(name)) == (name, None)
