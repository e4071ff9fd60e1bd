"""A consumer, Arrow's JSON reader and PyIceberg's append: what a person writes in an afternoon.

    python tests/bench/plain_python.py BOOTSTRAP TOPIC TABLE

The table is there. No bad row is set apart, nothing is checked, and a run that is killed between
two appends doubles or loses rows. Prints the seconds from the first fetch to the last commit.
"""

import json
import sys
import time

import pyarrow as pa
import pyarrow.json as pj
from confluent_kafka import Consumer, TopicPartition
from pyiceberg.catalog import load_catalog

from frazil.connections.clients import find_catalog

CHUNK = 500_000
PARTITIONS = 4
VALUES = pa.schema(
    [
        ("event_id", pa.string()),
        ("event_type", pa.string()),
        ("ts", pa.timestamp("us")),
        ("user", pa.struct([("id", pa.int64()), ("country", pa.string()), ("city", pa.string())])),
        ("order_id", pa.int64()),
        ("amount", pa.decimal128(18, 2)),
        ("currency", pa.string()),
        (
            "items",
            pa.list_(
                pa.struct([("sku", pa.string()), ("qty", pa.int32()), ("price", pa.float64())])
            ),
        ),
        ("session", pa.string()),
        ("ua", pa.string()),
    ]
)
FETCH = {
    "group.id": "plain",
    "enable.auto.commit": False,
    "queued.max.messages.kbytes": 200_000,
    "queued.min.messages": 200_000,
    "fetch.message.max.bytes": 8_388_608,
    "fetch.max.bytes": 52_428_800,
}


def decode(topic: str, records: list[tuple[bytes, int, int, int]]) -> pa.Table:
    """Parse all values at once, and put the coordinates beside them."""
    values, partitions, offsets, stamps = zip(*records, strict=True)
    parsed = pj.read_json(
        pa.py_buffer(b"\n".join(values)),
        read_options=pj.ReadOptions(block_size=8 << 20),
        parse_options=pj.ParseOptions(explicit_schema=VALUES, unexpected_field_behavior="ignore"),
    )
    times = pa.array(stamps, pa.timestamp("ms")).cast(pa.timestamp("us", "UTC"))
    return (
        parsed.append_column("topic", pa.array([topic] * len(values), pa.string()))
        .append_column("partition", pa.array(partitions, pa.int32()))
        .append_column("offset", pa.array(offsets, pa.int64()))
        .append_column("timestamp", times)
    )


def main(bootstrap: str, topic: str, table_name: str) -> float:
    """Read what the topic holds now, and append it."""
    preset = find_catalog("iceberg_default")
    table = load_catalog(preset.name, **preset.properties).load_table(table_name)
    started = time.monotonic()
    consumer = Consumer({"bootstrap.servers": bootstrap, **FETCH})
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    marks = [consumer.get_watermark_offsets(place, timeout=30) for place in places]
    wanted = sum(high - low for low, high in marks)
    consumer.assign([TopicPartition(topic, p, low) for p, (low, _) in enumerate(marks)])
    records: list[tuple[bytes, int, int, int]] = []
    read = 0
    while read < wanted:
        for message in consumer.consume(10_000, 1.0):
            place = message.partition(), message.offset(), message.timestamp()[1]
            records.append((message.value(), *place))
            read += 1
        if len(records) >= CHUNK or read >= wanted:
            table.append(decode(topic, records))
            records.clear()
    consumer.close()
    return time.monotonic() - started


if __name__ == "__main__":
    print(json.dumps({"seconds": main(*sys.argv[1:4])}))
