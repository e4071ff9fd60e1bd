"""Layouts by which Python workers read Avro and Protobuf payloads, for one schema and the columns.

A schema has a layout only if Spark, or Google's library, decodes every field to the same value;
else they decode its payloads. Layouts are JSON, read by `avro_reader` and `protobuf_reader` of
`frazil_spark.fast_path`. For Avro:

| layout | bytes |
|---|---|
| a word | a value of that type; `micros`, `millis`: an instant |
| `{"null": index, "of": layout}` | a union of two types, null at that index |
| `{"items": layout}` | an array |
| `{"fields": [[name, layout], …]}` | a record |
| `{"symbols": […]}` | an enum |
| `{"decimal": size}` | an unscaled number of `size` bytes; 0: its length precedes it |
| `{"fixed": size}` | `size` bytes |
"""

import json
from dataclasses import dataclass, field

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from frazil.schemas.avro import MILLIS, AvroSchema
from frazil.schemas.protobuf import ProtobufSchema
from frazil.schemas.source_types import Json, Record, Scalar, Sequence, Source
from frazil.streams.column_types import Column, ColumnType, ListType, Primitive, StructType

MAX_PRECISION, MAX_BYTES = 18, 8
"""Digits and bytes of the decimals that fit into 64 bits."""
_EXACT = frozenset({"boolean", "int", "long", "float", "double", "string", "binary", "fixed"})
_TEMPORAL = frozenset({"date", "timestamp", "timestamptz"})
_WIDENINGS = {
    ("int", "long"),
    ("int", "double"),
    ("float", "double"),
    ("fixed", "binary"),
    ("uuid", "string"),
}
_PLAIN_FORMS = frozenset({"", "nanos-utc", "nanos-local", MILLIS})
"""Source forms whose value is that of a column of the same type."""
_LOGICAL = {
    ("int", "date"): "date",
    ("long", "timestamp-micros"): "micros",
    ("long", "local-timestamp-micros"): "micros",
}
_WORDS = frozenset({"boolean", "int", "long", "float", "double", "bytes", "string"})
_SCALARS = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_SINT32: "sint32",
    FieldDescriptor.TYPE_SFIXED32: "sfixed32",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_FIXED32: "fixed32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_SINT64: "sint64",
    FieldDescriptor.TYPE_SFIXED64: "sfixed64",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
}


class NotOnFastPathError(ValueError):
    """A part of a schema that only Spark decodes."""


def lay_out_avro(avro: AvroSchema, columns: tuple[Column, ...]) -> str:
    """Return the layout of a record's payloads, empty where Spark has to decode them."""
    node = json.loads(avro.reader)["fields"][0]["type"]
    try:
        return json.dumps(_Layouts().lay_out(node, avro.root, StructType(columns)))
    except NotOnFastPathError:
        return ""


def is_exact_type(column_type: ColumnType) -> bool:
    """Return whether workers write a type from a binary format; no nested required fields."""
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
    """Lay out a schema in one walk; named types are found again by their name."""

    _named: dict[str, Json] = field(default_factory=dict)

    def lay_out(self, node: Json, source: Source, target: ColumnType | None) -> Json:
        """Lay out one value; without a target it is read only to find its end.

        Raises:
            NotOnFastPathError: only Spark decodes it.
        """
        if isinstance(node, dict) and isinstance(node.get("name"), str):
            self._named[str(node["name"])] = node
        match node, source, target:
            case str(name), _, _ if name in self._named:
                return self.lay_out(self._named[name], source, target)
            case list([first, second]), _, _ if "null" in (first, second):
                index = 0 if first == "null" else 1
                return {"null": index, "of": self.lay_out((second, first)[index], source, target)}
            case {"type": "array", "items": items}, Sequence(element), ListType(wanted):
                return {"items": self.lay_out(items, element, wanted)}
            case {"type": "array", "items": items}, Sequence(element), None:
                return {"items": self.lay_out(items, element, None)}
            case {"type": "record", "fields": list(fields)}, Record(), StructType() | None:
                columns = target.fields if target else ()
                return {"fields": self._lay_out_fields(fields, source, columns)}
            case _, Scalar(), Primitive() | None if is_exact(source, target):
                return _lay_out_scalar(node, source, target)
        raise NotOnFastPathError

    def _lay_out_fields(
        self, fields: list[Json], source: Record, columns: tuple[Column, ...]
    ) -> list[Json]:
        """Lay out all fields in the schema's order, also those without a column."""
        nodes = [each["type"] for each in fields if isinstance(each, dict)]
        return [
            [name, self.lay_out(node, inner, target)]
            for (_, inner), node, (name, target) in zip(
                source.fields, nodes, _match_columns(source, columns), strict=True
            )
        ]


