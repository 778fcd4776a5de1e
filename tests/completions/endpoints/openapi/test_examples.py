"""Examples of values, and the schemas derived from them."""

import jsonschema
import pytest

from completions.endpoints.openapi import examples


def test_an_example_says_what_may_be_null_or_absent() -> None:
    example = {
        "kind": examples.make_const("a"),
        "name": examples.make_or_null("x"),
        "rest": examples.make_optional([1]),
        "part": {"of": examples.make_null_or(0.5)},
    }
    assert examples.make_value(example) == {
        "kind": "a",
        "name": "x",
        "rest": [1],
        "part": {"of": None},
    }
    schema = examples.make_schema(example)
    assert schema["required"] == ["kind", "name", "part"]
    for accepted in ({"kind": "a", "name": None, "part": {"of": 1.5}},):
        jsonschema.validate(accepted, schema)
    for change in ({"kind": "b"}, {"name": 1}, {"rest": ["1"]}, {"part": {}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**examples.make_value(example), **change}, schema)
