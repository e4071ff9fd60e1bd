"""ADOPT: take over a table that another writer filled, by one empty snapshot.

Nothing of the other writer is believed but its rows: their coordinates say where reading goes on.
The snapshot, the column `_kafka` and the state come in one commit on exactly the head that was
looked at; a writer that still commits is thereby found and refused.
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
from frazil.ingest.bootstrap import require_matching_schema, require_sole_owner
from frazil.ingest.publishing import Choice, record_decision
from frazil.kafka.cluster import TopicFacts
from frazil.kafka.consumer import OffsetConsumer
from frazil.ledger import keys
from frazil.ledger.authors import Author, Decision
from frazil.ledger.coordinates import Coordinates, Offsets, covering_ranges
from frazil.ledger.offsets import OffsetRange
from frazil.ledger.recovery_point import History, find_recovery_point
from frazil.ledger.state import StreamState
from frazil.migration.adoption_rules import (
    Adoption,
    OffsetHoles,
    decide_adoption,
    describe_adoption,
    list_holes,
    require_identified_rows,
    require_same_records,
    require_same_topic,
    sort_holes,
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
    """Take over a table as it is; without an author it only shows what would be taken over.

    Raises:
        NothingToDecideError: the stream has begun in this table.
        IncompatibleTableError: its columns do not fit the stream file, or none has offsets.
        NotAdoptableError: rows without offset, of other topics, doubled ones, holes.
        WriterActiveError: somebody committed since the first look.
        RetentionGapError, OffsetsWentBackError, PartitionsShrankError, TopicRecreatedError: Kafka
            and the table do not belong together, or Kafka lost what would come next.
        TableError, UnavailableError: as everywhere; nothing was written.
    """
    work = with_columns(work)
    name = work.stream.table.name
    _validate_not_routed(work)
    seen: list[int | None] = []

    def decide(history: History) -> Choice:
        _require_not_begun(work, history)
        table = work.store.load(name)
        _require_inactive_writer(work, seen, history.head, _head_of(table))
        columns = find_columns(table.schema(), named_columns, name)
        first, fitted = _add_kafka_column(work, table)
        require_matching_schema(work.stream, fitted)
        topic = work.kafka.fetch_topic(work.stream.only_topic(), "read_uncommitted")
        adoption = _read_table(work, table, columns, topic, accept_holes=accept_holes)
        _require_inactive_writer(work, seen, _head_of(work.store.load(name)))
        text = describe_adoption(topic.topic, adoption, topic.partitions)
        text += _warn_of_partitions(work, table)
        told = {keys.ADOPTED: adoption.encode()}
        return Choice(None, _begin(topic, adoption), summary=told, first=first, text=text)

    return record_decision(work, keys.ADOPT, author, decide)


def _validate_not_routed(work: Workspace) -> None:
    if work.stream.route is not None:
        raise NotAdoptableError(
            f"stream {work.stream.stream} is one of a route: which offsets of "
            f"{work.stream.table.name} are missing, and which belong to another table, its "
            "coordinates do not say",
            "adopt it by a stream of its own topic, or begin a new table",
        )


def _begin(topic: TopicFacts, adoption: Adoption) -> StreamState:
    """Begin the ledger, as a bootstrap would, behind the rows that are there."""
    return StreamState(
        epoch=0,
        batch="",
        offsets={topic.topic: adoption.offsets},
        topic_ids={topic.topic: topic.topic_id},
        cluster_id=topic.cluster_id,
    )


def _require_not_begun(work: Workspace, history: History) -> None:
    """Refuse a table that a stream of Frazil fills, this one or another."""
    stream = work.stream
    point = find_recovery_point(history, stream.stream)
    if point is not None:
        raise NothingToDecideError(
            f"stream {stream.stream} has a recovery point in table {history.table}: epoch "
            f"{point.state.epoch}, snapshot {point.snapshot_id}; the table is Frazil's already",
            f"`frazil plan {stream.stream}` shows the next batch",
        )
    require_sole_owner(history, stream)


def _require_inactive_writer(work: Workspace, seen: list[int | None], *heads: int | None) -> None:
    """Refuse a head that moved since the first look: both would write the next records."""
    seen.extend(heads)
    moved = next((head for head in seen if head != seen[0]), seen[0])
    if moved != seen[0]:
        raise WriterActiveError(
            f"stream {work.stream.stream}: main of {work.stream.table.name} moved from snapshot "
            f"{seen[0]} to {moved} meanwhile: another writer still commits",
            "stop the other writer, wait for its last commit, then adopt again",
        )


def _warn_of_partitions(work: Workspace, table: Table) -> str:
    """Name the partition fields that the stream leaves null: all new rows would meet in one."""
    filled = {keys.KAFKA_COLUMN, *(column.name for column in work.stream.parsed_columns)}
    schema = table.schema()
    sources = [
        (f.transform, schema.find_column_name(f.source_id) or "") for f in table.spec().fields
    ]
    empty = [f"{t}({name})" for t, name in sources if name.partition(".")[0] not in filled]
    if not empty:
        return ""
    return f"new rows have null in {', '.join(empty)}, by which the table is partitioned; "


def _head_of(table: Table) -> int | None:
    head = table.current_snapshot()
    return head.snapshot_id if head else None


def _add_kafka_column(work: Workspace, table: Table) -> tuple[tuple[TableUpdate, ...], Schema]:
    """Add `_kafka` behind the other writer's columns; the rows that are there have null in it.

    Raises:
        IncompatibleTableError: a table of another format version, which PyIceberg cannot write.
    """
    version = table.metadata.format_version
    if version != 2:  # noqa: PLR2004 - the one that every reader knows
        raise IncompatibleTableError(
            f"table {work.stream.table.name} has Iceberg format version {version}, Frazil writes 2",
            "upgrade a table of version 1 with ALTER TABLE … SET TBLPROPERTIES "
            "('format-version' = '2'); one of version 3 must be copied",
        )
    schema, properties = table.schema(), file_properties(work.stream)
    remember: tuple[TableUpdate, ...] = (commits.set_properties(properties),)
    if keys.KAFKA_COLUMN in {field.name for field in schema.fields}:
        return remember, schema
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
    evolve = (AddSchemaUpdate(schema_=added), SetCurrentSchemaUpdate(schema_id=-1))
    return (*evolve, *remember), added


def _read_table(
    work: Workspace,
    table: Table,
    columns: tuple[OffsetColumns, ...],
    topic: TopicFacts,
    *,
    accept_holes: bool,
) -> Adoption:
    """Read the table's coordinates, and ask Kafka about what they leave open."""
    stream = work.stream.stream
    places = read_offsets(table, columns, topic.topic)
    require_identified_rows(stream, topic, places)
    require_same_topic(stream, topic, places)
    settings = work.kafka.fetch_topic_settings(topic.topic)
    is_compacted = "compact" in settings.get("cleanup.policy", "delete")
    if not is_compacted:
        require_same_records(stream, topic, places, _fetch_final(work, topic, places))
    holes = _find_holes(work, topic, list_holes(topic, places), is_compacted=is_compacted)
    return decide_adoption(stream, columns, topic, places, holes, accept_holes=accept_holes)


