"""Models for chats."""

import shutil
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from completions.catalog import model_files

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{{ extra }}|"
    "{% if on is defined and on %}<s>{% elif on is defined %}</s>{% endif %}"
)


@pytest.fixture
def chat_models(served: None, tiny_model: Path, tmp_path: Path, settings: Settings) -> None:
    """`caller` writes Hermes calls, `thinker` thinks between two special tokens, `worded` between
    words, `bare` has no template."""
    folder = tmp_path / "thinker"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "config.json").write_text('{"vocab_size": 260, "max_position_embeddings": 2048}')
    settings.MODELS_FILE = tmp_path / "more.toml"
    settings.MODELS_FILE.write_text(
        f'[models.tiny]\npath = "{tiny_model}"\n'
        f'[models.caller]\npath = "{folder}"\ntool_format = "hermes"\n'
        f'[models.thinker]\npath = "{folder}"\nthink_tags = ["<s>", "</s>"]\n'
        f'thinking_switch = "on"\ntool_format = "glm"\n'
        f'[models.worded]\npath = "{folder}"\nthink_tags = ["<think>", "</think>"]\n'
        f'[models.bare]\npath = "{tmp_path}/bare"\n'
    )
    shutil.copytree(tiny_model, tmp_path / "bare")
    (tmp_path / "bare" / "chat_template.jinja").unlink()
    model_files.load.cache_clear()
