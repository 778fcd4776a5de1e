"""Keywords that count together, put next to each other.

llguidance reads the keywords of a schema in their order, and those before and after an `allOf` or
the like apart. It would then ignore `additionalItems`, whose `items` it does not see.
"""

from collections.abc import Iterable

from completions.grammars.schema.keywords import SchemaObject

_APART = frozenset(("const", "enum", "allOf", "anyOf", "oneOf", "$ref"))
"""Keywords that separate those before them from those after them."""
_TOGETHER = (
    ("properties", "patternProperties", "additionalProperties"),
    ("items", "prefixItems", "additionalItems"),
    ("minimum", "exclusiveMinimum"),
    ("maximum", "exclusiveMaximum"),
)
"""The others of a group move behind the first of it that a schema has: properties are generated in
its order."""


def arrange(schemas: Iterable[SchemaObject]) -> None:
    """Reorder the keywords of schemas, in place."""
    for schema in schemas:
        if schema.keys() & _APART:
            order = _sort_keywords(schema)
            values = [(keyword, schema[keyword]) for keyword in order]
            schema.clear()
            schema.update(values)


def _sort_keywords(schema: SchemaObject) -> list[str]:
    order = list(schema)
    for group in _TOGETHER:
        first, *others = [keyword for keyword in group if keyword in schema] or [""]
        if others:
            order = [keyword for keyword in order if keyword not in others]
            index = order.index(first) + 1
            order[index:index] = others
    return order
