"""The judge of constraints: the tokens of all models are loaded at the start."""

import json
from pathlib import Path

from asgiref.sync import async_to_sync
from pytest_django.fixtures import Settings

from completions.catalog import model_files
from completions.catalog.model_files import ModelFiles
from completions.requests import validation
from tests.completions.checking import shared_validator


def test_one_broken_model_does_not_keep_others_from_being_loaded(
    tiny_model: Path, tmp_path: Path, settings: Settings
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    sizes = {"vocab_size": 10, "max_position_embeddings": 64}
    (broken / "config.json").write_text(json.dumps(sizes))
    (broken / "tokenizer.json").write_text("{")
    folders = {"absent": tmp_path / "absent", "broken": broken, "tiny": tiny_model}
    tables = [f'[models.{name}]\npath = "{folder}"\n' for name, folder in folders.items()]
    settings.MODELS_FILE = tmp_path / "models.toml"
    settings.MODELS_FILE.write_text("".join(tables))
    model_files.load.cache_clear()
    async_to_sync(validation.warm_up)(shared_validator())
    tiny: ModelFiles = model_files.load(model_files.load_catalog().choose("tiny"))
    assert "tokenizer" in vars(tiny)
    model_files.load.cache_clear()
