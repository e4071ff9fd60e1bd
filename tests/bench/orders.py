"""365-byte orders events that nobody tuned for, and the stream that takes them."""

import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 4
TARGET_BYTES = 365
COLUMNS: Mapping[str, str] = {
    "event_id": "string!",
    "event_type": "string!",
    "ts": "timestamp!",
    "user": "struct<id: long, country: string, city: string>",
    "order_id": "long!",
    "amount": "decimal(18,2)",
    "currency": "string",
    "items": "list<struct<sku: string, qty: int, price: double>>",
    "session": "string",
    "ua": "string",
}
SPARK_SCHEMA = (
    "event_id STRING, event_type STRING, ts TIMESTAMP_NTZ, "
    "user STRUCT<id: BIGINT, country: STRING, city: STRING>, order_id BIGINT, "
    "amount DECIMAL(18,2), currency STRING, "
    "items ARRAY<STRUCT<sku: STRING, qty: INT, price: DOUBLE>>, session STRING, ua STRING"
)
EXPECTATIONS = [
    {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "event_id"}},
    {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "order_id"}},
    {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "ts"}},
    {
        "type": "expect_column_values_to_be_in_set",
        "kwargs": {"column": "event_type", "value_set": ["created", "paid", "shipped", "closed"]},
    },
    {
        "type": "expect_column_values_to_be_in_set",
        "kwargs": {"column": "currency", "value_set": ["EUR", "USD", "GBP"]},
    },
    {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "order_id", "min_value": 0, "max_value": 10**12},
    },
    {
        "type": "expect_column_value_lengths_to_be_between",
        "kwargs": {"column": "session", "min_value": 1, "max_value": 64},
    },
    {
        "type": "expect_column_value_lengths_to_be_between",
        "kwargs": {"column": "ua", "min_value": 1, "max_value": 200},
    },
    {
        "type": "expect_column_max_to_be_between",
        "kwargs": {"column": "order_id", "min_value": 0, "max_value": 10**12},
    },
    {
        "type": "expect_table_row_count_to_be_between",
        "kwargs": {"min_value": 1, "max_value": 10**9},
    },
]


def write_document(
    stream: str, table: str, records: int, columns: Mapping[str, str] = COLUMNS
) -> dict[str, object]:
    """Describe the stream of the benchmark."""
    return {
        "stream": stream,
        "owner": "bench@example.org",
        "source": {"topic": stream},
        "value": {"convert": "json", "columns": dict(columns)},
        "table": {"name": table},
        "batch": {"max_records": records},
        "quality": {"suite": stream},
    }


def iterate_values(count: int, seed: int = 7) -> Iterator[bytes]:
    """Yield events of 365 bytes on average."""
    rnd = random.Random(seed)
    for index in range(count):
        items = [
            {"sku": f"SKU-{rnd.randrange(9999):04d}", "qty": rnd.randrange(1, 9), "price": price}
            for price in (round(rnd.random() * 90, 2),)
        ]
        event = {
            "event_id": f"{rnd.getrandbits(96):024x}",
            "event_type": rnd.choice(["created", "paid", "shipped", "closed"]),
            "ts": f"2026-03-{index % 28 + 1:02d}T{index % 24:02d}:{index % 60:02d}:07.125",
            "user": {"id": rnd.randrange(10**6), "country": "DE", "city": "Berlin"},
            "order_id": index,
            "amount": round(rnd.random() * 900, 2),
            "currency": rnd.choice(["EUR", "USD", "GBP"]),
            "items": items,
            "session": f"{rnd.getrandbits(64):016x}",
            "ua": "",
        }
        text = json.dumps(event, separators=(",", ":"))
        event["ua"] = ("Mozilla/5.0 (X11; Linux x86_64) " * 4)[: max(1, TARGET_BYTES - len(text))]
        yield json.dumps(event, separators=(",", ":")).encode()


def fill_topic(bootstrap: str, topic: str, values: Iterable[bytes]) -> int:
    """Create the topic, send the values, and give their bytes."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(15)
    time.sleep(0.5)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 500_000,
        }
    )
    sent = 0
    for index, value in enumerate(values):
        sent += len(value)
        while True:
            try:
                producer.produce(topic, value=value, partition=index % PARTITIONS)
            except BufferError:
                producer.poll(0.2)
            else:
                break
        producer.poll(0)
    producer.flush(120)
    return sent
