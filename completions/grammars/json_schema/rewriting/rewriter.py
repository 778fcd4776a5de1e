"""Walks over a schema and replaces what llguidance does not enforce by an equivalent.

Schemas that need nothing stay as they are, with their references, and properties keep their order.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import quote

from completions.grammars.json_schema.rewriting import disjointness, formats, overlaps
from completions.grammars.json_schema.rewriting.keyword_readings import CircularError, Reader
from completions.grammars.json_schema.rewriting.refusals import CannotWriteError
from completions.grammars.json_schema.rewriting.schema_algebra import serialize
from completions.grammars.json_schema.rewriting.schema_writer import Writer
from completions.grammars.json_schema.rewriting.shapes import TooManyShapesError
from completions.grammars.schema.keywords import REWRITTEN, JSONSchema, SchemaObject
from completions.grammars.schema.nodes import Document, SchemaNode
from completions.grammars.schema.pointers import get
from completions.regular.nfa import PatternError, TooLargeError

MAX_REWRITTEN_BYTES = 256 * 1024
"""JSON of the schemas that are made by combining others, before they are rewritten themselves."""
_IN_PLACE = ("allOf", "anyOf", "oneOf")
_COUNTS = frozenset(("minProperties", "maxProperties"))
_KEPT = frozenset(("$schema", "$id", "id", "$anchor", "$defs", "definitions"))
"""Keywords that a schema keeps when it is written anew: they change nothing, but may be referred
to."""


@dataclass(slots=True)
class Rewritten:
    """What a rewriting changed: the pointers of schemas written anew, and its refusals."""

    pointers: list[str] = field(default_factory=list)
    renamed: list[str] = field(default_factory=list)
    """The pointers of schemas whose `oneOf` became an `anyOf`."""
    refusals: list[CannotWriteError] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """The last parts of pointers, by the whole pointer, that are other than the client wrote."""

    @property
    def is_changed(self) -> bool:
        """Whether schemas no longer stand where the client wrote them."""
        return bool(self.pointers or self.renamed)

    def to_original(self, pointer: str) -> str:
        """Return where the client wrote what stands at a pointer of the rewritten schema."""
        pointer = self.replace_names(pointer)
        for prefix in self.pointers:
            if f"{pointer}/".startswith(f"{prefix}/"):
                return prefix
        for prefix in self.renamed:
            if f"{pointer}/".startswith(f"{prefix}/anyOf/"):
                pointer = f"{prefix}/oneOf{pointer.removeprefix(f'{prefix}/anyOf')}"
        return pointer

    def replace_names(self, pointer: str) -> str:
        """Return the pointer with the patterns that the client wrote as names."""
        if not self.names:
            return pointer
        new = old = ""
        for part in pointer.split("/")[1:]:
            new = f"{new}/{part}"
            old = f"{old}/{self.names.get(new, part)}"
        return old


def rewrite(document: Document, nodes: Mapping[str, SchemaNode]) -> Rewritten:
    """Rewrite a schema in place. `nodes` has each schema in it by its pointer."""
    walk = _Walk(document, {id(node.schema): pointer for pointer, node in nodes.items()})
    walk.run()
    if walk.rewritten.is_changed and not walk.rewritten.refusals:
        reach(document)
    return walk.rewritten


class _Walk:
    def __init__(self, document: Document, pointers: Mapping[int, str]) -> None:
        self.rewritten = Rewritten()
        self._document = document
        self._pointers = pointers
        self._reader = Reader(document, pointers)
        self._writer = Writer(
            lambda node: self._reader.read(node, self._pointer),
            self._reader.is_possible,
            self._wrap_child,
        )
        self._pointer = ""
        self._visited: set[int] = set()
        self._waiting: list[JSONSchema] = [document.root.schema]
        self._changes: list[tuple[SchemaObject, SchemaObject]] = []
        self._needing: dict[int, bool] = {}
        self._alive: list[JSONSchema] = []
        """Keeps what was looked at, so that no other object gets its id."""
        self._made_bytes = 0
        self._open: dict[str, str] = {}
        """Schemas made here that are being written, and the definition of each, if it has one."""
        self._definitions: dict[str, JSONSchema] = {}
        self._free_names = _iter_free_names(document.root, "rewritten")

    def run(self) -> None:
        while self._waiting:
            node = self._waiting.pop()
            if not isinstance(node, dict) or id(node) in self._visited:
                continue
            self._visited.add(id(node))
            self._pointer = self._pointers.get(id(node), self._pointer)
            if self._needs_rewriting(node):
                self._write_anew(node)
            else:
                self._keep(node)
        # Not earlier: the reader must see what the client wrote.
        for node, change in self._changes:
            node.clear()
            node.update(change)
        if self._definitions:
            self._document.root.keywords.setdefault("$defs", {}).update(self._definitions)

    def _keep(self, node: SchemaObject) -> None:
        change = formats.write_format(node)
        if "oneOf" in node:
            self.rewritten.renamed.append(self._pointer)
            change = dict(change or node)
            options = change.pop("oneOf")
            if "anyOf" in change:
                change["allOf"] = [*change.get("allOf", ()), {"anyOf": options}]
            else:
                change["anyOf"] = options
        if change is not None:
            self._changes.append((node, change))
        self._waiting += [inner.schema for inner in self._document.parse(node).parts]
        target = self._document.targets.get(node.get("$ref", ""))
        self._waiting += [target.schema] if target else []

    def _write_anew(self, node: SchemaObject) -> None:
        pointer = self._pointer
        try:
            new = self._writer.write(self._reader.read(node, pointer))
        except (CannotWriteError, *_FAILURES) as error:
            self.rewritten.refusals.append(self._make_refusal(error, node))
            return
        self.rewritten.pointers.append(pointer)
        annotations = {key: value for key, value in node.items() if key in _KEPT}
        if new is True:
            new = {}
        change = {"allOf": [False]} if new is False else new
        assert isinstance(change, dict)
        self._changes.append((node, {**annotations, **change}))

    def _make_refusal(self, error: Exception, node: SchemaObject) -> CannotWriteError:
        """Return the refusal at the keyword because of which a schema is written anew."""
        path, keyword = self._find_culprit(node, self._pointer)
        if not isinstance(error, CannotWriteError):
            return CannotWriteError(path, keyword, _give_advice(error, keyword))
        if error.pointer.endswith(f"/{error.keyword}"):
            return error
        inside = f", at {error.pointer}" if error.pointer.startswith(f"{path}/") else ""
        return CannotWriteError(path, keyword, error.advice + inside)

    def _find_culprit(self, node: SchemaObject, pointer: str) -> tuple[str, str]:
        """Return the pointer and the name of the first keyword because of which a schema needs
        writing."""
        for keyword in node:
            if keyword in REWRITTEN:
                return f"{pointer}/{keyword}", keyword
        for keyword in _IN_PLACE:
            for index, inner in enumerate(node.get(keyword, ())):
                if isinstance(inner, dict) and self._needs_rewriting(inner):
                    return self._find_culprit(inner, f"{pointer}/{keyword}/{index}")
        counted = ("oneOf", "minProperties", "maxProperties", "patternProperties")
        keyword = next((each for each in counted if each in node), "")
        return f"{pointer}/{keyword}", keyword

    def _wrap_child(self, node: JSONSchema) -> JSONSchema:
        """Return a schema inside a value. One of the client's is visited later; one made here,
        now."""
        if isinstance(node, bool):
            return node
        if id(node) in self._pointers:
            self._waiting.append(node)
            return self._copy_clients(node)
        if not self._needs_rewriting(node):
            return self._make(node)
        name = serialize(node)
        self._made_bytes += len(name)
        if self._made_bytes > MAX_REWRITTEN_BYTES:
            raise TooManyShapesError
        if name in self._open:
            self._open[name] = self._open[name] or next(self._free_names)
            return {"$ref": f"#/$defs/{self._open[name]}"}
        self._open[name] = ""
        try:
            result = self._writer.write(self._reader.read(node, self._pointer))
        finally:
            definition = self._open.pop(name)
        if not definition:
            return result
        self._definitions[definition] = result
        return {"$ref": f"#/$defs/{definition}"}

    def _copy_clients(self, node: SchemaObject) -> JSONSchema:
        """Return a schema of the client; a reference to it if it may contain the schema being
        written."""
        pointer = self._pointers[id(node)]
        has_others = self._needs_rewriting(node) or any(self._document.parse(node).parts)
        if pointer.startswith(f"{self._pointer}/") or not has_others:
            return node
        reference = f"#{quote(pointer)}"
        self._document.targets[reference] = SchemaNode(self._document, pointer, node, node)
        return {"$ref": reference}

    def _make(self, node: SchemaObject) -> JSONSchema:
        """Return a combination made here that llguidance can intersect itself."""
        if node.keys() == {"allOf"}:
            return {"allOf": [self._wrap_child(inner) for inner in node["allOf"]]}
        self._waiting += [node]
        return node

    def _needs_rewriting(self, node: JSONSchema) -> bool:
        if not isinstance(node, dict):
            return False
        cached = self._needing.get(id(node))
        if cached is None:
            self._needing[id(node)] = cached = self._compute_needs(node)
            self._alive.append(node)
        return cached

    def _compute_needs(self, node: SchemaObject) -> bool:
        if node.keys() & REWRITTEN:
            return True
        if any(
            self._needs_rewriting(inner) for keyword in _IN_PLACE for inner in node.get(keyword, ())
        ):
            return True
        if node.keys() & _COUNTS and not _is_counted(node):
            return True
        if _has_counts_inside(node):
            return True
        if len(patterns := node.get("patternProperties", {})) > 1 and overlaps.have_common_names(
            patterns
        ):
            return True
        return "oneOf" in node and not disjointness.are_disjoint(node["oneOf"], self._reader)


_FAILURES = (TooManyShapesError, CircularError, PatternError)


def _give_advice(error: Exception, keyword: str) -> str:
    if isinstance(error, TooManyShapesError):
        nearest = "leave parts of it out, or split the schema"
        if keyword == "oneOf":
            nearest = "tell its branches apart by a required property with a const, or use anyOf"
        return f"it needs too many alternatives; {nearest}"
    if isinstance(error, CircularError):
        return "it refers to itself; refer to itself inside a property or an item only"
    if isinstance(error, TooLargeError):
        return "a pattern in it is too complex to be combined; give a simpler one, or an enum"
    return f"a pattern in it cannot be combined or negated: {error}"


def _is_counted(node: SchemaObject) -> bool:
    """Return whether llguidance counts the properties of an object itself."""
    required = set(node.get("required", ()))
    if node.get("minProperties", 0) > len(required) + 1:
        return False  # names that are not declared may be generated twice
    if node.get("properties", {}).keys() <= required:
        return True
    closed = node.get("additionalProperties") is False and not node.get("patternProperties")
    return closed and node.get("minProperties", 0) <= 1 and node.get("maxProperties", 1) == 1


def _iter_in_place(node: SchemaObject) -> Iterator[SchemaObject]:
    """Yield the schemas that apply to the same value, without references."""
    for keyword in _IN_PLACE:
        for inner in node.get(keyword, ()):
            if isinstance(inner, dict):
                yield inner
                yield from _iter_in_place(inner)


def _has_counts_inside(node: SchemaObject) -> bool:
    """Return whether a schema counts properties that another one declares."""
    combined = node.keys() & {"$ref", *_IN_PLACE}
    return bool(combined and node.keys() & _COUNTS) or any(
        each.keys() & _COUNTS for each in _iter_in_place(node)
    )


def _iter_free_names(root: SchemaNode, stem: str) -> Iterator[str]:
    """Return names that no definition of a schema has."""
    taken = frozenset(root.keywords.get("$defs", ()))
    return (name for number in count() if (name := f"{stem}-{number}") not in taken)


def reach(document: Document) -> None:
    """Define the targets of references that are no longer in their places.

    Only schemas refer: `$ref` in a `const` or an `enum` is data.
    """
    root = document.root
    moved: dict[str, str] = {}
    free_names = _iter_free_names(root, "moved")
    for reference, target in document.targets.items():
        if get(root.schema, target.pointer) is target.schema:
            continue
        name = next(free_names)
        root.keywords.setdefault("$defs", {})[name] = target.schema
        moved[reference] = f"#/$defs/{name}"
    waiting = [root] if moved else []
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node.schema) in seen:
            continue
        seen.add(id(node.schema))
        waiting += node.parts
        if following := node.target:
            waiting.append(following)
            name = node.keywords["$ref"]
            node.keywords["$ref"] = moved.get(name, name)
