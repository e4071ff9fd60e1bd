"""Avro payloads as fastavro writes them."""

import io
import json
from collections.abc import Mapping

import fastavro


def encode(schema: Mapping[str, object] | str, value: object) -> bytes:
    """Write one value, without any header."""
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, parsed, value)
    return buffer.getvalue()


def record(*fields: tuple[str, object], name: str = "Order") -> dict[str, object]:
    """Write a record schema of these fields."""
    return {
        "type": "record",
        "name": name,
        "namespace": "shop.v1",
        "fields": [{"name": n, "type": t} for n, t in fields],
    }
