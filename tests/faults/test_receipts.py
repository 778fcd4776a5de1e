"""Lines have the same tokens at any batch size and through kills, and a changed one is found."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.acceptance.kills.test_kills import ENDED, until
from tests.acceptance.service import MODEL_FOLDER, Installation

pytestmark = pytest.mark.faults

LINES = int(os.environ.get("QUIRE_FAULT_LINES", "60"))
BATCHES = (1, 8, 32)
"""Lines that a worker computes at a time. The processes of the second one are killed."""
REPLAYED = 8
"""Lines that are computed once more, one of which was changed."""
MAX_TOKENS = int(os.environ.get("QUIRE_FAULT_TOKENS", "16"))
WAIT_SECONDS = 1800.0
SCHEMA = {
    "type": "object",
    "properties": {"good": {"type": "boolean"}, "why": {"type": "string", "maxLength": 20}},
    "required": ["good", "why"],
    "additionalProperties": False,
}


class ThreeSizes(Installation):
    """One worker for each batch size, all of the same model."""

    def demo_model(self) -> str:
        return "".join(
            f'[models.batch-{size}]\npath = "{MODEL_FOLDER}"\nmax_num_seqs = {size}\n'
            f'max_model_len = 512\nkv_cache_bytes = 67108864\ntool_format = "hermes"\n'
            for size in BATCHES
        )


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with ThreeSizes(tmp_path_factory.mktemp("receipts")) as service:
        for size in BATCHES:
            service.wait_served(f"batch-{size}")
        yield service


def requests(model: str) -> bytes:
    """Every other line is constrained; all have the seed of their number."""
    lines = []
    for n in range(LINES):
        content = f"Is a room with {n} beds and {n * 7 % 10} windows good? Answer in JSON."
        body = {
            "model": model, "messages": [{"role": "user", "content": content}], "seed": n,
            "max_tokens": MAX_TOKENS, "temperature": 0.9,
        }  # fmt: skip
        if n % 2:
            body["json_schema"] = SCHEMA
        line = {"custom_id": f"r{n}", "method": "POST", "url": "/v1/chat/completions"}
        lines.append(json.dumps({**line, "body": body}).encode())
    return b"\n".join(lines) + b"\n"


def begun(client: openai.OpenAI, model: str) -> openai.types.Batch:
    file = client.files.create(file=("in.jsonl", requests(model)), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h",
        extra_body={"receipts": True},
    )  # fmt: skip


def output(client: openai.OpenAI, batch: openai.types.Batch) -> bytes:
    """The output file of a batch, once it has ended."""
    batch = until(
        lambda: (b := client.batches.retrieve(batch.id)).status in ENDED and b, WAIT_SECONDS
    )
    assert (batch.status, batch.request_counts.completed) == ("completed", LINES)
    return client.files.content(batch.output_file_id).content


def done(client: openai.OpenAI, batch: openai.types.Batch, count: int) -> None:
    until(lambda: counts(client, batch) >= count, WAIT_SECONDS)


def counts(client: openai.OpenAI, batch: openai.types.Batch) -> int:
    return client.batches.retrieve(batch.id).request_counts.completed


def computed(output: bytes) -> list[bytes]:
    """What each line computed, without the names of the model, the batch and the time."""
    found = []
    for text in output.splitlines():
        line = json.loads(text)
        receipt = {**line["receipt"], "model": None}
        choices = line["response"]["body"]["choices"]
        found.append(json.dumps([line["custom_id"], choices, receipt]).encode())
    return found


def test_receipts_are_equal_at_any_batch_size_and_through_kills(
    service: Installation, tmp_path: Path
) -> None:
    with service.client(timeout=600) as client:
        first = output(client, begun(client, f"batch-{BATCHES[0]}"))
        expected = computed(first)
        assert len(expected) == LINES
        assert computed(output(client, begun(client, f"batch-{BATCHES[2]}"))) == expected
        killed = begun(client, f"batch-{BATCHES[1]}")
        done(client, killed, LINES // 10)
        service.kill("worker-2")
        done(client, killed, LINES // 3)
        service.kill("web")
        service.kill("cpu-worker")
        service.wait_ready()
        done(client, killed, LINES // 2)
        service.kill("worker-2")
        assert computed(output(client, killed)) == expected

    path = tmp_path / "output.jsonl"
    path.write_bytes(first)
    assert service.manage("verify", str(path)) == f"{LINES} lines hold\n"
    path.write_bytes(flip(first))
    with pytest.raises(AssertionError, match=f"1 of {LINES} lines fail"):
        service.manage("verify", str(path))
    path.write_bytes(b"".join(flip(first).splitlines(keepends=True)[-REPLAYED:]))
    with pytest.raises(AssertionError, match=f"1 of {REPLAYED} lines differ"):
        service.manage("replay", str(path), timeout=600)


def flip(output: bytes) -> bytes:
    """Change one token of the last line's receipt."""
    *lines, last = output.splitlines(keepends=True)
    line = json.loads(last)
    line["receipt"]["output_ids"][0][0] ^= 1
    return b"".join([*lines, json.dumps(line).encode() + b"\n"])
