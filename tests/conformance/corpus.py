"""Over 500 JSON Schemas of our own: every keyword that is enforced, wherever it can stand.

Leaves are constraints on one value. Each is put into each frame: bare, as a property required or
not, as an item, behind a reference, beside null. What does not fit this plan is in `whole_schemas`.
"""

from collections.abc import Iterator

from tests.conformance.whole_schemas import Schema, functions, structured_outputs, suite

STRING_FORMATS = (
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
    "uri-reference",
    "json-pointer",
    "relative-json-pointer",
    "uri-template",
    "idn-hostname",
    "iri",
)
PATTERNS = (
    "^[a-z]{3,8}$",
    "^[A-Z]{2}-[0-9]{4}$",
    r"^\d{1,3}(\.\d{3})*$",
    r"^\+?[0-9 ]{5,12}$",
    "a|b",
    "^x",
    "y$",
    r"^(red|green|blue)(, (red|green|blue)){0,2}$",
    r"^[^\s/]+/[^\s/]+$",
    "^[á-ú]{2,5}$",
    r"^\w+$",
    "^.{2,4}$",
    r"^v\d+\.\d+\.\d+(-[a-z0-9.]+)?$",
    "^(https?)://[a-z.]{3,20}$",
    "^$",
)


def strings() -> Iterator[Schema]:
    yield {"type": "string"}
    for bounds in ((0, 0), (1, 1), (2, 5), (0, 12), (20, 40)):
        yield {"type": "string", "minLength": bounds[0], "maxLength": bounds[1]}
    yield {"type": "string", "minLength": 3}
    yield {"type": "string", "pattern": "^[ab]+$", "minLength": 2, "maxLength": 6}
    yield from ({"type": "string", "pattern": pattern} for pattern in PATTERNS)
    yield from ({"type": "string", "format": name} for name in STRING_FORMATS)


def numbers() -> Iterator[Schema]:
    for kind in ("integer", "number"):
        yield {"type": kind}
        yield {"type": kind, "minimum": 0, "maximum": 100}
        yield {"type": kind, "minimum": -17, "maximum": -3}
        yield {"type": kind, "exclusiveMinimum": 0, "exclusiveMaximum": 10}
        yield {"type": kind, "minimum": 1000}
        yield {"type": kind, "maximum": -1}
        yield {"type": kind, "minimum": 7, "maximum": 7}
    yield {"type": "integer", "multipleOf": 5}
    yield {"type": "integer", "multipleOf": 3, "minimum": 10, "maximum": 50}
    yield {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 2}
    yield {"type": "number", "minimum": 0.5, "maximum": 0.75}
    yield {"type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 1e-3}
    yield {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
    yield {"type": "integer", "format": "uint8"}


def choices() -> Iterator[Schema]:
    yield {"type": "boolean"}
    yield {"type": "null"}
    yield {"const": "fixed"}
    yield {"const": -1.5}
    yield {"const": {"a": [1, None, True], "b": "ü"}}
    yield {"enum": ["red", "green", "blue"]}
    yield {"enum": [1, 2.5, "3", None, False, [], {}]}
    yield {"enum": ["", " ", 'a "quoted" word', "back\\slash", "new\nline", "tab\t", "🍎", "naïve"]}
    yield {"enum": ["<|im_end|>", "<|endoftext|>", "<tool>", "<s>"]}
    yield {"type": "string", "enum": ["yes", "no", 3]}
    yield {"type": ["string", "integer", "null"]}
    yield {"type": ["boolean", "array"], "items": {"type": "null"}, "maxItems": 2}
    yield {"anyOf": [{"type": "integer", "minimum": 5}, {"type": "string", "maxLength": 3}]}
    yield {"oneOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "null"}]}
    yield {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 8}]}
    yield {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 4}, {"title": "t"}]}


def containers() -> Iterator[Schema]:
    integer, word = (
        {"type": "integer", "minimum": 0, "maximum": 9},
        {"type": "string", "maxLength": 6},
    )
    yield {"type": "array", "items": integer, "maxItems": 4}
    yield {"type": "array", "items": word, "minItems": 2, "maxItems": 3}
    yield {"type": "array", "prefixItems": [integer, word], "items": False}
    yield {
        "type": "array",
        "prefixItems": [integer, word],
        "items": {"type": "null"},
        "maxItems": 4,
    }
    yield {
        "type": "array",
        "items": {"type": "array", "items": integer, "maxItems": 2},
        "maxItems": 2,
    }
    yield {"type": "array", "maxItems": 0}
    yield {"type": "object", "additionalProperties": False}
    yield {"type": "object", "additionalProperties": integer, "maxProperties": 3}
    yield {"type": "object", "additionalProperties": word, "minProperties": 1}
    yield {"type": "object", "properties": {"a": integer, "b": word}, "additionalProperties": False}
    yield {"type": "object", "properties": {"a": integer, "b": word}, "required": ["b"]}
    yield {
        "type": "object",
        "properties": {"a": integer},
        "required": ["z"],
        "additionalProperties": word,
    }
    yield {
        "type": "object",
        "patternProperties": {"^n_": integer, "^w_": word},
        "additionalProperties": False,
    }
    yield {
        "type": "object",
        "properties": {"": integer, "a b": word, 'q"': integer, "ü/~": word},
        "required": ["", 'q"'],
        "additionalProperties": False,
    }


