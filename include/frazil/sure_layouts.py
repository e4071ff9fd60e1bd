"""How Python workers read Avro payloads by themselves: a layout for one schema and the columns.

A layout holds only what has the same value by Spark's reader; a schema with any other field has
none, and Spark decodes it. It is JSON, read by `frazil_spark.avro_columns`:

| layout | on the wire |
|---|---|
| a word | a value of that type; `micros`, `millis`: an instant |
| `{"null": place, "of": layout}` | a union with null at that place |
| `{"items": layout}` | an array |
| `{"fields": [[name, layout], …]}` | a record |
| `{"symbols": […]}` | an enum |
| `{"decimal": size}` | an unscaled number of so many bytes; 0: its length stands before it |
| `{"fixed": size}` | so many bytes |
"""

import json
from dataclasses import dataclass, field

from frazil.avro_schemas import AvroSchema, Json
from frazil.columns import Column, ColumnType, ListType, Primitive, StructType
from frazil.source_types import Record, Scalar, Sequence, Source

MAX_PRECISION, MAX_BYTES = 18, 8
"""Of decimals: what fits 64 bits."""

_EXACT = frozenset({"boolean", "int", "long", "float", "double", "string", "binary", "fixed"})
_TEMPORAL = frozenset({"date", "timestamp", "timestamptz"})
_WIDENINGS = {
    ("int", "long"),
    ("int", "double"),
    ("float", "double"),
    ("fixed", "binary"),
    ("uuid", "string"),
}
_PLAIN_FORMS = frozenset({"", "nanos-utc", "nanos-local"})
"""Forms that are the value of a column of their own type."""

_LOGICAL = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "millis",
    ("long", "timestamp-micros"): "micros",
    ("long", "local-timestamp-millis"): "millis",
    ("long", "local-timestamp-micros"): "micros",
}
_WORDS = frozenset({"boolean", "int", "long", "float", "double", "bytes", "string"})


class NotSureError(ValueError):
    """A part of a schema is for Spark alone."""


def lay_out_avro(avro: AvroSchema, columns: tuple[Column, ...]) -> str:
    """Write the layout of a record's payloads; empty where Spark has to decode them."""
    node = json.loads(avro.reader)["fields"][0]["type"]
    try:
        return json.dumps(_Layouts().lay_out(node, avro.root, StructType(columns)))
    except NotSureError:
        return ""


def is_exact_type(column_type: ColumnType) -> bool:
    """Name the types that workers write from a binary format; nothing required below the top."""
    match column_type:
        case Primitive("decimal", (precision, _)):
            return precision <= MAX_PRECISION
        case Primitive(name, _):
            return name in _EXACT | _TEMPORAL
        case ListType(element, required):
            return not required and is_exact_type(element)
        case StructType(fields):
            return all(not f.required and is_exact_type(f.type) for f in fields)
    return False


@dataclass
class _Layouts:
    """Walk a schema once; a type that was met is found again by its name."""

    _named: dict[str, Json] = field(default_factory=dict)

    def lay_out(self, node: Json, source: Source, target: ColumnType | None) -> Json:
        """Lay out one value; without a target it is read only to come behind it.

        Raises:
            NotSureError: it is for Spark alone.
        """
        if isinstance(node, dict) and isinstance(node.get("name"), str):
            self._named[str(node["name"])] = node
        match node, source, target:
            case str(name), _, _ if name in self._named:
                return self.lay_out(self._named[name], source, target)
            case list([first, second]), _, _ if "null" in (first, second):
                place = 0 if first == "null" else 1
                return {"null": place, "of": self.lay_out((second, first)[place], source, target)}
            case {"type": "array", "items": items}, Sequence(element), ListType(wanted):
                return {"items": self.lay_out(items, element, wanted)}
            case {"type": "array", "items": items}, Sequence(element), None:
                return {"items": self.lay_out(items, element, None)}
            case {"type": "record", "fields": list(fields)}, Record(), StructType() | None:
                columns = target.fields if target else ()
                return {"fields": self._lay_out_fields(fields, source, columns)}
            case _, Scalar(), Primitive() | None if is_exact(source, target):
                return _lay_out_scalar(node, is_asked=target is not None)
        raise NotSureError

    def _lay_out_fields(
        self, fields: list[Json], source: Record, columns: tuple[Column, ...]
    ) -> list[Json]:
        """Lay out all fields in the schema's order; those without a column too."""
        wanted = {column.name: column.type for column in columns}
        nodes = [each["type"] for each in fields if isinstance(each, dict)]
        return [
            [name, self.lay_out(node, inner, wanted.get(name))]
            for (name, inner), node in zip(source.fields, nodes, strict=True)
        ]


def is_exact(source: Scalar, target: Primitive | None) -> bool:
    """Say whether a value is its column's value as it stands."""
    if target is None:
        return True
    if source.form == "decimal":
        precision, scale = target.parameters if target.name == "decimal" else (0, -1)
        return precision <= MAX_PRECISION and scale == source.type.parameters[1]
    if source.form not in _PLAIN_FORMS or target.name not in _EXACT | _TEMPORAL:
        return False
    return source.type == target or (source.type.name, target.name) in _WIDENINGS


def _lay_out_scalar(node: Json, *, is_asked: bool) -> Json:  # noqa: PLR0911 - one for each kind
    match node:
        case "string" if not is_asked:
            return "bytes"  # Spark's reader does not look into a text that no column takes
        case str(word) if word in _WORDS:
            return word
        case {"type": "enum", "symbols": list(symbols)}:
            return {"symbols": symbols}
        case {"type": "bytes", "logicalType": "decimal"}:
            return {"decimal": 0}
        case {"type": "fixed", "size": int(size), "logicalType": "decimal"}:
            if size <= MAX_BYTES:
                return {"decimal": size}
        case {"type": "fixed", "size": int(size)}:
            return {"fixed": size}
        case {"type": str(word), "logicalType": str(logical)} if (word, logical) in _LOGICAL:
            return _LOGICAL[word, logical]
    raise NotSureError
