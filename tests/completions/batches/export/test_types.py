"""The types of columns: what a JSON Schema says about its values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.batches.export.documents import MisfitError, UnreadableError, dump, fit_value, read
from completions.batches.export.types import ListOf, Scalar, Struct, infer_type, make_storable

TEXT, INTEGER, NUMBER, BOOLEAN, JSON = (
    Scalar.TEXT, Scalar.INTEGER, Scalar.NUMBER, Scalar.BOOLEAN, Scalar.JSON,
)  # fmt: skip
NODE = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/n"}}}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, TEXT),
        ({"type": ["string", "null"]}, TEXT),
        ({"enum": ["a", "b", None]}, TEXT),
        ({"enum": [1, 2.5]}, NUMBER),
        ({"enum": [1, True]}, JSON),
        ({"const": False}, BOOLEAN),
        ({"type": ["integer", "number"]}, NUMBER),
        ({"type": ["string", "integer"]}, JSON),
        ({"type": "number", "enum": [1, 2]}, INTEGER),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, INTEGER),
        ({"type": "null"}, JSON),
        ({}, JSON),
        (True, JSON),
        ({"type": "object"}, JSON),
        ({"type": "object", "properties": {}}, JSON),
        ({"type": "array"}, JSON),
        ({"type": "array", "items": {"type": "null"}}, ListOf(JSON)),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": False}, JSON),
        ({"items": {"type": "array", "items": {"type": "number"}}}, ListOf(ListOf(NUMBER))),
        ({"properties": {"a": {"type": "string"}}}, Struct({"a": TEXT})),
        ({"properties": {"a": {"type": "string"}, "A": {}}}, JSON),
        ({"properties": {"": {"type": "string"}}}, JSON),
        (
            {"allOf": [{"properties": {"a": {}}}, {"properties": {"a": {"const": 1}, "b": {}}}]},
            Struct({"a": INTEGER, "b": JSON}),
        ),
        (
            {"oneOf": [
                {"properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}},
                {"properties": {"kind": {"const": "b"}, "n": {"type": "number"}, "s": {}}},
            ]},
            Struct({"kind": TEXT, "n": NUMBER, "s": JSON}),
        ),
        (
            {"$ref": "#/$defs/n", "$defs": {"n": NODE}},
            Struct({"v": INTEGER, "next": JSON}),
        ),
        (
            {"properties": {"x": {"$ref": "#/$defs/n"}, "y": {"$ref": "#/$defs/n"}},
             "$defs": {"n": {"type": "boolean"}}},
            Struct({"x": BOOLEAN, "y": BOOLEAN}),
        ),
        ({"$ref": "#/nowhere"}, JSON),
        ({"properties": {"v": {"type": "null"}, "next": {"items": {"$ref": "#"}}}},
         Struct({"v": JSON, "next": ListOf(JSON)})),
        ({"items": [{"type": "string"}], "additionalItems": {"type": "string"}}, ListOf(JSON)),
        ({"anyOf": [False, {"type": "integer"}]}, INTEGER),
    ],
)  # fmt: skip
def test_types_of_schemas(schema, expected):
    assert make_storable(infer_type(schema)) == expected


def test_deep_and_wide_schemas_end_as_json():
    schema = {"type": "string"}
    for _ in range(300):
        schema = {"type": "array", "items": schema}
    assert isinstance(infer_type(schema), ListOf)
    double = {"$defs": {"d0": {"type": "string"}}}
    for n in range(1, 40):
        below = {"$ref": f"#/$defs/d{n - 1}"}
        double["$defs"][f"d{n}"] = {"properties": {"a": below, "b": below}}
    assert isinstance(infer_type({"$ref": "#/$defs/d39", **double}), Struct)  # and it returns soon


@pytest.mark.parametrize(
    ("value", "type"),
    [
        (2**63, INTEGER), (1.5, INTEGER), (True, INTEGER), ("1", INTEGER), (True, NUMBER),
        (10**400, NUMBER), (2**53 + 1, NUMBER), (-(2**63) + 1, NUMBER), (1, BOOLEAN), (1, TEXT),
        ({}, ListOf(TEXT)), ([1], Struct({"a": TEXT})),
        ([1, "a"], ListOf(INTEGER)), ({"a": 1}, Struct({"a": TEXT})),
    ],
)  # fmt: skip
def test_values_that_do_not_fit(value, type):
    with pytest.raises(MisfitError):
        fit_value(value, type)


def test_values_are_made_to_fit():
    assert fit_value(2.0, INTEGER) == 2
    assert fit_value(3, NUMBER) == 3.0
    assert fit_value(-(2**63), NUMBER) == -(2.0**63)
    assert fit_value(None, TEXT) is None
    assert fit_value({"a": [1, "é"]}, JSON) == '{"a":[1,"é"]}'
    assert fit_value({"a": 1, "z": 2}, Struct({"a": INTEGER, "b": TEXT})) == {"a": 1, "b": None}


@pytest.mark.parametrize("text", ["", "{", "NaN", "1e999", '"\\ud800"', "[" * 100_000])
def test_texts_that_are_no_documents(text):
    with pytest.raises(UnreadableError):
        read(text)


@st.composite
def schemas(draw, depth=3):
    """A schema, and a strategy for its documents, whose integers are of 64 bits."""
    scalars = [
        ({"type": "string"}, st.text(st.characters(exclude_categories=["Cs"]))),
        ({"type": "integer"}, st.integers(-(2**63), 2**63 - 1)),
        ({"type": "number"}, st.floats(allow_nan=False, allow_infinity=False)),
        ({"type": "boolean"}, st.booleans()),
        ({"enum": ["a", "b"]}, st.sampled_from(["a", "b"])),
        ({}, st.recursive(st.none() | st.integers() | st.text("abc"), st.lists, max_leaves=5)),
    ]
    kind = draw(st.sampled_from(["scalar", "list", "struct", "null"] if depth else ["scalar"]))
    if kind == "scalar":
        return draw(st.sampled_from(scalars))
    schema, documents = draw(schemas(depth=depth - 1))
    if kind == "null":
        return {"anyOf": [schema, {"type": "null"}]}, documents | st.none()
    if kind == "list":
        return {"type": "array", "items": schema}, st.lists(documents, max_size=3)
    names = draw(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=4, unique=True))
    several = [draw(schemas(depth=depth - 1)) for _ in names]
    properties = {name: schema for name, (schema, _) in zip(names, several, strict=True)}
    fields = {name: each for name, (_, each) in zip(names, several, strict=True)}
    return {"type": "object", "properties": properties}, st.fixed_dictionaries({}, optional=fields)


def stored(value, type):
    """What a column of this type has after a document was stored, by the definition of types."""
    if value is None:
        return None
    if isinstance(type, ListOf):
        return [stored(each, type.item) for each in value]
    if isinstance(type, Struct):
        return {name: stored(value.get(name), each) for name, each in type.fields.items()}
    return dump(value) if type is JSON else value


@st.composite
def columns(draw):
    """A schema of an object, with some of its documents."""
    schema, documents = draw(schemas().filter(lambda each: "properties" in each[0]))
    return schema, draw(st.lists(documents, max_size=5))


@given(columns())
def test_documents_of_a_schema_fit_its_type(found):
    schema, documents = found
    type = make_storable(infer_type(schema))
    for document in documents:
        assert fit_value(read(dump(document)), type) == stored(document, type)
