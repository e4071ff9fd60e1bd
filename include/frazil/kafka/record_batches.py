"""Records that reach a Spark job in its request, because Spark's Kafka source cannot read them."""

import base64
from collections.abc import Iterable

import pyarrow as pa

from frazil.kafka.consumer import KafkaRecord

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""The columns of Spark's Kafka source."""


def encode_records(records: Iterable[KafkaRecord]) -> str:
    """Encode records as an Arrow stream in Base64; no records are an empty text."""
    rows = [
        {
            "key": record.key,
            "value": record.value,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": None if record.timestamp_ms is None else record.timestamp_ms * 1000,
            "timestampType": record.timestamp_type,
            "headers": record.headers and [{"key": k, "value": v} for k, v in record.headers],
        }
        for record in records
    ]
    if not rows:
        return ""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()
