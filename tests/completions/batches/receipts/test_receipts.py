"""Receipts are valid until anything that they describe changes."""

import io
import json
import time
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command

from completions.batches.receipts import verification
from completions.batches.receipts.source import read_receipted
from completions.catalog import model_files
from completions.exceptions import APIError
from completions.management.commands import replay
from completions.models import Batch, File
from completions.requests import preparation
from tests.completions.bench import jsonl, request

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]

A, B = 32, 33
"""The tokens of these letters."""
REQUESTS = [
    request("plain", [A, B]), request("letters", regex="[A-Z]{2}", seed=5),
    request("twice", prompt=[[A], [B]]),
]  # fmt: skip


@pytest.fixture
def output(bench, tmp_path):
    """The output file of a batch with receipts."""
    bench.worker.execution.beat("tiny", {"build": "c-0123"})
    batch = bench.create(REQUESTS, receipts=True)
    done = bench.run_to_end(batch, tokens=(A, B))
    assert done["receipts"]
    path = tmp_path / "out.jsonl"
    path.write_bytes(jsonl(bench.lines(done["output_file_id"])))
    return path


def verified(path, *args):
    printed = io.StringIO()
    call_command("verify", str(path), *map(str, args), stdout=printed)
    return printed.getvalue()


def faults(path):
    printed = io.StringIO()
    with pytest.raises(CommandError):
        call_command("verify", str(path), stdout=printed)
    return printed.getvalue()


def changed(path, custom_id, change):
    """The file with one line changed."""
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    change(next(line for line in lines if line["custom_id"] == custom_id))
    path.write_bytes(jsonl(lines))
    return path


def test_a_receipt_tells_what_computed_a_line(output):
    plain, letters, twice = (json.loads(text) for text in output.read_text().splitlines())
    receipt = letters["receipt"]
    assert receipt["output_ids"] == [[A, B]]
    assert (receipt["seed"], receipt["model"], receipt["engine"]) == (5, "tiny", "c-0123")
    for name in ("tokenizer", "grammar", "prompt"):
        assert receipt[name].startswith("sha256:")
    assert plain["receipt"]["grammar"] is None
    assert plain["receipt"]["seed"] is not None  # drawn, and kept
    assert twice["receipt"]["output_ids"] == [[A, B], [A, B]]
    assert verified(output) == "3 lines hold\n"


def test_without_receipts_there_are_none(bench, tmp_path):
    done = bench.run_to_end(bench.create(REQUESTS[:1]))
    path = tmp_path / "out.jsonl"
    path.write_bytes(jsonl(bench.lines(done["output_file_id"])))
    assert "receipt" not in path.read_text()
    with pytest.raises(CommandError, match="no line with a receipt"):
        verified(path)


def test_one_flipped_token_is_found(output):
    def flip(line):
        line["receipt"]["output_ids"][0][1] = A

    assert faults(changed(output, "letters", flip)) == (
        "letters: its text differs from what its tokens decode to\n"
    )


@pytest.mark.parametrize(
    ("shown", "fault"),
    [
        ({"token_ids": [A, A]}, "its token_ids are not the receipt's output_ids"),
        ({"token_mask": [1]}, "its token_mask is not one of these tokens"),
        ({"token_mask": [1, 3]}, "its token_mask is not one of these tokens"),
        ({"token_mask": [1, 2]}, "its token_mask is not one of these tokens"),
    ],
)
def test_other_ids_beside_the_receipt_are_found(output, shown, fault):
    def show(line):
        line["response"]["body"]["choices"][0].update(shown)

    assert faults(changed(output, "plain", show)) == f"plain: {fault}\n"


@pytest.mark.parametrize(
    ("text", "message", "holds"),
    [
        ("AB", {"content": "AB"}, True),
        ("AB ", {"content": None, "reasoning_content": "AB"}, True),
        ("AB", {"content": "AC"}, False),
        ("AB", {"content": "A"}, False),
        ("AB", {"content": None}, False),
        ("AB", {"content": "AB", "reasoning_content": "AB"}, False),
        ("A B", {"content": "B", "tool_calls": [{}]}, True),
        ("A B", {"content": "C", "tool_calls": [{}]}, False),
        ("A <think> B", {"content": "A", "reasoning_content": "B"}, True),
        ("A <think> B", {"content": "A", "reasoning_content": "C"}, False),
        (None, {"content": "AB"}, True),
        (None, {"content": "BA"}, False),
    ],
)
def test_a_message_is_made_of_its_text(bench, text, message, holds, monkeypatch):
    monkeypatch.setattr(verification, "_list_marks", lambda files: ["<think>"])
    choice = {"message": message} | ({} if text is None else {"text": text})
    files = model_files.load(model_files.load_catalog().entries["tiny"])
    assert (verification._check_message([A, B], choice, files) is None) is holds


def test_a_token_outside_the_grammar_is_found(output):
    def lower(line):
        line["receipt"]["output_ids"][0][1] = 65  # b
        line["response"]["body"]["choices"][0]["text"] = "Ab"

    assert (
        faults(changed(output, "letters", lower)) == "letters: token 1 (65) is not in its grammar\n"
    )


