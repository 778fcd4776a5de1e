"""docs/api.md has the tables of fields that the fields themselves write."""

import pytest

from completions.endpoints.openapi.field_table import field_table, type_text
from completions.requests.chat import ChatRequestSerializer
from completions.requests.completion import CompletionRequestSerializer
from completions.requests.generation import GenerationFields
from tests.acceptance.service import ROOT


def test_the_reference_lists_every_field() -> None:
    reference = (ROOT / "docs" / "api.md").read_text()
    shared = frozenset(GenerationFields().fields)
    for table in (
        field_table(CompletionRequestSerializer()),
        field_table(ChatRequestSerializer(), without=shared),
    ):
        assert table in reference, f"put this into docs/api.md:\n{table}"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "any"),
        ({"type": "integer", "minimum": 1}, "integer ≥ 1"),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, "integer"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "number in (0, 1]"),
        ({"type": "number", "minimum": 0, "maximum": 2}, "number in [0, 2]"),
        ({"type": "string", "enum": ["a", "b"]}, '"a", "b"'),
        ({"anyOf": [{"type": "boolean"}, {"const": "last"}]}, 'boolean or "last"'),
        (
            {
                "type": "array",
                "items": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "(string or null)[]",
        ),
    ],
)
def test_types_in_words(schema: dict[str, object], text: str) -> None:
    assert type_text(schema) == text
