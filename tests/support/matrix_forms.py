"""The matrix in each format: columns, schemas of a registry, and records of Avro and Protobuf."""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from support.avro_bytes import encode
from support.matrix import COLUMNS, MENDED, PLACES, WORKER_COLUMNS, Sent, make_sent
from support.proto_fuzz import sized, tag, varint

Columns = Mapping[str, tuple[str, str]]
"""Column → its type and place."""

_AVRO: Mapping[str, object] = {
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "local-timestamp-micros"},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros"},
    "uuid": {"type": "string", "logicalType": "uuid"},
}
_PROTOBUF: Mapping[str, tuple[str, int, Callable[[Any], bytes]]] = {
    "boolean": ("bool", 0, varint),
    "int": ("int32", 0, varint),
    "long": ("int64", 0, varint),
    "float": ("float", 5, lambda value: struct.pack("<f", value)),
    "double": ("double", 1, lambda value: struct.pack("<d", value)),
    "string": ("string", 2, lambda value: sized(value.encode())),
    "binary": ("bytes", 2, sized),
    "fixed(4)": ("bytes", 2, sized),
    "timestamptz": ("google.protobuf.Timestamp", 2, lambda value: sized(_write_instant(value))),
}
"""Type → its Protobuf type, wire type, and how a value is written; the others have none."""
_PROTOBUF_DEEP = "list<struct<m: map<string, struct<l: list<{}>>>>>"
"""A map of Protobuf has no lists, but messages with a list."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _write_instant(value: datetime) -> bytes:
    micros = (value - _EPOCH) // timedelta(microseconds=1)
    parts = ((1, micros // 10**6), (2, micros % 10**6 * 1000))
    return b"".join(tag(field, 0) + varint(number) for field, number in parts if number)


@dataclass(frozen=True)
class Form:
    """A format: its columns, those that workers write, and its type of schemas."""

    convert: str
    columns: Columns
    worker_columns: Columns
    schema_type: str = ""

    def write_schema(self, columns: Columns) -> str:
        """Write the schema of the records with these columns."""
        if self.schema_type == "AVRO":
            return json.dumps(_write_avro_schema(columns))
        return _write_protobuf_schema(columns)

    def write_columns(self, columns: Columns) -> dict[str, object]:
        """Write the columns of a stream file."""
        types = {
            name: (
                _PROTOBUF_DEEP
                if self.schema_type == "PROTOBUF" and place == "deep"
                else PLACES[place][0]
            ).format(kind)
            for name, (kind, place) in columns.items()
        }
        return {"id": "long!", MENDED: "string", **types}

    def make_sent(self, columns: Columns, schema_id: int = 0) -> list[Sent]:
        """Make the records of these columns, and the rows that they become."""
        given = make_sent(columns)
        if not self.schema_type:
            return given
        header = struct.pack(">bI", 0, schema_id)
        if self.schema_type == "AVRO":
            schema = _write_avro_schema(columns)
            return [replace(e, record=header + _write_avro(schema, e, columns)) for e in given]
        rows = [replace(each, row=_as_protobuf(each.row, columns)) for each in given]
        return [replace(e, record=header + b"\x00" + _write_protobuf(e, columns)) for e in rows]


def _write_avro_schema(columns: Columns) -> dict[str, object]:
    fields = [{"name": "id", "type": "long"}, {"name": MENDED, "type": ["null", "string"]}]
    for name, (kind, place) in columns.items():
        value = ["null", _write_avro_type(name, kind)]
        holder: object = {
            "top": value[1],
            "field": {"type": "record", "name": f"r_{name}"} | _has("v", value),
            "item": {"type": "array", "items": value},
            "entry": {"type": "map", "values": value},
        }.get(place)
        if place == "deep":
            lists = {"type": "array", "items": value}
            inner = _has("m", ["null", {"type": "map", "values": ["null", lists]}])
            items = ["null", {"type": "record", "name": f"r_{name}"} | inner]
            holder = {"type": "array", "items": items}
        fields.append({"name": name, "type": ["null", holder]})
    return {"type": "record", "name": "Row", "fields": fields}


def _has(name: str, node: object) -> dict[str, object]:
    return {"fields": [{"name": name, "type": node}]}


def _write_avro_type(name: str, kind: str) -> object:
    if kind.startswith("decimal"):
        precision, scale = map(int, kind[8:-1].split(","))
        decimal = {"logicalType": "decimal", "precision": precision, "scale": scale}
        return {"type": "bytes", **decimal}
    if kind.startswith("fixed"):
        return {"type": "fixed", "name": f"f_{name}", "size": int(kind[6:-1])}
    return _AVRO.get(kind, kind)


def _write_avro(schema: Mapping[str, object], sent: Sent, columns: Columns) -> bytes:
    def lay_out(value: Any, place: str) -> object:  # noqa: ANN401 - as its type is
        if value is None or place not in {"entry", "deep"}:
            return value
        if place == "entry":
            return dict(value)
        return [each and {"m": dict(each["m"])} for each in value]

    row = {name: lay_out(sent.row[name], place) for name, (_, place) in columns.items()}
    mended = None if sent.is_letter else "x"
    return encode(schema, {"id": sent.row["id"], MENDED: mended, **row})


def _write_protobuf_schema(columns: Columns) -> str:
    lines, messages = ["int64 id = 1;", f"optional string {MENDED} = 2;"], list[str]()
    for number, (name, (kind, place)) in enumerate(columns.items(), start=3):
        of, own = _PROTOBUF[kind][0], f"M{number}"
        if place == "field":
            messages.append(f"message {own} {{ optional {of} v = 1; }}")
        if place == "deep":
            messages.append(f"message {own} {{ map<string, L{number}> m = 1; }}")
            messages.append(f"message L{number} {{ repeated {of} l = 1; }}")
        word = {
            "top": f"optional {of}",
            "field": own,
            "item": f"repeated {of}",
            "entry": f"map<string, {of}>",
            "deep": f"repeated {own}",
        }[place]
        lines.append(f"{word} {name} = {number};")
    head = ['syntax = "proto3";', 'import "google/protobuf/timestamp.proto";']
    return "\n".join([*head, "message Row {", *lines, "}", *messages])


def _as_protobuf(row: Mapping[str, object], columns: Columns) -> dict[str, object]:
    """Return the row of a message: its lists and maps are empty, not null, and hold no null."""

    def turn(value: Any, place: str) -> object:  # noqa: ANN401 - as its type is
        match place:
            case "item":
                return [each for each in value or () if each is not None]
            case "entry":
                return value or []
            case "deep":
                return [
                    {"m": [(k, {"l": turn(v, "item")}) for k, v in each["m"]]}
                    for each in value or ()
                    if each is not None
                ]
        return value

    return {"id": row["id"]} | {
        name: turn(row[name], place) for name, (_, place) in columns.items()
    }


def _write_protobuf(sent: Sent, columns: Columns) -> bytes:
    parts = [tag(1, 0), varint(int(str(sent.row["id"])))]
    parts += [] if sent.is_letter else [tag(2, 2), sized(b"x")]
    for number, (name, (kind, place)) in enumerate(columns.items(), start=3):
        value: Any = sent.row[name]
        if value is not None:
            parts.append(_write_field(number, kind, place, value))
    return b"".join(parts)


def _write_field(number: int, kind: str, place: str, value: Any) -> bytes:  # noqa: ANN401
    _, wire, write = _PROTOBUF[kind]
    match place:
        case "field":
            inner = value["v"]
            content = b"" if inner is None else tag(1, wire) + write(inner)
            return tag(number, 2) + sized(content)
        case "item" if wire != 2 and value:
            return tag(number, 2) + sized(b"".join(map(write, value)))
        case "item":
            return b"".join(tag(number, wire) + write(each) for each in value)
        case "entry":
            pairs = [tag(1, 2) + sized(k.encode()) + tag(2, wire) + write(v) for k, v in value]
            return b"".join(tag(number, 2) + sized(pair) for pair in pairs)
        case "deep":
            entries = [
                [
                    tag(1, 2) + sized(k.encode()),
                    tag(2, 2),
                    sized(_write_field(1, kind, "item", v["l"])),
                ]
                for each in value
                for k, v in each["m"]
            ]
            inner = b"".join(tag(1, 2) + sized(b"".join(entry)) for entry in entries)
            return tag(number, 2) + sized(inner) if value else b""
    return tag(number, wire) + write(value)


def _choose(kinds: set[str], places: set[str]) -> dict[str, tuple[str, str]]:
    return {
        name: (kind, place)
        for name, (kind, place) in COLUMNS.items()
        if kind in kinds and place in places
    }


_KINDS = {kind for kind, _ in COLUMNS.values()}
_SPARK_ONLY = {"uuid", "decimal(38,10)"}
FORMS: Mapping[str, Form] = {
    "json": Form("json", COLUMNS, WORKER_COLUMNS),
    "avro": Form(
        "by_schema_id",
        COLUMNS,
        _choose(_KINDS - _SPARK_ONLY, {"top", "field", "item"}),
        "AVRO",
    ),
    "protobuf": Form(
        "by_schema_id",
        _choose({*_PROTOBUF}, {*PLACES}),
        _choose({*_PROTOBUF} - {"fixed(4)"}, {"top", "field", "item"}),
        "PROTOBUF",
    ),
}