def rewritten() -> Iterator[Schema]:
    """What llguidance holds only in another form."""
    digit, word = (
        {"type": "integer", "minimum": 0, "maximum": 9},
        {"type": "string", "maxLength": 6},
    )
    two = {"a": digit, "b": word}
    closed = {"type": "object", "properties": two, "additionalProperties": False}
    yield {"type": "string", "maxLength": 4, "not": {"enum": ["a", "b", ""]}}
    yield {"type": "string", "maxLength": 6, "not": {"pattern": "^[a-m]"}}
    yield {"type": "string", "not": {"minLength": 5}}
    yield {"type": "integer", "minimum": 0, "maximum": 20, "not": {"const": 7}}
    yield {"type": "integer", "minimum": 0, "maximum": 20, "not": {"multipleOf": 3}}
    yield {"type": ["null", "boolean", "integer"], "maximum": 9, "not": {"type": "null"}}
    yield {**closed, "not": {"required": ["a", "b"]}}
    yield {**closed, "not": {"properties": {"a": {"minimum": 5}}}}
    yield {**closed, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    yield {"oneOf": [word, {"type": "string", "pattern": "^x", "maxLength": 8}]}
    yield {"oneOf": [{"type": "integer", "maximum": 9, "minimum": -9}, {"const": 3}]}
    yield {**closed, "if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}}
    yield {
        **closed,
        "if": {"required": ["a"]},
        "then": {"required": ["b"]},
        "else": {"maxProperties": 0},
    }
    yield {**closed, "dependentRequired": {"a": ["b"]}}
    yield {**closed, "dependentSchemas": {"b": {"properties": {"a": {"minimum": 5}}}}}
    yield {**closed, "minProperties": 1}
    yield {**closed, "properties": {**two, "c": digit}, "minProperties": 2}
    yield {**closed, "properties": {**two, "c": digit}, "maxProperties": 2}
    yield {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": digit}
    yield {"type": "object", "propertyNames": {"pattern": "^[a-c]$"}, "additionalProperties": digit,
           "maxProperties": 2}  # fmt: skip
    yield {"type": "array", "items": digit, "contains": {"minimum": 5}, "maxItems": 3}
    yield {
        "type": "array",
        "items": digit,
        "contains": {"const": 1},
        "maxContains": 1,
        "maxItems": 3,
    }
    yield {"type": "array", "items": {"enum": ["r", "g", "b"]}, "uniqueItems": True, "minItems": 2}
    yield {
        "type": "object", "additionalProperties": False,
        "patternProperties": {"^a": digit, "^.{2}$": {"maximum": 4}}, "maxProperties": 2,
    }  # fmt: skip


def leaves() -> Iterator[Schema]:
    yield from strings()
    yield from numbers()
    yield from choices()
    yield from containers()
    yield from rewritten()


def frames(leaf: Schema) -> Iterator[Schema]:
    """The same constraint wherever one can stand."""
    closed = {"type": "object", "additionalProperties": False}
    yield leaf
    yield {
        **closed,
        "properties": {"value": leaf, "unit": {"enum": ["m", "s"]}},
        "required": ["value", "unit"],
    }
    yield {"type": "object", "properties": {"first": leaf, "second": leaf}}
    yield {"type": "array", "items": leaf, "minItems": 1, "maxItems": 2}
    yield {
        "$ref": "#/$defs/it",
        "$defs": {
            "it": {**closed, "properties": {"x": {"$ref": "#/$defs/v"}}, "required": ["x"]},
            "v": leaf,
        },
    }
    yield {
        **closed,
        "properties": {"maybe": {"anyOf": [leaf, {"type": "null"}]}},
        "required": ["maybe"],
    }


def everything() -> list[Schema]:
    framed = [frame for leaf in leaves() for frame in frames(leaf)]
    return [*framed, *structured_outputs(), *functions(), *suite()]
