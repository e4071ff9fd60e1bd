"""One stream with everything around it: its file, its table's catalog, its Kafka, its engine."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from frazil.connections import (
    find_catalog,
    find_connection,
    find_kafka_config,
    find_registry_config,
    find_spark_remote,
    streams_dir,
)
from frazil.engine import Engine, SparkEngine
from frazil.kafka_log import KafkaLog
from frazil.spark_submit import SPARK_CONNECTION, SubmitEngine
from frazil.stream_files import load_stream
from frazil.streams import Stream, suite_path
from frazil.tables import TableStore

if TYPE_CHECKING:
    from frazil.registry import SchemaRegistry


@dataclass(frozen=True)
class Workspace:
    """Open a stream's parts when they are first used, each once."""

    stream: Stream
    directory: Path
    run_id: str
    written: Stream | None = None
    """The stream as its file has it, where `stream` has columns that the file leaves out."""
    asked_by: tuple[int, ...] = ()
    """The registered schemas that `stream` has the columns of values from, beyond the table's."""

    @cached_property
    def store(self) -> TableStore:
        """Give the catalog that holds the table."""
        return TableStore(find_catalog(self.stream.table.connection))

    @cached_property
    def kafka_config(self) -> dict[str, str]:
        """Give librdkafka's settings of the source."""
        return find_kafka_config(self.stream.source.connection)

    @cached_property
    def kafka(self) -> KafkaLog:
        """Give the source's cluster."""
        return KafkaLog(self.kafka_config)

    @cached_property
    def engine(self) -> Engine:
        """Give the Spark Connect server, or the cluster that the stream file asks for."""
        if self.stream.batch.engine == "submit":
            return SubmitEngine(find_connection(SPARK_CONNECTION), self.store.preset)
        return SparkEngine(find_spark_remote())

    def registry(self, connection: str) -> "SchemaRegistry":
        """Open a schema registry; a stream's value and key may have two."""
        from frazil.registry import SchemaRegistry  # noqa: PLC0415 - a third of a second

        return SchemaRegistry(find_registry_config(connection))

    @property
    def suite_file(self) -> Path | None:
        """Locate the expectation suite, if the stream names one."""
        suite = self.stream.quality.suite
        return suite_path(self.directory, suite) if suite else None


def open_workspace(stream: str, run_id: str) -> Workspace:
    """Load a stream by name.

    Raises:
        UnknownStreamError, StreamFileError: the file is missing or broken.
    """
    directory = streams_dir()
    return Workspace(load_stream(directory, stream), directory, run_id)
