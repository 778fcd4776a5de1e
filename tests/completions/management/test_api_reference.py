"""docs/api.md has the tables of fields that the fields themselves write."""

import pytest
from django.conf import settings

from completions.management.commands.api_reference import PAGES, fill_tables, format_type


def test_the_reference_is_up_to_date() -> None:
    tables = 0
    for page in PAGES:
        reference = (settings.BASE_DIR / "docs" / page).read_text()
        assert fill_tables(reference) == reference, "run python manage.py api_reference"
        tables += reference.count("<!-- fields of")
    assert tables == 4


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "any"),
        ({"type": "integer", "minimum": 1}, "integer ≥ 1"),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, "integer"),
        ({"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, "integer in [0, 2147483647]"),
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
    assert format_type(schema) == text
