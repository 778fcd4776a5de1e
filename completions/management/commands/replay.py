"""`manage.py replay FILE`: generates the lines of an output file again, and compares tokens."""

import json
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from completions.batches.input_lines import split_lines
from completions.batches.receipts.source import Receipted, SourceError, read_receipted
from completions.management.commands import submit
from completions.management.commands.create_api_key import DEFAULT_ORGANIZATION
from completions.management.commands.verify import add_requests
from completions.models import Batch, BatchStatus, File, OnInvalid, OnLate


class Command(BaseCommand):
    help = (
        "Generate the lines of an output file again, as a batch with the seeds of its receipts, "
        "and compare the token ids. Names each line that differs and exits with 1. Needs a CPU "
        "worker and an engine worker with the same model."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="an output file of a batch with receipts")
        add_requests(parser)
        parser.add_argument("--organization", default=DEFAULT_ORGANIZATION)

    def handle(
        self, *args: object, file: Path, requests: Path | None, organization: str, **options: object
    ) -> None:
        try:
            lines = list(read_receipted(file, requests))
        except SourceError as error:
            raise CommandError(str(error)) from error
        again = self._generate(lines, organization)
        differ = 0
        for line in lines:
            if fault := _compare_receipts(line.receipt, again.get(line.custom_id)):
                differ += 1
                self.stdout.write(f"{line.custom_id}: {fault}")
        if differ:
            raise CommandError(f"{differ} of {len(lines)} lines differ")
        self.stdout.write(f"{len(lines)} lines are the same")

    def _generate(self, lines: list[Receipted], organization: str) -> dict[str, object]:
        """Run the lines as a batch. Returns their receipts by custom_id."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "replay.jsonl"
            path.write_text("".join(json.dumps(_request(line)) + "\n" for line in lines))
            batch = submit.store_batch(
                path,
                {"replay": "yes"},
                {
                    "organization": organization,
                    "endpoint": lines[0].endpoint,
                    "window": "24h",
                    "on_late": OnLate.ACCEPT,
                    "on_invalid": OnInvalid.SKIP,
                    "receipts": True,
                    "close": False,
                    "pilot": None,
                    "dry_run": False,
                },
            )
        self.stdout.write(f"runs as {batch.id}")
        while not (batch := Batch.objects.get(id=batch.id)).has_ended:
            time.sleep(submit.LOOK_EVERY)
        if batch.status == BatchStatus.FAILED:
            raise CommandError(submit.list_faults(batch))
        output = File.objects.filter(id=batch.output_file_id).first()
        if output is None:
            return {}
        with output.content.open("rb") as content:
            documents = (json.loads(text) for text in split_lines(content))
            return {line["custom_id"]: line.get("receipt") for line in documents}


def _request(line: Receipted) -> dict[str, object]:
    body = {name: value for name, value in line.body.items() if name != "rid"}
    if line.receipt["seed"] is not None:
        body["seed"] = line.receipt["seed"]
    if "close" in line.receipt:  # the batch or the model may have said so
        body["close"] = line.receipt["close"]
    return {"custom_id": line.custom_id, "method": "POST", "url": line.endpoint, "body": body}


def _compare_receipts(receipt: Any, again: Any) -> str:
    """Describe how two receipts differ; empty if their tokens are the same."""
    if again is None:
        return "it failed this time"
    for choice, (one, other) in enumerate(
        zip(receipt["output_ids"], again["output_ids"], strict=False)
    ):
        if one != other:
            at = next(
                (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)),
            )
            changed = [
                name
                for name in ("weights", "dtype", "tokenizer", "engine", "prompt", "grammar")
                if receipt[name] != again[name]
            ]
            because = f"; these changed: {', '.join(changed)}" if changed else ""
            return f"choice {choice} differs from token {at} on{because}"
    if len(receipt["output_ids"]) != len(again["output_ids"]):
        return "it has a different number of choices"
    return ""
