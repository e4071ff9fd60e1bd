"""BOOTSTRAP: create the table and record the start offsets, once, by compare-and-set."""

from datetime import datetime

from frazil import keys
from frazil.dead_letters import ensure_dead_letters_table
from frazil.errors import IncompatibleTableError, StreamFileError
from frazil.failpoints import reach_failpoint
from frazil.kafka_log import KafkaLog, TopicFacts
from frazil.ledger import RecoveryPoint, find_recovery_point
from frazil.planning import marker_batch_id
from frazil.publishing import Marker, load_with_history, publish_marker
from frazil.state import StreamState
from frazil.streams import StartAtOffsets, StartAtTime, Stream
from frazil.table_schema import (
    build_partition_spec,
    build_sort_order,
    build_table_schema,
    list_misfits,
)
from frazil.tables import NewTable, TableStore
from frazil.turns import take_turns
from frazil.workspace import Workspace


def ensure_table(work: Workspace, topic: TopicFacts) -> RecoveryPoint:
    """Create what is missing and give the recovery point; repeating it changes nothing.

    Raises:
        IncompatibleTableError: a table of that name cannot hold the stream's columns.
        TableError: the ledger halts; nothing is written.
    """
    stream = work.stream
    reach_failpoint("plan.before-create-table")
    table = work.store.find(stream.table.name) or work.store.create(
        stream.table.name, new_table(stream)
    )
    misfits = list_misfits(table.schema(), stream.value.parsed_columns)
    if misfits:
        raise IncompatibleTableError(
            f"stream {stream.stream}: table {stream.table.name} does not fit: {'; '.join(misfits)}",
            "change value.columns in the stream file, or name another table",
        )
    if stream.errors.tolerance == "quarantine":
        ensure_dead_letters_table(work.store, stream.table.name)
    reach_failpoint("plan.before-bootstrap")
    point = take_turns(
        f"bootstrapping stream {stream.stream}", lambda: _bootstrap_turn(work, topic)
    )
    reach_failpoint("plan.after-bootstrap")
    return point


def new_table(stream: Stream) -> NewTable:
    """Describe the table that the stream file asks for."""
    schema = build_table_schema(stream.value.parsed_columns)
    return NewTable(
        schema=schema,
        spec=build_partition_spec(schema, stream.partition_fields),
        sort_order=build_sort_order(schema, stream.table.sort_by),
        properties=stream.table.properties,
    )


def _bootstrap_turn(work: Workspace, topic: TopicFacts) -> RecoveryPoint:
    table, history = load_with_history(work.store, work.stream.table.name)
    point = find_recovery_point(history, work.stream.stream)
    if point is not None:
        return point
    state = initial_state(work.stream, topic, work.kafka)
    marker = Marker(
        kind=keys.BOOTSTRAP,
        states={work.stream.stream: state},
        base_head=history.head,
        run_id=work.run_id,
        extra={keys.STREAM: work.stream.stream},
    )
    return RecoveryPoint(state, publish_marker(work.store, table, marker))


def initial_state(stream: Stream, topic: TopicFacts, kafka: KafkaLog) -> StreamState:
    """Decide where a new stream begins (`source.start`).

    Raises:
        StreamFileError: start offsets for partitions that do not exist, or a bad instant.
    """
    return StreamState(
        epoch=0,
        batch=marker_batch_id(f"{keys.BOOTSTRAP} {stream.stream}"),
        offsets={topic.topic: _start_offsets(stream, topic, kafka)},
        topic_ids={topic.topic: topic.topic_id},
        cluster_id=topic.cluster_id,
    )


def _start_offsets(stream: Stream, topic: TopicFacts, kafka: KafkaLog) -> tuple[int, ...]:
    earliest = tuple(p.earliest for p in topic.partitions)
    match stream.source.start:
        case "earliest":
            return earliest
        case "latest":
            return tuple(p.end for p in topic.partitions)
        case StartAtTime(timestamp=text):
            instant_ms = _parse_instant_ms(stream.stream, text)
            return kafka.fetch_offsets_at(topic.topic, len(topic.partitions), instant_ms)
        case StartAtOffsets(offsets=offsets):
            unknown = sorted(p for p in offsets if p >= len(topic.partitions))
            if unknown:
                raise StreamFileError(
                    f"stream {stream.stream}: source.start.offsets names partitions {unknown}; "
                    f"topic {topic.topic} has {len(topic.partitions)}",
                    "name existing partitions in source.start.offsets",
                )
            return tuple(offsets.get(p, start) for p, start in enumerate(earliest))


def _parse_instant_ms(stream: str, text: str) -> int:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise StreamFileError(
            f"stream {stream}: source.start.timestamp {text!r} is no instant with a zone",
            "write it as 2026-01-31T00:00:00Z",
        )
    return int(instant.timestamp() * 1000)


def read_point(store: TableStore, stream: Stream) -> RecoveryPoint | None:
    """Read the recovery point without writing; None if the stream has not begun."""
    if store.find(stream.table.name) is None:
        return None
    _, history = load_with_history(store, stream.table.name)
    return find_recovery_point(history, stream.stream)
