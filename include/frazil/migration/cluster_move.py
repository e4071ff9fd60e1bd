"""MOVE: continue a stream with its topic's copy on another cluster, after the last record read.

The stream's connection already points to the new cluster. `plan_move` returns each partition's next
offset there with its evidence. `move_cluster` records them in one `move` snapshot without rows,
with the new cluster id and topic ids, by a compare-and-swap commit on the head that was read.
"""

import json
from collections.abc import Mapping
from functools import partial

from frazil.connections.clients import find_kafka_config
from frazil.errors import (
    ConfigurationError,
    NothingToDecideError,
    PartitionsShrankError,
)
from frazil.iceberg.table_view import TableView
from frazil.ingest.publishing import Choice, record_decision
from frazil.kafka.cluster import KafkaLog, TopicFacts
from frazil.ledger import keys
from frazil.ledger.authors import Author, require_not_dry_run
from frazil.ledger.coordinates import Partition
from frazil.ledger.history import trace_steps
from frazil.ledger.offsets import describe_partition, parse_offset_locations
from frazil.ledger.recovery_point import require_recovery_point
from frazil.ledger.state import StreamState
from frazil.messages import count_noun, name_field
from frazil.migration.messages import Moved, MovedPartition, MovePlan, MoveRequest
from frazil.migration.offset_translation import (
    KnownRecords,
    RecordPosition,
    translate_offset,
)
from frazil.migration.record_fingerprints import FingerprintLog, LedgerRecords
from frazil.workspace import Workspace


def plan_move(work: Workspace, request: MoveRequest) -> MovePlan:
    """Translate every partition's next offset, and describe the evidence for each.

    Raises:
        NothingToDecideError: the stream already reads this cluster.
        NotMovableError: an offset cannot be translated, or a given one contradicts the records.
        PartitionsShrankError, ConfigurationError, TableError, UnavailableError: as elsewhere.
    """
    work.stream.require_no_state_table(
        "a move to another cluster, where offsets start over",
        "give a new stream the new cluster and a table name of its own: it reads the topic from "
        "its beginning, and readers change to its state table",
    )
    view = TableView(work.store, work.stream.table.name)
    plan = MovePlan(
        stream=work.stream.stream, table=work.stream.table.name, request=request, text=""
    )
    try:
        state, translated = _translate(work, request, view)
    except NothingToDecideError:
        if request.dry_run:
            raise
        text = "nothing to move: the stream already reads this cluster, perhaps by this move"
        return plan.model_copy(update={"text": text})
    point = require_recovery_point(view.history, work.stream.stream)
    text = f"cluster {point.state.cluster_id} → {state.cluster_id}, epoch {state.epoch}"
    return plan.model_copy(
        update={
            "old_cluster": point.state.cluster_id,
            "new_cluster": state.cluster_id,
            "partitions": translated,
            "text": "\n".join([text, *map(_describe, translated)]),
        }
    )


def _describe(each: MovedPartition) -> str:
    name = describe_partition(each.topic, each.partition)
    return f"{name}: {each.old_next} → {each.new_next}: {each.evidence}"


def move_cluster(work: Workspace, plan: MovePlan) -> Moved:
    """Translate the offsets again and record the move; a retry finds the recorded one.

    Raises:
        ConfigurationError: the plan is a dry run, or has no name or reason.
        NotMovableError, NothingToDecideError, TableError: as in `plan_move`; nothing was written.
        CommitContentionError, UnavailableError: run again.
    """
    request = plan.request
    require_not_dry_run(plan.stream, dry_run=request.dry_run)
    author = Author(request.by, request.reason)
    done = record_decision(work, keys.MOVE, author, partial(_decide, work, request))
    return Moved(stream=plan.stream, table=plan.table, snapshot_id=done.snapshot_id, text=done.text)


def _decide(work: Workspace, request: MoveRequest, view: TableView) -> Choice:
    state, translated = _translate(work, request, view)
    base = require_recovery_point(view.history, work.stream.stream).state
    partitions: dict[str, dict[str, list[object]]] = {}
    for each in translated:
        parts = partitions.setdefault(each.topic, {})
        parts[str(each.partition)] = [each.old_next, each.new_next, each.evidence]
    moved = {"from": base.cluster_id, "to": state.cluster_id, "partitions": partitions}
    return Choice(base, state, summary={keys.MOVED: json.dumps(moved, separators=(",", ":"))})


