"""Avro payloads of Kafka Connect as the JSON text and schema that its JSON converter would send.

This code travels to Spark's Python workers by value: it imports the standard library only.
"""

import base64
import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from frazil_spark.decode.json_parts import Json

HEADER_BYTES = 5
MALFORMED = "malformed_avro"
MOST_EMPTY_ITEMS = 10_000
"""Most items without bytes, such as nulls, in an array: a short payload may claim billions."""
_INT_BITS, _LONG_BITS = 32, 64
_FLOAT_DIGITS = range(6, 10)
"""With nine digits every 32-bit float has a text of its own."""
_CONNECT = "org.apache.kafka.connect.data"
_DECIMAL = f"{_CONNECT}.Decimal"
_LOGICAL = {
    ("int", "date"): f"{_CONNECT}.Date",
    ("int", "time-millis"): f"{_CONNECT}.Time",
    ("long", "timestamp-millis"): f"{_CONNECT}.Timestamp",
}
"""Avro's types and their logical types → the types of Kafka Connect, which a schema need not name.

Of another type a logical type is none, by Avro's rules, and the field is of its own type.
"""
Schema: TypeAlias = "dict[str, Schema] | list[Schema] | str | int | bool | None"
"""An Avro schema: JSON, whose references to named types are whole names."""
Read: TypeAlias = Callable[[bytes, int], tuple[str, int]]
"""Reads a value at a position; returns its JSON text and the position behind it."""


class MalformedAvroError(ValueError):
    """A payload does not have the form of its schema."""


@dataclass
class AvroReader:
    """Reads the payloads of the last of several schemas, which may refer to the others.

    The schemas are parsed when they are first needed, in the worker: a task carries their text.
    """

    schemas: str
    _node: Json = None
    _read: Read | None = None

    @property
    def node(self) -> Json:
        """Return the schema as Kafka Connect's JSON converter writes it."""
        if self._node is None:
            named: dict[str, Json] = {}
            self._node = [_describe(each, named) for each in json.loads(self.schemas)][-1]
        return self._node

    def _open(self) -> Read:
        if self._read is None:
            named: dict[str, Read] = {}
            self._read = [_choose_reader(each, named) for each in json.loads(self.schemas)][-1]
        return self._read

    def read(self, payload: bytes) -> str:
        """Return a payload as JSON text.

        Raises:
            MalformedAvroError: it has another form, or something follows it.
        """
        try:
            text, end = self._open()(payload, 0)
        except (ValueError, IndexError, OverflowError, RecursionError, struct.error) as error:
            raise MalformedAvroError from error
        if end != len(payload):
            raise MalformedAvroError
        return text


def _describe(schema: Schema, named: dict[str, Json]) -> Json:
    """Return the schema of Kafka Connect; it is empty for unions of several types."""
    if isinstance(schema, str):
        return named.get(schema, {"type": schema})
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        return _describe(kinds[0], named) if len(kinds) == 1 else {}
    if not isinstance(schema, dict):
        return {}
    name = schema.get("connect.name") or _name_logical(schema)
    given = schema.get("connect.parameters")
    own = given if isinstance(given, dict) else {}
    parameters = {"scale": str(schema.get("scale", 0)), **own}
    kind = _kind_of(schema)
    node: dict[str, Json] = {"type": kind}
    if name:
        node |= {"name": str(name), "parameters": json.loads(json.dumps(parameters))}
    if "name" in schema:
        named[str(schema["name"])] = node
    for part in {"items", "values"} & schema.keys():
        node[part] = _describe(schema[part], named)
    if kind == "record":
        node["fields"] = [
            {**_as_object(_describe(each["type"], named)), "field": str(each["name"])}
            for each in _list_fields(schema)
        ]
    return node


def _kind_of(schema: Mapping[str, Schema]) -> str:
    """Return the kind of a type; an error of a protocol is a record."""
    kind = str(schema["type"])
    return "record" if kind == "error" else kind


def _name_logical(schema: Mapping[str, Schema]) -> str | None:
    """Return Kafka Connect's name of a logical type; None if Avro ignores it, or there is none."""
    kind, logical = str(schema["type"]), str(schema.get("logicalType"))
    if logical == "decimal":
        return _DECIMAL if _has_digits(kind, schema) else None
    return _LOGICAL.get((kind, logical))


def _has_digits(kind: str, schema: Mapping[str, Schema]) -> bool:
    """Return whether precision and scale are those of a decimal, as `frazil.schemas.avro` does."""
    precision, scale, size = schema.get("precision"), schema.get("scale", 0), schema.get("size")
    if not isinstance(precision, int) or not isinstance(scale, int):
        return False
    if precision <= 0 or not 0 <= scale <= precision:
        return False
    if kind == "fixed" and isinstance(size, int):
        return precision <= int((8 * size - 1) * math.log10(2))
    return kind == "bytes"


def _as_object(node: Json) -> dict[str, Json]:
    return node if isinstance(node, dict) else {}


def _list_fields(schema: Mapping[str, Schema]) -> list[dict[str, Schema]]:
    fields = schema["fields"]
    return [each for each in fields if isinstance(each, dict)] if isinstance(fields, list) else []


def _choose_reader(schema: Schema, named: dict[str, Read]) -> Read:
    if isinstance(schema, str):
        return _PRIMITIVES.get(schema) or _read_named(schema, named)
    if isinstance(schema, list):
        return _read_union([_choose_reader(each, named) for each in schema])
    if not isinstance(schema, dict):
        raise MalformedAvroError(schema)
    kind = _kind_of(schema)
    choose = {"record": _read_record, "enum": _read_enum, "fixed": _read_fixed}.get(kind)
    if choose is not None:
        read = named[str(schema["name"])] = choose(schema, named)
        return read
    if kind == "array":
        return _read_blocks("[]", _choose_reader(schema["items"], named))
    if kind == "map":
        return _read_blocks("{}", _read_entry(_choose_reader(schema["values"], named)))
    return _choose_reader(schema["type"], named)


