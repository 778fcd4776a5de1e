"""Counts of items and properties, rewritten as a few alternatives that count nothing."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from completions.grammars.json_schema.rewriting.refusals import CannotWriteError
from completions.grammars.json_schema.rewriting.schema_algebra import combine, make_key, negate
from completions.grammars.json_schema.rewriting.shapes import (
    Array,
    Boolean,
    Contains,
    Null,
    Number,
    Object,
    Shape,
    Some,
    String,
    Union,
    is_match,
)
from completions.grammars.schema.keywords import JSONSchema

MAX_ALTERNATIVES = 64
"""Alternatives of one constraint."""
MAX_TUPLES = 330
"""Arrays of unique items that are listed one by one: enough for five values."""
MAX_COUNTED_ITEMS = 8
"""Items of an array with `contains`."""

Possible = Callable[[Shape], bool]


def expand_arrays(
    shape: Array, read: Callable[[JSONSchema], Union], is_possible: Possible
) -> list[Array | list[object]]:
    """Return arrays without `contains` and `uniqueItems`, or the listed values of one."""
    shape = shape.trim()
    if shape.high is not None and shape.low > shape.high:
        return []
    if shape.repeating:
        if shape.high is not None and shape.high <= 1:
            return []
        advice = "no grammar can find equal items; leave uniqueItems out of not and oneOf"
        raise CannotWriteError(shape.repeating, "uniqueItems", advice)
    unique = shape.unique if shape.high is None or shape.high > 1 else None
    shape = replace(shape, unique=None)
    if unique and shape.contains:
        raise CannotWriteError(unique, "uniqueItems", "give it without contains")
    if unique:
        return [_expand_unique(shape, read, unique)]
    results = [shape]
    for contains in shape.contains:
        results = [each for one in results for each in _expand_contains(one, contains, read)]
        if len(results) > MAX_ALTERNATIVES:
            advice = f"it needs more than {MAX_ALTERNATIVES} alternatives; give a smaller maxItems"
            raise CannotWriteError(contains.pointer, "contains", advice)
    return [each for each in results if is_possible(each)]


def _expand_contains(
    shape: Array, contains: Contains, read: Callable[[JSONSchema], Union]
) -> Iterator[Array]:
    shape = replace(shape, contains=())
    if contains.high is None and (contains.low == 0):
        yield shape
        return
    length = shape.high
    if contains.high is None and _is_implied(shape, contains, read):
        yield shape
        return
    if length is None or length > MAX_COUNTED_ITEMS:
        length_note = "" if length is None else f", not of {length}"
        advice = f"give maxItems of at most {MAX_COUNTED_ITEMS} beside it{length_note}"
        raise CannotWriteError(contains.pointer, "contains", advice)
    highest = contains.low if contains.high is None else min(contains.high, length)
    for count in range(contains.low, highest + 1):
        for chosen in itertools.combinations(range(length), count):
            nodes = []
            for index in range(length):
                node = shape.get_item(index)
                if index in chosen:
                    node = combine(node, contains.node)
                elif contains.high is not None:
                    node = combine(node, negate(contains.node))
                nodes.append(node)
            low = max(shape.low, chosen[-1] + 1 if chosen else 0)
            yield replace(shape, prefix=tuple(nodes), rest=False, low=low)


def _is_implied(shape: Array, contains: Contains, read: Callable[[JSONSchema], Union]) -> bool:
    """Return whether the other constraints already make enough items instances."""
    wrong = negate(contains.node)
    count = sum(
        not read(combine(shape.get_item(index), wrong))
        for index in range(min(shape.low, MAX_COUNTED_ITEMS))
    )
    return count >= contains.low


def _expand_unique(shape: Array, read: Callable[[JSONSchema], Union], pointer: str) -> list[object]:
    advice = (
        "it is supported where maxItems is 1 or the items have few values, "
        "such as an enum of up to 5"
    )
    values = _list_values(read(shape.rest)) if shape.rest is not False else []
    lists = [_list_values(read(node)) for node in shape.prefix]
    if values is None or any(each is None for each in lists):
        raise CannotWriteError(pointer, "uniqueItems", advice)
    high = shape.high if shape.high is not None else len(lists) + len(values)
    high = min(high, len(lists) + len(values))
    results: list[object] = []
    tuples: list[list[object]] = [[]]
    for length in range(high + 1):
        if length >= shape.low:
            results += tuples
        choices = lists[length] if length < len(lists) else values
        tuples = [
            [*items, value]
            for items in tuples
            for value in choices or ()
            if make_key(value) not in map(make_key, items)
        ]
        if len(results) + len(tuples) > MAX_TUPLES and length < high:
            raise CannotWriteError(pointer, "uniqueItems", advice)
    return results


def _list_values(union: Union) -> list[object] | None:
    """Return the values of a union, if they are finitely many."""
    values: list[object] = []
    for shape in union:
        if isinstance(shape, Null):
            values.append(None)
        elif isinstance(shape, Boolean):
            values += shape.values
        elif isinstance(shape, String) and shape.values is not None:
            values += shape.list_texts()
        elif isinstance(shape, Number) and shape.low is not None and shape.low == shape.high:
            values.append(shape.low)
        elif (
            isinstance(shape, Number)
            and shape.integer
            and shape.low is not None
            and shape.high is not None
            and shape.high - shape.low <= 8
        ):
            whole = range(int(shape.low) - 1, int(shape.high) + 2)
            values += [n for n in whole if not (shape & Number(low=n, high=n)).is_empty()]
        else:
            return None
    return list({make_key(value): value for value in values}.values())


def expand_objects(shape: Object, is_possible: Possible) -> list[Object]:
    """Return objects whose counts llguidance holds: all their properties are required or forbidden
    wherever a count is left."""
    results = [shape]
    for some in shape.some:
        results = [each for one in results for each in _expand_some(one, some) if is_possible(each)]
        _check_few(results, some.pointer)
    counted = [each for one in results for each in _expand_counts(one) if is_possible(each)]
    _check_few(counted, shape.counted)
    return counted


def _check_few(results: list[Object], pointer: str) -> None:
    if len(results) > MAX_ALTERNATIVES:
        keyword = pointer.rpartition("/")[2]
        advice = (
            f"it needs more than {MAX_ALTERNATIVES} alternatives; give fewer optional properties "
            "beside it"
        )
        raise CannotWriteError(pointer, keyword, advice)


def _expand_some(shape: Object, some: Some) -> Iterator[Object]:
    """Yield one alternative for each property that may be the wanted one."""
    if some.misnamed:
        advice = (
            "not, oneOf and if would require a name that violates it, which is not supported; list "
            "the allowed names in properties, with additionalProperties: false"
        )
        raise CannotWriteError(some.pointer, "propertyNames", advice)
    shape = replace(shape, some=())
    properties = {name: shape.get_property(name) for name in (*shape.properties, *shape.required)}
    candidates = {name: node for name, node in properties.items() if node is not False}
    candidates = {name: node for name, node in candidates.items() if _is_match(name, some)}
    if some.value is True and candidates.keys() & set(shape.required):
        yield shape
        return
    for name, node in candidates.items():
        value = combine(node, some.value)
        if value is not False:
            yield _require_name(replace(shape, properties={**shape.properties, name: value}), name)
    if shape.is_closed:
        return
    if some.pattern is not None or some.value is not True:
        raise CannotWriteError(some.pointer, "not", "give additionalProperties: false beside it")
    # Some name that the schema does not declare: nothing else may be left open.
    names = [name for name in some.except_names if name not in shape.properties]
    if shape.patterns or some.except_patterns:
        raise CannotWriteError(some.pointer, "not", "give it without patternProperties")
    declared = {**shape.properties, **dict.fromkeys(names, shape.rest)}
    yield from _add_another(replace(shape, properties=declared))


def _add_another(shape: Object) -> Iterator[Object]:
    """Yield an undeclared property beside each choice of the declared ones."""
    optional = _list_optional(shape)
    if 2 ** len(optional) > MAX_ALTERNATIVES:
        advice = f"give at most {MAX_ALTERNATIVES.bit_length() - 1} optional properties beside it"
        raise CannotWriteError(shape.counted, "additionalProperties", advice)
    for size in range(len(optional) + 1):
        for chosen in itertools.combinations(optional, size):
            exact = _restrict_to(shape, chosen)
            yield replace(exact, low=max(shape.low, len(exact.required) + 1))


def _is_match(name: str, some: Some) -> bool:
    if some.pattern is not None:
        return is_match(some.pattern, name)
    return name not in some.except_names and not any(
        is_match(pattern, name) for pattern in some.except_patterns
    )


def _require_name(shape: Object, name: str) -> Object:
    return shape if name in shape.required else replace(shape, required=(*shape.required, name))


def _list_optional(shape: Object) -> list[str]:
    return [
        name
        for name, node in shape.properties.items()
        if name not in shape.required and node is not False
    ]


def _restrict_to(shape: Object, chosen: tuple[str, ...]) -> Object:
    """Return the object with these of its optional properties, and without the others."""
    absent: dict[str, JSONSchema] = {
        name: False for name in _list_optional(shape) if name not in chosen
    }
    return replace(
        shape, properties={**shape.properties, **absent}, required=(*shape.required, *chosen)
    )


def _expand_counts(shape: Object) -> Iterator[Object]:
    optional = _list_optional(shape)
    required = len(shape.required)
    declared = required + len(optional)
    low = shape.low if shape.low > required else 0
    high = shape.high
    if high is not None and shape.is_closed and high >= declared:
        high = None
    shape = replace(shape, low=low, high=high)
    if high is not None and (optional or low):
        yield from _expand_max(shape, optional, high)
    elif low:
        yield from _expand_min(shape, optional, low - required)
    else:
        yield shape


def _expand_max(shape: Object, optional: list[str], high: int) -> Iterator[Object]:
    chosen_count = 0
    for size in range(min(len(optional), high - len(shape.required)) + 1):
        for chosen in itertools.combinations(optional, size):
            chosen_count += 1
            if chosen_count > MAX_ALTERNATIVES:
                raise _make_error(shape, "maxProperties", optional)
            exact = _restrict_to(shape, chosen)
            missing = shape.low - len(exact.required)
            if missing <= 0 or not shape.is_closed:
                yield _add_names_left(exact, missing)


def _expand_min(shape: Object, optional: list[str], missing: int) -> Iterator[Object]:
    """Yield one alternative for each choice of the first properties that are present."""
    for size in range(missing + 1):
        whole = size == missing
        if not whole and shape.is_closed:
            continue
        for count, chosen in enumerate(itertools.combinations(optional, size)):
            if count > MAX_ALTERNATIVES:
                raise _make_error(shape, "minProperties", optional)
            exact = _restrict_to(shape, chosen)
            if whole:
                after = optional[optional.index(chosen[-1]) + 1 :] if chosen else optional
                properties = {name: shape.properties[name] for name in after}
                yield replace(exact, properties={**exact.properties, **properties}, low=0)
            else:
                yield _add_names_left(exact, missing - size)


def _make_error(shape: Object, keyword: str, optional: list[str]) -> CannotWriteError:
    advice = (
        f"its {len(optional)} optional properties can be chosen in more than {MAX_ALTERNATIVES} "
        "ways; give fewer optional properties beside it, or require some"
    )
    return CannotWriteError(shape.counted, keyword, advice)


def _add_names_left(shape: Object, missing: int) -> Object:
    if missing > 1:
        # Names that are not declared may be generated twice.
        advice = (
            "undeclared names count only once; declare them in properties, with "
            "additionalProperties: false"
        )
        raise CannotWriteError(shape.counted, "minProperties", advice)
    return replace(shape, low=len(shape.required) + missing if missing > 0 else 0)