def _translate(
    work: Workspace, request: MoveRequest, view: TableView
) -> tuple[StreamState, tuple[MovedPartition, ...]]:
    """Return the state on the new cluster, without a batch id, and each translated offset."""
    state = require_recovery_point(view.history, work.stream.stream).state
    stream, source = work.stream.stream, work.stream.source
    names = [name for name in source.names if name in state.offsets]
    topics = work.kafka.fetch_topics(names or source.names, source.isolation)
    _require_movable(stream, state, topics, names)
    given = _parse_next(request.next)
    _validate_partitions(stream, state, names, given)
    translated = tuple(
        offset
        for topic in topics
        for offset in _translate_topic(work, request, view, state, topic, given)
    )
    offsets = {name: list(values) for name, values in state.offsets.items()}
    for each in translated:
        offsets[each.topic][each.partition] = each.new_next
    moved = StreamState(
        epoch=state.epoch + 1,
        batch="",
        offsets={name: tuple(values) for name, values in offsets.items()},
        topic_ids={**state.topic_ids, **{topic.topic: topic.topic_id for topic in topics}},
        cluster_id=topics[0].cluster_id,
    )
    return moved, translated


def _translate_topic(
    work: Workspace,
    request: MoveRequest,
    view: TableView,
    state: StreamState,
    topic: TopicFacts,
    given: Mapping[Partition, int],
) -> list[MovedPartition]:
    nexts = dict(enumerate(state.offsets[topic.topic]))
    settings = work.kafka.fetch_topic_settings(topic.topic)
    is_log_append_time = settings.get("message.timestamp.type") == "LogAppendTime"
    records = _find_last_records(
        work, request, view, state, topic, with_times=not is_log_append_time
    )
    own = {number: offset for (name, number), offset in given.items() if name == topic.topic}
    log = FingerprintLog(
        work.kafka,
        work.kafka_config,
        work.stream.source.isolation,
        with_values=request.old_connection is not None,
        with_times=not is_log_append_time,
    )
    copies = log.read_copies(topic, records, own)
    return [
        translate_offset(
            RecordPosition(work.stream.stream, topic.topic, number, old_next),
            records[number],
            copies[number],
            own.get(number),
        )
        for number, old_next in nexts.items()
    ]


def _find_last_records(
    work: Workspace,
    request: MoveRequest,
    view: TableView,
    state: StreamState,
    topic: TopicFacts,
    *,
    with_times: bool,
) -> dict[int, KnownRecords]:
    """Return the records around each next offset, from the old cluster if given, else the table."""
    isolation = work.stream.source.isolation
    if request.old_connection is not None:
        config = find_kafka_config(request.old_connection)
        log = KafkaLog(config)
        old = FingerprintLog(log, config, isolation, with_values=True, with_times=with_times)
        return old.find_last_records(state, old.kafka.fetch_topic(topic.topic, isolation))
    stream = work.stream
    records = LedgerRecords(
        view.table,
        work.store.find(stream.dead_letters_table),
        trace_steps(view.history, stream.stream),
    )
    nexts = enumerate(state.offsets[topic.topic])
    return {
        number: records.find_last_records((topic.topic, number), each) for number, each in nexts
    }


def _parse_next(texts: tuple[str, ...]) -> dict[Partition, int]:
    """Parse the offsets of `next`; each partition may be named once."""
    found: dict[Partition, int] = {}
    for location in (each for text in texts for each in parse_offset_locations(text)):
        if (location.topic, location.partition) in found:
            raise ConfigurationError(
                f"{name_field('next')} names "
                f"{describe_partition(location.topic, location.partition)} twice",
                "give at most one offset for each partition",
            )
        found[location.topic, location.partition] = location.offset
    return found


def _require_movable(
    stream: str, state: StreamState, topics: tuple[TopicFacts, ...], names: list[str]
) -> None:
    """Check that the connection points to another cluster that has the stream's partitions."""
    if topics[0].cluster_id == state.cluster_id:
        raise NothingToDecideError(
            f"stream {stream}: the connection points to cluster {state.cluster_id}, which the "
            "stream already reads",
            "change the stream's Kafka connection to the new cluster first; "
            f"`frazil plan {stream}` shows the next batch",
        )
    if not names:
        raise NothingToDecideError(
            f"stream {stream}: the stream file names {', '.join(t.topic for t in topics)}, the "
            f"ledger has offsets of {', '.join(sorted(state.offsets))}; a copy must have the same "
            "topic name",
            "name the topic of the ledger in the stream file",
        )
    for topic in topics:
        if len(topic.partitions) < len(state.offsets[topic.topic]):
            raise PartitionsShrankError(
                f"stream {stream}: topic {topic.topic} has "
                f"{count_noun(len(topic.partitions), 'partition')} on cluster "
                f"{topic.cluster_id}, the ledger has {len(state.offsets[topic.topic])}",
                "copy the topic with the same number of partitions and each record into its own "
                "partition",
            )


def _validate_partitions(
    stream: str, state: StreamState, names: list[str], given: Mapping[Partition, int]
) -> None:
    """Check that `next` names only partitions in the ledger; new ones begin at offset 0."""
    unknown = [
        describe_partition(topic, number)
        for topic, number in given
        if topic not in names or number >= len(state.offsets[topic])
    ]
    if unknown:
        raise ConfigurationError(
            f"stream {stream}: {name_field('next')} names {', '.join(unknown)}, which the ledger "
            "does not have",
            f"`frazil status {stream}` lists its partitions",
        )
