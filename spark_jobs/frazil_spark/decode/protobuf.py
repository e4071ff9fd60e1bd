"""Protobuf messages as Arrow columns, read by Google's library.

This code travels to Spark's Python workers by value: it imports PyArrow and Protobuf only. It reads
fields as they were sent; SQL decides which of them become values of columns.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

ID_BYTES = 5
FIELD_KEY = b"frazil.field"
"""The key in the metadata of a field of its name in the message, as `source_types` writes it."""
_FIELDS = ("value", "fault")
_MALFORMED = "malformed_protobuf"
_OTHER = "other_message"


@dataclass(frozen=True)
class MessageSpec:
    """What a worker needs: schema files, the message's name, its headers, and the Arrow types."""

    descriptor_set: bytes
    message: str
    id_header: bytes
    """Zero and the schema id; empty for payloads without a header."""

    indexes: tuple[bytes, ...]
    """Message indexes between the id and this message; other messages have other indexes."""

    wire: pa.StructType


def read_messages(spec: MessageSpec, batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    """Read all batches with one reader."""
    reader = MessageReader(spec)
    for batch in batches:
        yield reader.read(batch)


class MessageReader:
    """Read one schema's messages from payloads; built once in a worker."""

    def __init__(self, spec: MessageSpec) -> None:
        """Load the schema files into a pool of their own."""
        self._spec = spec
        pool = DescriptorPool()
        for each in FileDescriptorSet.FromString(spec.descriptor_set).file:
            pool.AddSerializedFile(each.SerializeToString())
        self._parse = GetMessageClass(pool.FindMessageTypeByName(spec.message)).FromString

    def read(self, payloads: pa.BinaryArray) -> pa.StructArray:
        """Return `value` and `fault` of each payload of this schema, null for all others."""
        if payloads.null_count == len(payloads):  # all were on the fast path
            return pa.nulls(
                len(payloads), pa.struct([("value", self._spec.wire), ("fault", pa.string())])
            )
        messages: list[Message | None] = []
        faults: list[str | None] = []
        for payload in payloads.to_pylist():
            message, fault = self._read_one(payload)
            messages.append(message)
            faults.append(fault)
        values = build_struct(messages, self._spec.wire)
        return pa.StructArray.from_arrays([values, pa.array(faults, pa.string())], _FIELDS)

    def _read_one(self, payload: bytes | None) -> tuple[Message | None, str | None]:
        spec = self._spec
        if payload is None or not payload.startswith(spec.id_header):
            return None, None
        start = 0
        if spec.id_header:
            found = [i for i in spec.indexes if payload.startswith(i, ID_BYTES)]
            if not found:
                return None, _OTHER
            start = ID_BYTES + len(found[0])
        try:
            message = self._parse(payload[start:])
        except DecodeError:
            return None, _MALFORMED
        # The library also returns a message without a field that proto2 requires.
        return (message, None) if message.IsInitialized() else (None, _MALFORMED)


def build_struct(messages: Sequence[Message | None], wire: pa.StructType) -> pa.StructArray:
    """Build a struct column of messages, null where there is no message."""
    fields = list(wire.fields)
    arrays = [_build_field(messages, field) for field in fields]
    absent = pa.array([message is None for message in messages], pa.bool_())
    if not fields:
        return pa.nulls(len(messages), wire)
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=absent)


def _build_field(messages: Sequence[Message | None], field: pa.Field) -> pa.Array:
    wire = field.type
    name = (field.metadata or {}).get(FIELD_KEY, field.name.encode()).decode()
    described = next((m.DESCRIPTOR.fields_by_name[name] for m in messages if m is not None), None)
    if described is None:
        return pa.nulls(len(messages), wire)
    if pa.types.is_map(wire):
        return _build_map([None if m is None else getattr(m, name) for m in messages], wire)
    if pa.types.is_list(wire):
        lists = [None if m is None else getattr(m, name) for m in messages]
        flat = [value for values in lists if values is not None for value in values]
        return pa.ListArray.from_arrays(_offsets(lists), _build_values(flat, wire.value_type))
    if described.has_presence:
        values = [
            getattr(m, name) if m is not None and m.HasField(name) else None for m in messages
        ]
    else:
        values = [None if m is None else getattr(m, name) for m in messages]
    return _build_values(values, wire)


def _build_map(maps: Sequence[object], wire: pa.MapType) -> pa.Array:
    entries = [_list_entries(each) for each in maps if isinstance(each, Mapping)]
    keys = [key for each in entries for key, _ in each]
    values = [value for each in entries for _, value in each]
    return pa.MapArray.from_arrays(
        _offsets(maps), _build_values(keys, wire.key_type), _build_values(values, wire.item_type)
    )


def _list_entries(entries: Mapping[object, object]) -> list[tuple[object, object]]:
    """List a map's entries; without values if a key is not valid UTF-8, which SQL refuses."""
    try:
        return list(entries.items())
    except UnicodeDecodeError:
        return [(key, None) for key in entries]


def _build_values(values: Sequence[object], wire: pa.DataType) -> pa.Array:
    """Build one column; a message in a column of bytes is serialised."""
    if pa.types.is_struct(wire):
        return build_struct(values, wire)
    if pa.types.is_binary(wire):
        return pa.array([_to_bytes(value) for value in values], wire)
    try:
        return pa.array(values, wire)
    except pa.ArrowInvalid:
        if not pa.types.is_string(wire):
            raise
        return _build_invalid_texts(values)


def _build_invalid_texts(values: Sequence[object]) -> pa.StringArray:
    """Build a column of texts of which some are bytes, because they are not valid UTF-8.

    proto2 does not validate texts. SQL finds the invalid ones, as in Avro.
    """
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    return pa.array(encoded, pa.binary()).view(pa.string())


def _to_bytes(value: object) -> object:
    return value.SerializeToString(deterministic=True) if isinstance(value, Message) else value


def _offsets(collections: Iterable[object]) -> pa.Int32Array:
    """Return the offsets of collections; a null one has a null offset, as Arrow requires."""
    lengths = [None if each is None else len(each) for each in collections]  # type: ignore[arg-type]
    starts = [0, *accumulate(length or 0 for length in lengths)]
    marked = [
        None if length is None else start for start, length in zip(starts, lengths, strict=False)
    ]
    return pa.array([*marked, starts[-1]], pa.int32())
