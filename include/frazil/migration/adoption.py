"""ADOPT: take over a table that another writer filled, by one empty snapshot.

The coordinates of the rows alone decide at which offsets reading continues; other records of the
writer's progress are not used. One compare-and-swap commit writes the snapshot, the column `_kafka`
and the state on the head that was read first; it fails if the other writer committed meanwhile.
"""

from itertools import count

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, TableUpdate
from pyiceberg.types import NestedField

from frazil.errors import (
    IncompatibleTableError,
    NotAdoptableError,
    NothingToDecideError,
    WriterActiveError,
)
from frazil.iceberg import commits
from frazil.iceberg.table_schema import kafka_struct
from frazil.iceberg.table_view import TableView
from frazil.ingest.bootstrap import require_matching_schema, require_sole_owner
from frazil.ingest.publishing import Choice, record_decision
from frazil.kafka.cluster import TopicFacts
from frazil.kafka.consumer import OffsetConsumer
from frazil.ledger import keys
from frazil.ledger.authors import Author, Decision
from frazil.ledger.coordinates import Offsets
from frazil.ledger.offsets import OffsetRange
from frazil.ledger.recovery_point import History, find_recovery_point
from frazil.ledger.state import StreamState
from frazil.migration.adoption_rules import (
    Adoption,
    Holes,
    OffsetHoles,
    classify_holes,
    decide_adoption,
    describe_adoption,
    list_holes,
    require_identified_rows,
    require_same_records,
    require_same_topic,
)
from frazil.migration.foreign_rows import (
    OffsetColumns,
    TableOffsets,
    find_columns,
    read_offsets,
)
from frazil.schemas.inferred_columns import with_columns
from frazil.schemas.review import file_properties
from frazil.workspace import Workspace


def adopt_table(
    work: Workspace,
    author: Author | None,
    *,
    named_columns: str | None = None,
    accept_holes: bool = False,
) -> Decision:
    """Take over a table without changing its rows; without an author only describe the adoption.

    Raises:
        NothingToDecideError: the stream has begun in this table.
        IncompatibleTableError: its columns do not fit the stream file, or none has offsets.
        NotAdoptableError: rows without offset, of other topics or duplicated; offset holes.
        WriterActiveError: the table's head moved after it was first read.
        RetentionGapError, OffsetsWentBackError, PartitionsShrankError, TopicRecreatedError: the
            table's offsets are not those of this topic, or Kafka no longer has the next ones.
        TableError, UnavailableError: the table or a service cannot be used; nothing was written.
    """
    _validate_not_routed(work)
    first = TableView(work.store, work.stream.table.name)
    work = with_columns(work, first)
    heads: list[int | None] = []

    def decide(view: TableView) -> Choice:
        _require_not_begun(work, view.history)
        table = view.table
        _require_inactive_writer(work, heads, view.history.head)
        columns = find_columns(table.schema(), named_columns, view.name)
        schema_updates, schema = _add_kafka_column(work, table)
        require_matching_schema(work.stream, schema)
        topic = work.kafka.fetch_topic(work.stream.only_topic(), "read_uncommitted")
        adoption = _read_table(work, table, columns, topic, accept_holes=accept_holes)
        if author is None:  # an adoption's commit requires the head
            _require_inactive_writer(work, heads, view.reload().history.head)
        text = describe_adoption(topic.topic, adoption, topic.partitions)
        text += _warn_of_partitions(work, table)
        state, summary = _create_first_state(topic, adoption), {keys.ADOPTED: adoption.encode()}
        return Choice(None, state, summary=summary, first=schema_updates, text=text)

    return record_decision(work, keys.ADOPT, author, decide, first)


def _validate_not_routed(work: Workspace) -> None:
    work.stream.require_no_state_table(
        "an adoption: rows of another writer are no changes of a key in order",
        "give the stream a new table name and read the topic from its beginning; where Kafka does "
        "not have it, let the source send its rows again",
    )
    if work.stream.route is not None:
        raise NotAdoptableError(
            f"stream {work.stream.stream} belongs to a route: an offset without a row in "
            f"{work.stream.table.name} may be a missing record or one that is routed to another "
            "table",
            "adopt the table with a stream that reads a topic alone, or let the stream create a "
            "new table",
        )


def _create_first_state(topic: TopicFacts, adoption: Adoption) -> StreamState:
    """Return the stream's first state, like a bootstrap's, with the offsets after the rows."""
    return StreamState(
        epoch=0,
        batch="",
        offsets={topic.topic: adoption.offsets},
        topic_ids={topic.topic: topic.topic_id},
        cluster_id=topic.cluster_id,
    )


def _require_not_begun(work: Workspace, history: History) -> None:
    """Check that no stream of Frazil writes the table, this one or another."""
    stream = work.stream
    point = find_recovery_point(history, stream.stream)
    if point is not None:
        raise NothingToDecideError(
            f"stream {stream.stream} has a recovery point in table {history.table}: epoch "
            f"{point.state.epoch}, snapshot {point.snapshot_id}; Frazil already writes this table",
            f"`frazil plan {stream.stream}` shows the next batch",
        )
    require_sole_owner(work, history)


