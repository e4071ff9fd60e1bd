"""The workspace of a stream: its file, catalog, Kafka cluster, Spark engine and registries."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from frazil.connections import (
    find_catalog,
    find_connection,
    find_kafka_config,
    find_registry_config,
    find_spark_remote,
    streams_dir,
)
from frazil.iceberg.catalog import TableStore
from frazil.kafka.cluster import KafkaLog
from frazil.spark.engine import Engine, SparkEngine
from frazil.spark.submit import SPARK_CONNECTION, SubmitEngine
from frazil.streams.loading import load_readable_streams, load_stream
from frazil.streams.models import Maintenance, RetentionWindow, Stream, suite_path
from frazil.streams.timestamps import HOUR_MS

if TYPE_CHECKING:
    from frazil.kafka.schema_registry import SchemaRegistry

_CLIENTS = ("store", "kafka_config", "kafka", "engine")


@dataclass(frozen=True)
class Workspace:
    """A stream and its clients; each client is created when it is first used."""

    stream: Stream
    directory: Path
    run_id: str
    file_stream: Stream | None = None
    """The stream as its file declares it, if `stream` has columns that the file does not list."""
    added_schema_ids: tuple[int, ...] = ()
    """The registered schemas whose changes to the table are part of the columns of `stream`."""
    latest_schemas: Mapping[str, int] = field(default_factory=dict)
    """The newest registered schema by part, where `stream` has columns from it."""

    @cached_property
    def store(self) -> TableStore:
        """Return the catalog that holds the table."""
        return TableStore(find_catalog(self.stream.table.connection))

    @cached_property
    def kafka_config(self) -> dict[str, str]:
        """Return the librdkafka settings of the source cluster."""
        return find_kafka_config(self.stream.source.connection)

    @cached_property
    def kafka(self) -> KafkaLog:
        """Return the client of the source cluster."""
        return KafkaLog(self.kafka_config)

    @cached_property
    def engine(self) -> Engine:
        """Return the engine of `batch.engine`: Spark Connect or spark-submit."""
        if self.stream.batch.engine == "submit":
            return SubmitEngine(find_connection(SPARK_CONNECTION), self.store.preset)
        return SparkEngine(find_spark_remote())

    def with_stream(
        self,
        stream: Stream,
        file_stream: Stream,
        added_schema_ids: tuple[int, ...] = (),
        latest_schemas: Mapping[str, int] = MappingProxyType({}),
    ) -> "Workspace":
        """Return the workspace with another form of its stream; open clients stay open."""
        other = replace(
            self,
            stream=stream,
            file_stream=file_stream,
            added_schema_ids=added_schema_ids,
            latest_schemas=latest_schemas,
        )
        vars(other).update({n: part for n, part in vars(self).items() if n in _CLIENTS})
        return other

    def registry(self, connection: str) -> "SchemaRegistry":
        """Return the client of a registry; a stream's value and key may use different ones."""
        from frazil.kafka.schema_registry import SchemaRegistry  # noqa: PLC0415 - takes 0.3 s

        return SchemaRegistry(find_registry_config(connection))

    @property
    def suite_file(self) -> Path | None:
        """Return the file of the expectation suite; None if the stream has none."""
        suite = self.stream.quality.suite
        return suite_path(self.directory, suite) if suite else None


def open_workspace(stream: str, run_id: str) -> Workspace:
    """Load a stream by name.

    Raises:
        UnknownStreamError, StreamFileError: the file is missing or broken.
    """
    directory = streams_dir()
    return Workspace(load_stream(directory, stream), directory, run_id)


def retention_window(work: Workspace) -> RetentionWindow:
    """Return the longest retention among the streams that fill the table."""
    settings = list_maintenance_settings(work)
    return RetentionWindow(
        expire_ms=max(s.expire_hours for s in settings) * HOUR_MS,
        rollback_ms=max(s.rollback_hours for s in settings) * HOUR_MS,
    )


def list_maintenance_settings(work: Workspace) -> tuple[Maintenance, ...]:
    """Return the `maintenance` sections of all streams that fill the table."""
    streams, _ = load_readable_streams(work.directory)
    same_table = [stream for stream in streams if stream.table.name == work.stream.table.name]
    return (work.stream.maintenance, *(stream.maintenance for stream in same_table))
