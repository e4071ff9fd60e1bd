"""Real messages of Debezium 3.6 for PostgreSQL 15, and a producer of such messages."""

import json
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import Producer

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