def _read_named(name: str, named: dict[str, Read]) -> Read:
    """Return a reader of a type that may refer to itself, so that it is looked up later."""

    def read(data: bytes, at: int) -> tuple[str, int]:
        return named[name](data, at)

    return read


def _read_record(schema: Mapping[str, Schema], named: dict[str, Read]) -> Read:
    fields = [
        (f"{json.dumps(each['name'])}:", _choose_reader(each["type"], named))
        for each in _list_fields(schema)
    ]

    def read(data: bytes, at: int) -> tuple[str, int]:
        texts = []
        for name, read_field in fields:
            text, at = read_field(data, at)
            texts.append(name + text)
        return f"{{{','.join(texts)}}}", at

    return read


def _read_union(branches: list[Read]) -> Read:
    def read(data: bytes, at: int) -> tuple[str, int]:
        index, at = _read_int32(data, at)
        if not 0 <= index < len(branches):
            raise MalformedAvroError
        return branches[index](data, at)

    return read


def _read_enum(schema: Mapping[str, Schema], _: dict[str, Read]) -> Read:
    symbols = schema["symbols"]
    texts = [json.dumps(each) for each in symbols] if isinstance(symbols, list) else []

    def read(data: bytes, at: int) -> tuple[str, int]:
        index, at = _read_int32(data, at)
        if not 0 <= index < len(texts):
            raise MalformedAvroError
        return texts[index], at

    return read


def _read_fixed(schema: Mapping[str, Schema], _: dict[str, Read]) -> Read:
    size = int(str(schema["size"]))

    def read(data: bytes, at: int) -> tuple[str, int]:
        return _write_bytes(_cut(data, at, size)), at + size

    return read


def _read_blocks(brackets: str, read_item: Read) -> Read:
    """Return a reader of an array or a map: blocks of items, the last one empty."""

    def read(data: bytes, at: int) -> tuple[str, int]:
        texts: list[str] = []
        empty = 0
        while True:
            count, at = _read_int64(data, at)
            if count == 0:
                return f"{brackets[0]}{','.join(texts)}{brackets[1]}", at
            if count < 0:
                _, at = _read_int64(data, at)
            for _ in range(abs(count)):
                text, end = read_item(data, at)
                empty += end == at
                if empty > MOST_EMPTY_ITEMS:
                    raise MalformedAvroError
                texts.append(text)
                at = end

    return read


def _read_entry(read_value: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[str, int]:
        key, at = _read_string(data, at)
        value, at = read_value(data, at)
        return f"{key}:{value}", at

    return read


def _read_int32(data: bytes, at: int) -> tuple[int, int]:
    return _read_varint(data, at, _INT_BITS)


def _read_int64(data: bytes, at: int) -> tuple[int, int]:
    return _read_varint(data, at, _LONG_BITS)


def _read_varint(data: bytes, at: int, width: int) -> tuple[int, int]:
    """Read a number of variable length, of at most `width` bits, and the position behind it."""
    bits = number = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << bits
        bits += 7
        if byte < 0x80:  # noqa: PLR2004 - the last byte
            break
        if bits >= width:
            raise MalformedAvroError
    if number >> width:
        raise MalformedAvroError
    return (number >> 1) ^ -(number & 1), at


def _cut(data: bytes, at: int, size: int) -> bytes:
    if size < 0 or at + size > len(data):
        raise MalformedAvroError
    return data[at : at + size]


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    size, at = _read_int64(data, at)
    return json.dumps(_cut(data, at, size).decode()), at + size


def _read_bytes(data: bytes, at: int) -> tuple[str, int]:
    size, at = _read_int64(data, at)
    return _write_bytes(_cut(data, at, size)), at + size


def _write_bytes(given: bytes) -> str:
    return f'"{base64.b64encode(given).decode()}"'


def _read_int(data: bytes, at: int) -> tuple[str, int]:
    number, at = _read_int32(data, at)
    return str(number), at


def _read_long(data: bytes, at: int) -> tuple[str, int]:
    number, at = _read_int64(data, at)
    return str(number), at


def _read_boolean(data: bytes, at: int) -> tuple[str, int]:
    if data[at] > 1:
        raise MalformedAvroError
    return ("true" if data[at] else "false"), at + 1


def _read_double(data: bytes, at: int) -> tuple[str, int]:
    (number,) = struct.unpack_from("<d", data, at)
    return _write_number(number, repr(number)), at + 8


def _read_float(data: bytes, at: int) -> tuple[str, int]:
    """Read a 32-bit number as the shortest text that is this number."""
    (number,) = struct.unpack_from("<f", data, at)
    texts = (f"{number:.{digits}g}" for digits in _FLOAT_DIGITS)
    raw = data[at : at + 4]
    text = next((each for each in texts if struct.pack("<f", float(each)) == raw), repr(number))
    return _write_number(number, text), at + 4


def _write_number(number: float, text: str) -> str:
    if math.isnan(number):
        return '"NaN"'
    return text if math.isfinite(number) else f'"{"-" * (number < 0)}Infinity"'


_PRIMITIVES: Mapping[str, Read] = {
    "null": lambda _, at: ("null", at),
    "boolean": _read_boolean,
    "int": _read_int,
    "long": _read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
}
