"""A lab whose topic is written by a schema registry's own serializers, on a real registry."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from conftest import Lab
from pyiceberg.catalog import load_catalog


@dataclass(frozen=True)
class RegistryLab:
    """A lab and the registry of its stack."""

    lab: Lab
    client: SchemaRegistryClient

    def register(self, text: str, kind: str = "AVRO", part: str = "value") -> int:
        """Register a schema under the topic's own subject and give its id."""
        schema = Schema(text, kind)
        return int(self.client.register_schema(f"{self.lab.topic}-{part}", schema))

    def send(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None
    ) -> None:
        """Send values round robin over two partitions."""
        producer = Producer({"bootstrap.servers": self.lab.stack.bootstrap, "linger.ms": 5})
        for index, value in enumerate(values):
            key = keys[index] if keys else str(index).encode()
            producer.produce(self.lab.topic, value=value, key=key, partition=index % 2)
        assert producer.flush(30) == 0

    def write_stream(self, convert: str = "by_schema_id", **value: object) -> None:
        """Write a stream file whose columns the registry gives unless they are named."""
        self.lab.write_stream(value={"convert": convert, **value}, table={"name": self.lab.table})


def frame(schema_id: int, payload: bytes, indexes: bytes = b"") -> bytes:
    """Put the registry's header in front of a payload."""
    return struct.pack(">bI", 0, schema_id) + indexes + payload


def read_table(lab: Lab, name: str = "") -> list[dict[str, object]]:
    """Read the table, in the order of the topic."""
    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    found = catalog.load_table(name or lab.table).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda r: (r["_kafka"]["offset"], r["_kafka"]["partition"]))
