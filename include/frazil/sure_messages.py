"""How Python workers read Protobuf messages by themselves: a layout for one schema and the columns.

As in `sure_layouts`, only of what has no two readings: messages of proto3 whose fields are written
once and in the order of their numbers. `frazil_spark.message_columns` reads the JSON. A message
is `{"fields": [[number, name, label, layout], …]}`, the lowest number first. A label says what
stands for an absent field: `one` its zero, `maybe` null, `many` and `packed` an empty list.
"""

import json

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from frazil.avro_schemas import Json
from frazil.columns import Column, ColumnType, ListType, Primitive, StructType
from frazil.protobuf_schemas import ProtobufSchema
from frazil.source_types import Record, Scalar, Sequence, Source
from frazil.sure_layouts import NotSureError, is_exact

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


def lay_out_protobuf(found: ProtobufSchema, columns: tuple[Column, ...]) -> str:
    """Write the layout of a message; empty where Google's library has to read it."""
    files = FileDescriptorSet.FromString(found.descriptor_set)
    if any(each.syntax != "proto3" for each in files.file):
        return ""
    pool = DescriptorPool()
    for each in files.file:
        pool.AddSerializedFile(each.SerializeToString())
    message = pool.FindMessageTypeByName(found.message)
    try:
        return json.dumps(_lay_out_message(message, found.root, columns))
    except NotSureError:
        return ""


def _lay_out_message(message: Descriptor, source: Record, columns: tuple[Column, ...]) -> Json:
    """Lay out all fields; those without a column are read too, since they may be broken."""
    sources = dict(source.fields)
    wanted = {column.name: column.type for column in columns}
    fields = sorted(message.fields, key=lambda field: field.number)
    return {"fields": [_lay_out_field(f, sources[f.name], wanted.get(f.name)) for f in fields]}


def _lay_out_field(field: FieldDescriptor, source: Source, target: ColumnType | None) -> Json:
    if field.containing_oneof is not None and len(field.containing_oneof.fields) > 1:
        raise NotSureError  # the one that comes last empties the others
    if not field.is_repeated:
        label = "maybe" if field.has_presence else "one"
        return [field.number, field.name, label, _lay_out_value(field, source, target)]
    match source, target:
        case Sequence(element), ListType(wanted):
            inner = _lay_out_value(field, element, wanted)
        case Sequence(element), None:
            inner = _lay_out_value(field, element, None)
        case _:
            raise NotSureError
    return [field.number, field.name, "packed" if field.is_packed else "many", inner]


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
            return {"wrapped": _lay_out_field(kind.fields_by_name["value"], Scalar(own), target)}
        case Scalar(_, ""), Primitive() | None if field.type in _SCALARS and is_exact(source, target):
            return _SCALARS[field.type]
    raise NotSureError
