"""Objects of several types: which reader reads one, and in which words the others are refused."""

from typing import Any

import pytest

from completions.exceptions import FieldError
from completions.requests.fields.base import TextField
from completions.requests.fields.conversions.typed_objects import TypedObjectField
from completions.requests.fields.objects import OpenObject


class Cat(OpenObject[Any]):
    name = TextField("Its name.", required=True)

    def check(self, values: Any) -> str:
        return f"cat {values.name}"


class Dog(Cat):
    def check(self, values: Any) -> str:
        return f"dog {values.name}"


READERS = {"cat": Cat(), "dog": Dog()}
REFUSAL = "{0!r} is no pet; send one of: {1}."


def test_the_type_says_who_reads() -> None:
    field = TypedObjectField(READERS, REFUSAL)
    assert field.read({"type": "dog", "name": "Rex"}) == "dog Rex"
    assert list(field.list_ignored({"type": "cat", "name": "a", "age": 3})) == [".age"]
    default = TypedObjectField(READERS, REFUSAL, key="kind", default="cat")
    assert default.read({"name": "Tom"}) == "cat Tom"
    assert list(default.list_ignored({"name": "Tom"})) == []


@pytest.mark.parametrize(
    ("data", "path", "code", "words"),
    [
        ({"type": "cow"}, "type", "unsupported_value", "'cow' is no pet; send one of: cat, dog."),
        ({"type": 3}, "type", "unsupported_value", "'3' is no pet"),
        ({"type": ["cat"]}, "type", "unsupported_value", "is no pet"),
        ({"name": "a"}, "type", "missing_required_parameter", "required"),
        ({"type": None}, "type", "missing_required_parameter", "required"),
        ({"type": "cat"}, "name", "missing_required_parameter", "required"),
        ([], "", "invalid_type", "an object"),
    ],
)
def test_what_no_reader_reads_is_refused(data: Any, path: str, code: str, words: str) -> None:
    with pytest.raises(FieldError) as caught:
        TypedObjectField(READERS, REFUSAL).read(data)
    assert (caught.value.path, caught.value.code) == (path, code)
    assert words in caught.value.message


def test_the_schema_names_each_type() -> None:
    name = {"type": "string", "description": "Its name."}
    required, optional = (
        TypedObjectField(READERS, REFUSAL, default=default).to_schema()["anyOf"][0]
        for default in (None, "cat")
    )
    assert required["properties"] == {"name": name, "type": {"const": "cat"}}
    assert (required["required"], optional["required"]) == (["name", "type"], ["name"])
