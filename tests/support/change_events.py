"""Real messages of Debezium 3.6 for PostgreSQL 15, and a producer of such messages."""

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from confluent_kafka import Producer
from support.avro_bytes import encode

FOLDER = Path(__file__).parent / "debezium"
Message = tuple[bytes | None, bytes | None]
"""Key and value."""
SOURCE = {"ts_ms": 1, "db": "shop", "schema": "public", "table": "t", "snapshot": "false", "lsn": 7}


def read_samples(name: str, topic: str) -> list[Message]:
    """Read the real messages of a topic; `customers` have schemas, `orders` have none."""
    lines = (FOLDER / f"{name}.jsonl").read_text().splitlines()
    found = [each for line in lines if (each := json.loads(line))["topic"] == topic]
    return [(_encode(each["key"]), _encode(each["value"])) for each in found]


def _encode(part: object) -> bytes | None:
    return None if part is None else json.dumps(part, ensure_ascii=False).encode()


def event(op: str, after: str = "null", key: str | None = '{"id": 1}', **source: object) -> Message:
    """Make a change event whose `after` is the given JSON text."""
    position = json.dumps({**SOURCE, **source})
    value = f'{{"before": null, "after": {after}, "source": {position}, "op": "{op}"}}'
    return key.encode() if key is not None else None, value.encode()


def send(bootstrap: str, topic: str, messages: Iterable[Message], partition: int = 0) -> None:
    """Send messages to one partition, in order."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for key, value in messages:
        producer.produce(topic, key=key, value=value, partition=partition)
    assert producer.flush(30) == 0


def avro_value(name: str, fields: Mapping[str, object]) -> dict[str, object]:
    """Write the Avro schema of a row or a key, as Kafka Connect's Avro converters do."""
    return {
        "type": "record",
        "name": name,
        "namespace": "shop.public.t",
        "fields": [{"name": each, "type": kind} for each, kind in fields.items()],
        "connect.name": f"shop.public.t.{name}",
    }


def avro_envelope(fields: Mapping[str, object]) -> dict[str, object]:
    """Write the Avro schema of change events whose rows have these fields."""
    source = {"ts_ms": "long", "db": "string", "schema": "string", "table": "string"}
    optional = {"snapshot": ["null", "string"], "lsn": ["null", "long"]}
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.public.t",
        "fields": [
            {"name": "before", "type": ["null", avro_value("Value", fields)], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": avro_value("Source", {**source, **optional})},
            {"name": "op", "type": "string"},
        ],
        "connect.name": "shop.public.t.Envelope",
    }


AVRO = {"int32": "int", "int64": "long", "string": "string", "boolean": "boolean", "bytes": "bytes"}
"""Kafka Connect's types → Avro's."""
Types = Mapping[str, str]
"""The columns of a source table, the first one its key, as types of Kafka Connect."""
Row = Mapping[str, object]
Fields = Mapping[str, object]
"""Name → Avro type."""
EventWriter = Callable[[str, Types, Row], Message]
"""Writes an event: operation, the source's columns, and the row, of a delete only its key."""


def write_json_event(op: str, types: Types, row: Row) -> Message:
    """Write an event as JSON with schemas."""
    kept = [{"type": kind, "optional": name != "id", "field": name} for name, kind in types.items()]
    after = {"type": "struct", "fields": kept, "optional": True, "field": "after"}
    envelope = {"op": op, "source": SOURCE, "before": None, "after": None if op == "d" else row}
    value = {"schema": {"type": "struct", "fields": [after]}, "payload": envelope}
    key = {"schema": {"type": "struct", "fields": kept[:1]}, "payload": {"id": row["id"]}}
    return _encode(key), _encode(value)


Register = Callable[[str, str], int]
"""Registers the schema of a part, `key` or `value`, and returns its id."""


def write_avro_event(register: Register, op: str, ids: Fields, others: Fields, row: Row) -> Message:
    """Write an event of a table: the Avro types of its key and of its other columns, and the row.

    A row holds values of the base types, whatever logical types the schemas name.
    """
    schema, key = avro_envelope({**ids, **others}), avro_value("Key", ids)
    event = {"op": op, "source": SOURCE, "before": None, "after": None if op == "d" else row}
    framed = [
        struct.pack(">bI", 0, register(json.dumps(each), part)) + encode(_strip(each), content)
        for part, each, content in (
            ("key", key, {name: row[name] for name in ids}),
            ("value", schema, event),
        )
    ]
    return framed[0], framed[1]


def _strip(schema: object) -> dict[str, object]:
    """Leave out logical types, so that bytes are written as they are."""

    def leave_out(node: dict[str, object]) -> dict[str, object]:
        return {name: part for name, part in node.items() if name != "logicalType"}

    stripped: dict[str, object] = json.loads(json.dumps(schema), object_hook=leave_out)
    return stripped


def write_avro_events(register: Register) -> EventWriter:
    """Return a writer of events in Avro of tables with the key `id`."""

    def write(op: str, types: Types, row: Row) -> Message:
        others = {name: ["null", AVRO[kind]] for name, kind in types.items() if name != "id"}
        return write_avro_event(register, op, {"id": AVRO[types["id"]]}, others, row)

    return write
