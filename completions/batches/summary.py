"""Aggregates a batch's results: how lines ended, how long they took, and the values of fields."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import orjson

from completions.batches.counted_fields import CountedFields, find_truncated, read_counted_values
from completions.batches.histogram import Histogram
from completions.batches.lines import get_body, get_error, get_text
from completions.batches.results.answers import count_tokens, list_choices

MAX_NAMES = 100
"""The most distinct error codes, values of one field or truncation points that are counted."""
BY_MODEL = "completion_tokens_by_model"
OTHERS = "..."
"""The name under which all further ones are counted."""
_HISTOGRAMS = {"prompt_tokens": 0, "completion_tokens": 0, "queue_seconds": 3, "run_seconds": 3}
"""Numbers of a line for which percentiles are shown, with their decimal places."""


class Summary:
    """A running summary, stored as JSON between updates.

    `counted_fields` is the tree of counted fields; None where the lines share no JSON Schema.
    """

    def __init__(
        self, counted_fields: CountedFields | None, stored: Mapping[str, Any] | None = None
    ) -> None:
        stored = stored or {}
        self.counted_fields = counted_fields
        self._ends = Counter[str](stored.get("finish_reasons"))
        self._errors = Counter[str](stored.get("errors"))
        self._cut = Counter[str](stored.get("cut"))
        self._documents: int = stored.get("documents", 0)
        values = stored.get("values", {})
        self._values = {pointer: Counter[str](counts) for pointer, counts in values.items()}
        self._numbers = {name: Histogram(stored.get(name)) for name in _HISTOGRAMS}
        self._by_model = {
            model: Histogram(each) for model, each in stored.get(BY_MODEL, {}).items()
        }

    def add(self, line: Mapping[str, Any], model: str = "") -> None:
        """Count a line of the output or error file; `model` is its own, where the lines of the
        batch have several."""
        for name in ("queue_seconds", "run_seconds"):
            if name in line["meta"]:
                self._numbers[name].add(line["meta"][name])
        if error := get_error(line):
            _count(self._errors, error["code"] or OTHERS)
        else:
            self._add_body(get_body(line), model)

    def _add_body(self, body: Mapping[str, object], model: str) -> None:
        used = count_tokens(body)
        if model:
            self._by_model.setdefault(model, Histogram(None)).add(used["completion_tokens"])
        for name in ("prompt_tokens", "completion_tokens"):
            self._numbers[name].add(used[name])
        for choice in list_choices(body):
            self._ends[choice["finish_reason"] or "null"] += 1
            if self.counted_fields is not None:
                self._add_text(choice)

    def _add_text(self, choice: Mapping[str, object]) -> None:
        text = get_text(choice) or ""
        try:
            document = orjson.loads(text)
        except orjson.JSONDecodeError:
            if choice["finish_reason"] == "length":
                _count(self._cut, find_truncated(text))
            return
        self._documents += 1
        for pointer, value in read_counted_values(document, self.counted_fields or {}):
            _count(self._values.setdefault(pointer, Counter()), value)

    def as_dict(self) -> dict[str, object]:
        """Return the summary as JSON that the constructor reads."""
        return {
            "finish_reasons": self._ends,
            "errors": self._errors,
            "cut": self._cut,
            "documents": self._documents,
            "values": self._values,
            BY_MODEL: {model: each.as_dict() for model, each in self._by_model.items()},
            **{name: each.as_dict() for name, each in self._numbers.items()},
        }

    def as_summary(self) -> dict[str, Any]:
        """Return the extension `summary` of the batch object."""
        summary: dict[str, object] = {
            "finish_reasons": dict(self._ends.most_common()),
            "errors": dict(self._errors.most_common()),
            **{name: each.as_summary(_HISTOGRAMS[name]) for name, each in self._numbers.items()},
        }
        if self.counted_fields is not None:
            summary["documents"] = self._documents
            summary["values"] = {
                pointer: [
                    {"value": OTHERS if value == OTHERS else orjson.loads(value), "count": count}
                    for value, count in counts.most_common()
                ]
                for pointer, counts in self._values.items()
            }
            summary["cut"] = dict(self._cut.most_common())
        return summary


def _count(counts: Counter[str], name: str) -> None:
    counts[name if name in counts or len(counts) < MAX_NAMES else OTHERS] += 1
