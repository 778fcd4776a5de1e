import json

import pytest
from django.core.management import CommandError, call_command


@pytest.fixture
def catalogue(tmp_path, settings):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text("{}")
    settings.MODELS_FILE = tmp_path / "models.toml"
    settings.MODELS_DIR = tmp_path
    settings.MODELS_FILE.write_text('[models.a]\npath = "a"\n[models.b]\npath = "b"\n')


def test_a_gpu_that_is_not_there_is_refused_at_once(catalogue, settings, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    settings.DEVICE = "cuda"
    with pytest.raises(CommandError, match="needs an NVIDIA GPU"):
        call_command("engine_worker", "--model", "a")


@pytest.mark.parametrize(
    ("model", "complaint"), [("c", "no model 'c'"), ("b", "run: manage.py prepare_model b")]
)
def test_a_model_that_is_not_there_is_named(catalogue, model, complaint):
    with pytest.raises(CommandError, match=complaint):
        call_command("engine_worker", "--model", model)


@pytest.mark.parametrize(("model", "processes"), [("a", 4), ("c", 2)])
def test_a_variable_splits_the_first_model_only(catalogue, settings, monkeypatch, model, processes):
    settings.MODELS_FILE.write_text(
        '[models.a]\npath = "a"\n[models.c]\npath = "a"\ntensor_parallel_size = 2\n'
    )
    settings.TENSOR_PARALLEL_SIZE = 4
    served = []
    monkeypatch.setattr("workers.launch.run", lambda _app, entry, _options: served.append(entry))
    with pytest.raises(SystemExit):
        call_command("engine_worker", "--model", model)
    assert [(entry.id, entry.tensor_parallel_size) for entry in served] == [(model, processes)]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"vocab_size": 10, "max_position_embeddings": 64, "model_type": "kimi_k2"},
            "how a calls tools and thinks: tool_format kimi_k2 (the model_type kimi_k2), "
            "think_tags none",
        ),
        ({}, "no request can use a: model a: {folder}/config.json states no vocab_size"),
    ],
)
def test_the_log_says_how_the_model_calls_tools(
    catalogue, settings, monkeypatch, caplog, config, said
):
    folder = settings.MODELS_DIR / "a"
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("workers.launch.run", lambda _app, _entry, _options: 0)
    with caplog.at_level("INFO"), pytest.raises(SystemExit):
        call_command("engine_worker", "--model", "a")
    assert said.format(folder=folder) in caplog.messages
