"""Flink's upsert sink: the same changes as a state table, by equality deletes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, TopicPartition
from jvm_peers import FETCH, FlinkPeer, jvm_properties, quote
from pyspark.sql import SparkSession

from frazil.connections.clients import find_catalog

COLUMNS = "id BIGINT NOT NULL, op STRING, `at` BIGINT, `day` DATE, name STRING"


@dataclass
class FlinkUpserts:
    """A table whose rows Flink replaces by key; each run reads what the topic got since the last.

    Flink wants the columns of partitions in the key, so the table has none.
    """

    flink: FlinkPeer
    spark: SparkSession
    topic: str
    partitions: int
    table: str
    offsets: Mapping[int, int] = field(default_factory=dict)

    def create(self) -> None:
        """Create the table with its key."""
        columns = COLUMNS.replace("`", "")
        self.spark.sql(
            f"CREATE TABLE lake.{self.table} ({columns}) USING iceberg "
            "TBLPROPERTIES ('format-version' = '2', 'write.upsert.enabled' = 'true')"
        )
        self.spark.sql(f"ALTER TABLE lake.{self.table} SET IDENTIFIER FIELDS id")

    def find_ends(self) -> dict[int, int]:
        """Return the end of each partition."""
        settings = {"bootstrap.servers": self.flink.bootstrap, "group.id": "bench"}
        consumer = Consumer(settings)
        parts = {n: TopicPartition(self.topic, n) for n in range(self.partitions)}
        ends = {n: consumer.get_watermark_offsets(part, 15)[1] for n, part in parts.items()}
        consumer.close()
        return ends

    def run(self) -> None:
        """Read up to the ends of the topic, and commit."""
        ends = self.find_ends()
        written = ";".join(f"partition:{n},offset:{self.offsets.get(n, 0)}" for n in ends)
        preset = find_catalog("iceberg_default")
        source = {
            "connector": "kafka",
            "topic": self.topic,
            "scan.startup.mode": "specific-offsets",
            "scan.startup.specific-offsets": written,
            "scan.bounded.mode": "latest-offset",
            "format": "json",
            "properties.group.id": self.table,
            "properties.bootstrap.servers": self.flink.bootstrap,
            **{f"properties.{key}": value for key, value in FETCH.items()},
        }
        catalog = {"type": "iceberg", **jvm_properties(preset)}
        self.flink.execute(
            (
                f"CREATE CATALOG {preset.name} WITH ({quote(catalog)})",
                f"CREATE TEMPORARY TABLE source ({COLUMNS}) WITH ({quote(source)})",
                f"INSERT INTO {preset.name}.{self.table} SELECT * FROM source",  # noqa: S608
            )
        )
        self.offsets = ends
