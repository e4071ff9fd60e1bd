"""Change events flattened by the code of Spark's workers, without Spark."""

import json
from collections.abc import Mapping

from support.change_events import event

from frazil.streams.column_types import parse_column
from frazil_spark.decode.change_events import Flat, FlatSpec, flatten_event
from frazil_spark.decode.flat_values import describe_columns
from frazil_spark.decode.json_parts import split_object

CONNECT = "org.apache.kafka.connect.data"
DEBEZIUM = "io.debezium"


def make_spec(columns: Mapping[str, str], *, events: bool = True, rest: bool = False) -> FlatSpec:
    parsed = [parse_column(name, text) for name, text in columns.items()]
    return FlatSpec(
        targets=describe_columns(parsed),
        has_events=events,
        has_rest=rest,
        applies_truncate=False,
        has_text_decimals=False,
        prefix="_frazil",
    )


def flatten_text(kind: str, schema: Mapping[str, object], sent: str) -> Flat:
    """Flatten one field of a type of Kafka Connect, sent as a JSON text, for a column of a type."""
    field = {"field": "x", **schema}
    envelope = {"type": "struct", "fields": [{"field": "after", "fields": [field]}]}
    payload = (event("c", f'{{"x": {sent}}}')[1] or b"").decode()
    message = f'{{"schema": {json.dumps(envelope)}, "payload": {payload}}}'.encode()
    return flatten_event(make_spec({"x": kind}), b"{}", message)


def read_text(flat: Flat) -> str:
    """Return the text of the flattened field."""
    assert flat.payload is not None, flat
    return dict(split_object(flat.payload.decode()))["x"].text


def flatten_by_schema(kind: str, schema: Mapping[str, object], value: object) -> str:
    """Flatten one field of a type of Kafka Connect for a column of a type; give its text."""
    return read_text(flatten_text(kind, schema, json.dumps(value)))
