"""`manage.py prepare_model`: what it says, and its errors as messages."""

import pytest
from django.core.management import CommandError, call_command

from workers.preparation import model_preparation

STYLE = "tool_format none (nowhere: the chat template has no known format), think_tags none"
"""What is said of a model without a chat template."""
SIZES = '{"vocab_size": 10, "max_position_embeddings": 64}'


@pytest.fixture
def catalogue(tmp_path, settings, monkeypatch):
    """Two folders whose files have sizes alone; the tests of `workers.preparation` check what a
    worker can serve."""
    monkeypatch.setattr(model_preparation, "_find_obstacle", lambda folder: None)
    settings.MODELS_DIR = tmp_path / "models"
    settings.MODELS_FILE = tmp_path / "models.toml"
    settings.MODELS_FILE.write_text('[models.one]\npath = "one"\n[models.two]\npath = "two"\n')
    for name in ("one", "two"):
        (tmp_path / "models" / name).mkdir(parents=True)
        for file in ("config.json", "tokenizer.json", "model.safetensors"):
            (tmp_path / "models" / name / file).write_text(SIZES)
    return tmp_path


def test_all_models_of_the_catalogue_by_default(catalogue, capsys):
    call_command("prepare_model")
    assert capsys.readouterr().out.splitlines() == [
        line for name in ("one", "two") for line in (f"{name}: ready", f"{name}: {STYLE}")
    ]


def test_the_named_ones_alone(catalogue, capsys):
    call_command("prepare_model", "two")
    assert capsys.readouterr().out.splitlines() == ["two: ready", f"two: {STYLE}"]


def test_it_says_how_a_model_calls_tools_and_thinks(catalogue, capsys):
    template = "{{ '<tool_call>{\"name\": ...}</tool_call><think></think>' }}"
    (catalogue / "models" / "one" / "chat_template.jinja").write_text(template)
    call_command("prepare_model", "one")
    assert "one: tool_format hermes (the chat template" in capsys.readouterr().out


def test_an_unknown_name_lists_the_known(catalogue):
    with pytest.raises(CommandError, match="use one of: one, two"):
        call_command("prepare_model", "three")


def test_a_failed_step_is_a_message(catalogue):
    (catalogue / "models" / "one" / "config.json").unlink()
    with pytest.raises(CommandError, match="finding one failed"):
        call_command("prepare_model")


def test_a_model_that_cannot_be_served_is_a_message(catalogue):
    (catalogue / "models" / "two" / "config.json").write_text('{"vocab_size": 10}')
    with pytest.raises(CommandError, match=r"model two: .* no context length; set max_model_len"):
        call_command("prepare_model")


def test_damage_is_found_on_request(catalogue, monkeypatch):
    monkeypatch.setattr(model_preparation, "verify", lambda entry: ["model.safetensors"])
    with pytest.raises(CommandError, match=r"one: damaged: model\.safetensors"):
        call_command("prepare_model", "one", "--verify")
