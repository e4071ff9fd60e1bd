"""The workspace of a stream: its file, catalog, Kafka cluster, Spark engine and registries.

Also the topics of a stream file with a pattern, which Kafka and the catalog know.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from frazil.connections.clients import (
    find_catalog,
    find_kafka_config,
    find_registry_config,
    find_spark_remote,
)
from frazil.connections.lookup import find_connection
from frazil.environment import streams_dir
from frazil.errors import FrazilError, StreamFileError, UnavailableError, UnknownStreamError
from frazil.iceberg.catalog import TableStore
from frazil.iceberg.table_view import TableView
from frazil.kafka.cluster import KafkaLog
from frazil.ledger import keys
from frazil.ledger.recovery_point import list_recorded_streams
from frazil.spark.engine import Engine, SparkEngine
from frazil.spark.submit import SPARK_CONNECTION, SubmitEngine
from frazil.streams.loading import (
    list_pattern_files,
    load_pattern,
    load_readable_streams,
    load_stream,
)
from frazil.streams.models import Maintenance, Stream, suite_path
from frazil.streams.routes import SEPARATOR
from frazil.streams.timestamps import HOUR_MS, RetentionWindow
from frazil.streams.topic_lists import KnownTopic, TopicList, read_topics, write_topics
from frazil.streams.topic_patterns import TopicRule, TopicStream

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


def open_or_find_workspace(stream: str, run_id: str) -> Workspace:
    """Load a stream by name; if it is none of a pattern's known topics, refresh them first.

    Raises:
        UnknownStreamError, StreamFileError: as in `open_workspace`.
        UnavailableError: Kafka or the catalog did not answer.
    """
    try:
        return open_workspace(stream, run_id)
    except (UnknownStreamError, StreamFileError):
        paths = list_pattern_files(streams_dir())
        own = [path for path in paths if stream.startswith(path.stem + SEPARATOR)]
        if not own:
            raise
    for path in own:
        refresh_topics(path)
    return open_workspace(stream, run_id)


def refresh_topics(path: Path) -> TopicList | None:
    """Ask Kafka and the catalog for the topics of a stream file, and write their list.

    Topics that are in Kafka, and those that a table records, are listed: so the list is the same on
    every machine, and a deleted topic with a table keeps its stream. None if the file, which may
    only mention a pattern, has none.

    Raises:
        StreamFileError: the file is invalid.
        UnavailableError: Kafka or the catalog did not answer; the list stays as it was.
    """
    loaded = load_pattern(path)
    if loaded is None:
        return None
    declared, rule = loaded
    kafka = KafkaLog(find_kafka_config(declared.source.connection))
    listed = rule.select(kafka.fetch_topic_names())
    store = TableStore(find_catalog(declared.table.connection))
    recorded = find_recorded_topics(store, rule, listed, read_topics(rule.stream))
    known = {
        topic: KnownTopic(table=recorded.get(topic), in_kafka=topic in listed)
        for topic in sorted(listed | recorded.keys())
    }
    found = TopicList(stream=rule.stream, refreshed_at=datetime.now(UTC), topics=known)
    write_topics(found)
    return found


def find_recorded_topics(
    store: TableStore, rule: TopicRule, listed: frozenset[str], before: TopicList | None
) -> dict[str, str]:
    """Return topic → table for each selected topic whose stream the table's history records.

    `listed` are the selected topics of Kafka. Entries of the previous list are valid as long as the
    table exists. Without such a list every table that may belong to the pattern is loaded.

    Raises:
        UnavailableError: the catalog did not answer.
    """
    known = before.tables if before else {}
    named = list(rule.name_all(rule.select(listed | known.keys())))
    recorded = {each.topic: each.table for each in named if known.get(each.topic) == each.table}
    unsure = {rule.ledger_table(e.table) for e in named if e.topic not in recorded}
    if before and not unsure and recorded.keys() <= listed:
        return recorded
    tables = store.list_tables(rule.ledger_tables)
    for name in sorted(tables & unsure if before else tables):
        recorded |= {each.topic: each.table for each in _read_recorded(store, rule, name)}
    return {t: name for t, name in recorded.items() if rule.ledger_table(name) in tables}


def _read_recorded(store: TableStore, rule: TopicRule, name: str) -> list[TopicStream]:
    """Return the topic of the pattern that a table's newest state records; a broken one has none.

    Raises:
        UnavailableError: the catalog did not answer.
    """
    prefix = rule.stream + SEPARATOR
    try:
        view = TableView(store, name)
        if not any(key.startswith(keys.hint_key(prefix)) for key in view.table.properties):
            return []
        states = list_recorded_streams(view.history)
        stream, topics = next(((s, t) for s, t, _ in states if s.startswith(prefix)), ("", set()))
    except UnavailableError:
        raise
    except FrazilError:  # the run of its stream says why
        return []
    named = rule.name_all(rule.select(topics))
    return [n for n in named if n.stream == stream and rule.ledger_table(n.table) == name]


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