def _require_inactive_writer(work: Workspace, heads: list[int | None], head: int | None) -> None:
    """Check that the head has not moved since it was first read: two writers would write twice."""
    heads.append(head)
    if head != heads[0]:
        raise WriterActiveError(
            f"stream {work.stream.stream}: main of {work.stream.table.name} moved from snapshot "
            f"{heads[0]} to {head} during the adoption: another writer still commits",
            "stop the other writer, wait for its last commit, then adopt again",
        )


def _warn_of_partitions(work: Workspace, table: Table) -> str:
    """Describe partition fields that are null in new rows, which then all have one partition."""
    filled = {keys.KAFKA_COLUMN, *(column.name for column in work.stream.parsed_columns)}
    schema = table.schema()
    sources = [
        (f.transform, schema.find_column_name(f.source_id) or "") for f in table.spec().fields
    ]
    empty = [f"{t}({name})" for t, name in sources if name.partition(".")[0] not in filled]
    if not empty:
        return ""
    return f"the partition fields {', '.join(empty)} are null in new rows; "


def _add_kafka_column(work: Workspace, table: Table) -> tuple[tuple[TableUpdate, ...], Schema]:
    """Return the updates that add the column `_kafka`, null in existing rows, and the new schema.

    Raises:
        IncompatibleTableError: the table's format version is not 2.
    """
    version = table.metadata.format_version
    if version != 2:  # noqa: PLR2004 - the version that Frazil writes
        raise IncompatibleTableError(
            f"table {work.stream.table.name} has Iceberg format version {version}, Frazil writes 2",
            "upgrade a table of version 1 with ALTER TABLE … SET TBLPROPERTIES "
            "('format-version' = '2'); one of version 3 must be copied",
        )
    schema, properties = table.schema(), file_properties(work.stream)
    property_updates: tuple[TableUpdate, ...] = (commits.set_properties(properties),)
    if keys.KAFKA_COLUMN in {field.name for field in schema.fields}:
        return property_updates, schema
    ids = count(table.metadata.last_column_id + 1)
    column_id = next(ids)
    struct = kafka_struct(ids, required=False)
    column = NestedField(column_id, keys.KAFKA_COLUMN, struct, required=False)
    schema_id = max(each.schema_id for each in table.metadata.schemas) + 1
    added = Schema(
        *schema.fields,
        column,
        schema_id=schema_id,
        identifier_field_ids=schema.identifier_field_ids,
    )
    schema_updates = (AddSchemaUpdate(schema_=added), SetCurrentSchemaUpdate(schema_id=-1))
    return (*schema_updates, *property_updates), added


def _read_table(
    work: Workspace,
    table: Table,
    columns: tuple[OffsetColumns, ...],
    topic: TopicFacts,
    *,
    accept_holes: bool,
) -> Adoption:
    """Read the table's offsets, compare them with the topic and decide the next offsets."""
    stream = work.stream.stream
    table_offsets = read_offsets(table, columns, topic.topic)
    require_identified_rows(stream, topic, table_offsets)
    require_same_topic(stream, topic, table_offsets)
    settings = work.kafka.fetch_topic_settings(topic.topic)
    is_compacted = "compact" in settings.get("cleanup.policy", "delete")
    if not is_compacted:
        require_same_records(
            stream, topic, table_offsets, _fetch_last_timestamps(work, topic, table_offsets)
        )
    holes = _find_holes(work, topic, list_holes(topic, table_offsets), is_compacted=is_compacted)
    return decide_adoption(stream, columns, topic, table_offsets, holes, accept_holes=accept_holes)


def _fetch_last_timestamps(
    work: Workspace, topic: TopicFacts, table_offsets: TableOffsets
) -> dict[int, int | None]:
    """Fetch Kafka's timestamps, in ms, at each partition's highest offset in the table."""
    last_offsets = {
        partition: int(offsets[-1])
        for (_, partition), offsets in table_offsets.offsets.items()
        if offsets[-1] >= topic.partitions[partition].earliest
    }
    return dict(work.kafka.fetch_first_timestamps(topic.topic, last_offsets, "read_uncommitted"))


def _find_holes(
    work: Workspace, topic: TopicFacts, holes: Holes, *, is_compacted: bool
) -> OffsetHoles:
    """Classify offset holes by the records that Kafka delivers from the first to the last hole."""
    isolation = work.stream.source.isolation
    # Fetched before the records: Kafka delivers every record below this end, or there is none.
    offsets = work.kafka.fetch_topic(topic.topic, isolation)
    ranges = {
        partition: OffsetRange(
            max(int(runs[0, 0]), offsets.partitions[partition].earliest), int(runs[-1, 1])
        )
        for (_, partition), runs in holes.items()
        if runs[-1, 1] > offsets.partitions[partition].earliest
    }
    delivered: dict[int, Offsets] = {}
    if ranges:
        consumer = OffsetConsumer(work.kafka, work.kafka_config)
        delivered = dict(consumer.fetch_delivered(topic.topic, ranges, isolation))
    return classify_holes(offsets, holes, delivered, is_compacted=is_compacted)