def test_an_output_that_ends_too_early_is_found(output):
    def cut(line):
        line["receipt"]["output_ids"][0].pop()
        line["response"]["body"]["choices"][0].update(text="A", finish_reason="stop")

    assert faults(changed(output, "letters", cut)) == "letters: it ends before its grammar does\n"


def test_an_overloaded_machine_is_no_fault_of_a_line(output, monkeypatch):
    monkeypatch.setattr(preparation, "OFFLINE_SECONDS", 0)
    prepare, tries = preparation.prepare, []

    async def overloaded(*line):
        tries.append(line)
        if len(tries) < 3:
            raise APIError("server_overloaded")
        return await prepare(*line)

    monkeypatch.setattr(preparation, "prepare", overloaded)
    assert verified(output) == "3 lines hold\n"


@pytest.mark.parametrize("name", ["model", "tokenizer", "prompt", "grammar", "seed"])
def test_another_request_is_found(output, name):
    changed(output, "letters", lambda line: line["receipt"].update({name: "other"}))
    assert faults(output) == f"letters: the {name} is not the receipt's\n"


def test_the_requests_may_be_named(output, tmp_path, bench):
    requests = tmp_path / "in.jsonl"
    requests.write_bytes(jsonl(REQUESTS))
    File.objects.filter(purpose="batch").delete()
    with pytest.raises(CommandError, match="no input file"):
        verified(output)
    assert verified(output, "--requests", requests) == "3 lines hold\n"
    requests.write_bytes(jsonl(REQUESTS[:2]))
    with pytest.raises(CommandError, match="requests of 1 lines are missing: twice"):
        verified(output, "--requests", requests)
    requests.write_text("{")
    with pytest.raises(CommandError, match="not a line of an output file"):
        verified(requests)


@pytest.mark.parametrize(("tokens", "differ"), [((A, B), 0), ((A, A), 3)])
def test_a_replay_compares_tokens(bench, output, monkeypatch, tokens, differ):
    def work(_seconds):
        bench.turn()
        bench.work(tokens=tokens)

    monkeypatch.setattr(replay, "time", SimpleNamespace(sleep=work, monotonic=time.monotonic))
    printed = io.StringIO()
    if differ:
        with pytest.raises(CommandError, match="3 of 3 lines differ"):
            call_command("replay", str(output), stdout=printed)
        assert "letters: choice 0 differs from token 1 on" in printed.getvalue()
    else:
        call_command("replay", str(output), stdout=printed)
        assert "3 lines are the same" in printed.getvalue()
    again = Batch.objects.order_by("-created_at").first()
    seeds = [json.loads(t)["receipt"]["seed"] for t in output.read_text().splitlines()]
    with File.objects.get(id=again.output_file_id).content.open("rb") as content:
        assert [json.loads(text)["receipt"]["seed"] for text in content] == seeds


@pytest.mark.parametrize("line", [b"{", b"[]", b"{}", b"\xff", b'{"custom_id": "plain"}'])
def test_a_file_of_something_else_has_no_requests(output, tmp_path, line):
    requests = tmp_path / "in.jsonl"
    requests.write_bytes(b"\n" + line + b"\n")
    with pytest.raises(CommandError, match="line 2 of the requests is not a request"):
        verified(output, "--requests", requests)


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line.update(receipt=1),
        lambda line: line["receipt"].pop("prompt"),
        lambda line: line["receipt"].update(output_ids=[[-1]]),
        lambda line: line["receipt"].update(output_ids=[[1.5]]),
        lambda line: line["receipt"].update(output_ids=None),
        lambda line: line.update(response=None),
        lambda line: line["response"]["body"].update(choices=[{}]),
    ],
)
def test_a_damaged_line_is_named(output, damage):
    with pytest.raises(CommandError, match="line 2: not a line of an output file"):
        verified(changed(output, "letters", damage))


def test_a_replay_closes_what_was_closed(bench, tmp_path):
    """Not only a line says so: its batch or its model may."""
    bench.worker.execution.beat("tiny", {"build": "c-0123"})
    scored = request("scored", max_tokens=0, continuation_token_ids=[[A]])
    batch = bench.create([*REQUESTS[:2], request("open", regex="[A-Z]{2}", close=False), scored],
                         receipts=True, close=True)  # fmt: skip
    done = bench.run_to_end(batch, tokens=(A, B))
    path = tmp_path / "out.jsonl"
    path.write_bytes(jsonl(bench.lines(done["output_file_id"])))
    asked = {line.custom_id: replay._request(line)["body"] for line in read_receipted(path, None)}
    assert {name: body["close"] for name, body in asked.items()} == {
        "plain": False,  # without a constraint, nothing is closed
        "letters": True,
        "open": False,
        "scored": False,  # nothing is sampled
    }
    again = bench.create([replay._request(line) for line in read_receipted(path, None)])
    assert bench.run_to_end(again, tokens=(A, B))["request_counts"]["failed"] == 0
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    for line in lines:
        del line["receipt"]["close"]  # as in files of earlier versions
    path.write_bytes(jsonl(lines))
    assert "close" not in replay._request(next(read_receipted(path, None)))["body"]