def _match_columns(
    source: Record, columns: tuple[Column, ...]
) -> list[tuple[str, ColumnType | None]]:
    """Return each field's column by name and type; without one, a name that no column has."""
    wanted = {column.field: column for column in columns}
    found = [wanted.get(name) for name, _ in source.fields]
    return [(c.name, c.type) if c else (f" {index}", None) for index, c in enumerate(found)]


def is_exact(source: Scalar, target: Primitive | None) -> bool:
    """Return whether a value needs no conversion for its column."""
    if target is None:
        return True
    if source.encoding == "decimal":
        precision, scale = target.parameters if target.name == "decimal" else (0, -1)
        return precision <= MAX_PRECISION and scale == source.type.parameters[1]
    if source.encoding not in _PLAIN_FORMS or target.name not in _EXACT | _TEMPORAL:
        return False
    return source.type == target or (source.type.name, target.name) in _WIDENINGS


def _lay_out_scalar(  # noqa: PLR0911 - one for each kind
    node: Json, source: Scalar, target: Primitive | None
) -> Json:
    match node:
        case "long" if target is not None and source.encoding == MILLIS:
            return MILLIS
        case "string" if target is None:
            return "bytes"  # Spark's reader does not validate text without a column
        case str(word) if word in _WORDS:
            return word
        case {"type": "enum", "symbols": list(symbols)}:
            return {"symbols": symbols}
        case {"type": "bytes", "logicalType": "decimal"}:
            return {"decimal": 0}
        case {"type": "fixed", "size": int(size), "logicalType": "decimal", "precision": int(most)}:
            # Spark refuses numbers of more digits, which a wider column would hold.
            if size <= MAX_BYTES and (target is None or target.parameters[0] <= most):
                return {"decimal": size}
        case {"type": "fixed", "size": int(size)}:
            return {"fixed": size}
        case {"type": str(word), "logicalType": str(logical)} if (word, logical) in _LOGICAL:
            return _LOGICAL[word, logical]
    raise NotOnFastPathError


def lay_out_protobuf(found: ProtobufSchema, columns: tuple[Column, ...]) -> str:
    """Return the layout of a message, empty where Google's library has to read it."""
    files = FileDescriptorSet.FromString(found.descriptor_set)
    pool = DescriptorPool()
    for each in files.file:
        pool.AddSerializedFile(each.SerializeToString())
    message = pool.FindMessageTypeByName(found.message)
    if _list_files(message) & {each.name for each in files.file if each.syntax != "proto3"}:
        return ""
    try:
        return json.dumps(_lay_out_message(message, found.root, columns))
    except NotOnFastPathError:
        return ""


def _list_files(message: Descriptor) -> set[str]:
    """List the files of a message and of the messages in it; imports of options do not count."""
    found, waiting = {message.full_name: message.file.name}, [message]
    while waiting:
        inner = [field.message_type for field in waiting.pop().fields]
        new = {each.full_name: each for each in inner if each is not None}
        waiting += [each for name, each in new.items() if name not in found]
        found.update((name, each.file.name) for name, each in new.items())
    return {*found.values()}


def _lay_out_message(message: Descriptor, source: Record, columns: tuple[Column, ...]) -> Json:
    """Lay out all fields, also those without a column, since they may be malformed."""
    matched = zip(source.fields, _match_columns(source, columns), strict=True)
    found = {field: (name, inner, target) for (field, inner), (name, target) in matched}
    fields = sorted(message.fields, key=lambda field: field.number)
    return {"fields": [_lay_out_field(f, *found[f.name]) for f in fields]}


def _lay_out_field(
    field: FieldDescriptor, name: str, source: Source, target: ColumnType | None
) -> Json:
    if field.containing_oneof is not None and len(field.containing_oneof.fields) > 1:
        raise NotOnFastPathError  # the last one clears the others
    if not field.is_repeated:
        label = "maybe" if field.has_presence else "one"
        return [field.number, name, label, _lay_out_value(field, source, target)]
    match source, target:
        case Sequence(element), ListType(wanted):
            inner = _lay_out_value(field, element, wanted)
        case Sequence(element), None:
            inner = _lay_out_value(field, element, None)
        case _:
            raise NotOnFastPathError
    return [field.number, name, "packed" if field.is_packed else "many", inner]


def _lay_out_value(field: FieldDescriptor, source: Source, target: ColumnType | None) -> Json:
    kind = field.message_type
    match source, target:
        case Record(), StructType() | None:
            return _lay_out_message(kind, source, target.fields if target else ())
        case Scalar(_, "instant"), Primitive("timestamptz") | None:
            return "instant"
        case Scalar(_, "enum", symbols), Primitive("string") | None:
            return {"names": [[number, name] for number, name in symbols]}
        case Scalar(own, "wrapped"), Primitive() | None:
            inner = _lay_out_field(kind.fields_by_name["value"], "value", Scalar(own), target)
            return {"wrapped": inner}
        case Scalar(_, ""), Primitive() | None if field.type in _SCALARS and is_exact(
            source, target
        ):
            return _SCALARS[field.type]
    raise NotOnFastPathError