def _fetch_final(work: Workspace, topic: TopicFacts, places: TableOffsets) -> dict[int, int | None]:
    """Fetch Kafka's timestamps at the highest offsets that the table has and Kafka still holds."""
    tops = {
        partition: int(offsets[-1])
        for (_, partition), offsets in places.offsets.items()
        if offsets[-1] >= topic.partitions[partition].earliest
    }
    return dict(work.kafka.fetch_first_timestamps(topic.topic, tops, "read_uncommitted"))


def _find_holes(
    work: Workspace, topic: TopicFacts, holes: Coordinates, *, is_compacted: bool
) -> OffsetHoles:
    """Read again from Kafka what lies between the first hole and the last one."""
    isolation = work.stream.source.isolation
    # Looked up before the reading: what was stable then has been delivered or never will be.
    stable = work.kafka.fetch_topic(topic.topic, isolation)
    wanted = {
        partition: OffsetRange(max(span.start, stable.partitions[partition].earliest), span.end)
        for partition, span in covering_ranges(holes).get(topic.topic, {}).items()
        if span.end > stable.partitions[partition].earliest
    }
    delivered: dict[int, Offsets] = {}
    if wanted:
        log = OffsetConsumer(work.kafka, work.kafka_config)
        delivered = dict(log.fetch_delivered(topic.topic, wanted, isolation))
    return sort_holes(stable, holes, delivered, is_compacted=is_compacted)
