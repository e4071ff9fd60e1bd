"""BOOTSTRAP: create the table and record the start offsets, once, by compare-and-swap."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyiceberg.schema import Schema
from pyiceberg.table import Table

from frazil.errors import IncompatibleTableError, StreamFileError
from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.ledger_archive import require_not_dropped
from frazil.iceberg.table_schema import (
    list_required_properties,
    list_schema_differences,
)
from frazil.iceberg.table_view import TableView, iterate_views
from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.ingest.fast_path import new_table
from frazil.ingest.planning import marker_batch_id
from frazil.ingest.publishing import Marker, publish_marker
from frazil.kafka.cluster import KafkaLog, TopicFacts
from frazil.ledger import keys
from frazil.ledger.offsets import describe_partition
from frazil.ledger.recovery_point import History, RecoveryPoint, list_recorded_streams
from frazil.ledger.state import StreamState
from frazil.ledger.stored_properties import read_property
from frazil.messages import Report
from frazil.schemas.evolution import settle_schema
from frazil.schemas.review import has_begun
from frazil.streams.loading import find_files_of_table
from frazil.streams.models import Stream
from frazil.streams.sections import StartAtOffsets, StartAtTime
from frazil.streams.timestamps import to_epoch_ms
from frazil.workspace import Workspace


@dataclass(frozen=True)
class PreparedTable:
    """A table that fits its stream and has its recovery point, loaded after the last commit.

    Records that need one of the `quarantined_columns` become dead letters, by a person's decision.
    """

    view: TableView
    point: RecoveryPoint
    quarantined_columns: tuple[str, ...] = ()


def ensure_table(
    work: Workspace, topics: Sequence[TopicFacts], view: TableView | None = None
) -> PreparedTable:
    """Create what a stream's first batch needs; repeating it changes nothing.

    Raises:
        StreamFileError: `source.start` names offsets that Kafka does not have, or another stream
            fills the table.
        IncompatibleTableError: a table of that name cannot hold the stream's columns.
        SchemaChangeError: a change of the stream file needs a person, or is refused.
        TableError: the table's ledger cannot be trusted; nothing is written.
    """
    stream = work.stream
    reach_failpoint("plan.before-create-table")
    view = view or TableView(work.store, stream.table.name)
    require_same_mode(work, view)
    if view.found is None:
        require_not_dropped(work.store, stream.table.name, stream.stream)
    if view.found is None or view.find_point(stream.stream) is None:
        require_sole_owner(work, None if view.found is None else view.history)
    quarantined: tuple[str, ...] = ()
    if view.found is None:
        require_retained_start(stream, topics)
        work.store.create(stream.table.name, new_table(stream))
        view = view.reload()
    elif has_begun(view.table.properties, stream.stream):
        settled = settle_schema(work, view)
        work, view, quarantined = settled.work, settled.view, settled.quarantined_columns
        stream = work.stream
    require_matching_schema(stream, view.table.schema())
    views = iterate_views(set_required_properties(work, remember_route(work, view)))
    reach_failpoint("plan.before-bootstrap")
    prepared = retry_commit(
        f"bootstrapping stream {stream.stream}", lambda: _try_bootstrap(work, topics, next(views))
    )
    reach_failpoint("plan.after-bootstrap")
    if stream.errors.tolerance == "quarantine":
        ensure_dead_letters_table(work.store, stream.table.name)
    return replace(prepared, quarantined_columns=quarantined)


def require_same_mode(work: Workspace, view: TableView) -> None:
    """Raise if the mode of a stream's table was changed, or its change table was dropped alone.

    Raises:
        IncompatibleTableError: nothing was written.
    """
    stream, state = work.stream, work.stream.table.state
    found, name = view.found, stream.table.name
    next_step = "give the stream a new table.name: a table keeps its mode"
    if found is not None and keys.STATE_OF in found.properties:
        problem = f"{name} is the state table of stream {found.properties[keys.STATE_OF]}"
    elif state is not None and found is None and work.store.find(state.name) is not None:
        problem = f"{state.name} exists, but its change table {name} does not"
        next_step += (
            f"; if {name} was dropped, register its newest metadata file in the catalog "
            "(`CALL system.register_table` of Spark), and the stream continues"
        )
    else:
        return
    raise IncompatibleTableError(
        f"stream {stream.stream}: table {problem}; nothing was written",
        next_step,
    )


def require_matching_schema(stream: Stream, schema: Schema) -> None:
    """Raise if a table cannot hold the stream's columns.

    Raises:
        IncompatibleTableError: it lists every difference.
    """
    differences = list_schema_differences(schema, stream.parsed_columns)
    if differences:
        next_step = (
            "change value.columns in the stream file, relax the table's column, or name another "
            "table"
        )
        if keys.KAFKA_COLUMN not in {field.name for field in schema.fields}:
            next_step += (
                f"; `frazil adopt {stream.stream}` takes over a table that another writer filled"
            )
        raise IncompatibleTableError(
            f"stream {stream.stream}: table {stream.table.name} does not fit: "
            f"{'; '.join(differences)}",
            next_step,
        )


def _try_bootstrap(work: Workspace, topics: Sequence[TopicFacts], view: TableView) -> PreparedTable:
    point = view.find_point(work.stream.stream)
    if point is not None:
        return PreparedTable(view, point)
    require_sole_owner(work, view.history)
    state = initial_state(work.stream, topics, work.kafka)
    marker = Marker(
        kind=keys.BOOTSTRAP,
        states={work.stream.stream: state},
        base_head=view.history.head,
        run_id=work.run_id,
        extra={keys.STREAM: work.stream.stream},
    )
    point = RecoveryPoint(state, publish_marker(work.store, view.table, marker))
    return PreparedTable(view.reload(), point)


def require_sole_owner(work: Workspace, history: History | None) -> None:
    """Raise if another stream fills the table of this stream, which has not begun.

    Otherwise every record would be in the table twice, and no recovery point would show it. Pass
    None if there is no table yet: then the stream of no other file has begun.

    Raises:
        StreamFileError: it names the other stream and both files.
    """
    stream = work.stream
    files = find_files_of_table(work.directory, stream.table.name)
    own = files.pop(stream.stream, Path(f"{stream.stream}.yaml")).name
    next_step = f"give the stream a table of its own: change table.name in {own}"
    for owner, topics, place in list_recorded_streams(history) if history else ():
        shared = ", ".join(sorted(topics & set(stream.source.names)))
        if not shared and owner not in files:
            continue
        filled = f"is filled from topic {shared}" if shared else "is filled"
        file = f", {files[owner].name}" if owner in files else ""
        effect = "every record would be in the table twice"
        raise StreamFileError(
            f"stream {stream.stream} ({own}): table {stream.table.name} {filled} by stream {owner} "
            f"({place}{file}); "
            f"{effect if shared else 'two streams must not write one table'}",
            next_step + f", or rename stream and file to {owner} if it is the same stream",
        )
    if files:
        others = ", ".join(f"{name} ({path.name})" for name, path in files.items())
        raise StreamFileError(
            f"streams {stream.stream} ({own}) and {others} fill table {stream.table.name}, whose "
            "history records none of them; nothing was written",
            next_step + ", or in the other file",
        )


def initial_state(stream: Stream, topics: Sequence[TopicFacts], kafka: KafkaLog) -> StreamState:
    """Return the state that a new stream starts from (`source.start`).

    Raises:
        StreamFileError: it names start offsets that Kafka does not have.
    """
    return StreamState(
        epoch=0,
        batch=marker_batch_id(f"{keys.BOOTSTRAP} {stream.stream}"),
        offsets={topic.topic: _start_offsets(stream, topic, kafka) for topic in topics},
        topic_ids={topic.topic: topic.topic_id for topic in topics},
        cluster_id=topics[0].cluster_id,
    )


def _start_offsets(stream: Stream, topic: TopicFacts, kafka: KafkaLog) -> tuple[int, ...]:
    earliest = tuple(p.earliest for p in topic.partitions)
    match stream.source.start:
        case "earliest":
            return earliest
        case "latest":
            return tuple(p.end for p in topic.partitions)
        case StartAtTime(timestamp=text):
            count = len(topic.partitions)
            instant_ms, isolation = to_epoch_ms(text), stream.source.isolation
            found = kafka.fetch_offsets_at(topic.topic, count, instant_ms, isolation)
            # Records may have arrived since `topic` was fetched; the first batch is planned with
            # its ends, and a start above them would look like a truncated log.
            return tuple(min(at, p.end) for at, p in zip(found, topic.partitions, strict=True))
        case StartAtOffsets(offsets=offsets):
            require_retained_start(stream, [topic])
            return tuple(offsets.get(p, start) for p, start in enumerate(earliest))


def require_retained_start(stream: Stream, topics: Sequence[TopicFacts]) -> None:
    """Raise before anything is written if Kafka does not have the start offsets.

    Raises:
        StreamFileError: it names the partition, the offset and the range that Kafka keeps.
    """
    if not isinstance(stream.source.start, StartAtOffsets):
        return
    (topic,) = topics  # a stream file may name offsets only if it has one topic
    for partition, offset in sorted(stream.source.start.offsets.items()):
        field = f"source.start.offsets.{partition}"
        if partition >= len(topic.partitions):
            raise StreamFileError(
                f"stream {stream.stream}: {field} names a partition that topic {topic.topic} does "
                f"not have; its partitions are 0 to {len(topic.partitions) - 1}",
                f"remove {field} from {stream.stream}.yaml",
            )
        kept = topic.partitions[partition]
        if not kept.earliest <= offset <= kept.end:
            raise StreamFileError(
                f"stream {stream.stream}: {field} is offset {offset} of "
                f"{describe_partition(topic.topic, partition)}, but Kafka keeps "
                f"{kept.earliest}-{kept.end}; nothing was written",
                f"set {field} in {stream.stream}.yaml to a number from {kept.earliest} to "
                f"{kept.end}",
            )


class _StoredRoute(Report):
    """The field and the values that a catch-all stream leaves to others."""

    field: str
    values: tuple[str, ...]


def require_unchanged_route(table: Table, stream: Stream) -> None:
    """Raise if the stream's route lost a value, or decides by another field than before.

    Raises:
        StreamFileError: it names the values.
        UnknownStateError: the property that stores the values cannot be read.
    """
    without = (
        "the next run stores the values of the stream file; compare them before with those of the "
        "last batch: records of a value that was removed since would be in no table"
    )
    key, route, parse = (
        keys.route_key(stream.stream),
        stream.route,
        _StoredRoute.model_validate_json,
    )
    stored = read_property(table.properties, key, parse, without, stream.table.name)
    if stored is None:
        return
    removed = sorted(set(stored.values) - set(route.tables if route else ()))
    if not removed and route is not None and route.field == stored.field:
        return
    change = f"route.tables no longer has {', '.join(removed)}"
    raise StreamFileError(
        f"stream {stream.stream}: {change if removed else 'route.field has changed'}, but earlier "
        "batches skipped records that other streams of the route must ingest, by field "
        f"{stored.field}: records that those have not read yet would be in no table",
        f"restore route.field {stored.field} and the values; to stop filling a table pause its "
        "DAGs, and to split the topic in another way give the stream file a new name",
    )


def set_required_properties(work: Workspace, view: TableView) -> TableView:
    """Set the properties that the table's columns and partitions need; return it afterwards.

    Tables of earlier versions and tables whose columns or partitions changed may lack them.
    """
    views = iterate_views(view)

    def attempt() -> TableView:
        seen = next(views)
        table = seen.table
        required = list_required_properties(table.schema(), table.spec())
        if required.items() <= table.properties.items():
            return seen
        commit_once(work.store, table, {}, [commits.set_properties(required)])
        return seen.reload()

    return retry_commit(f"setting properties of the table of {work.stream.stream}", attempt)


def remember_route(work: Workspace, view: TableView | None = None) -> TableView:
    """Store the values that a catch-all stream leaves to others; return the table afterwards.

    Raises:
        StreamFileError: see `require_unchanged_route`; nothing was written.
    """
    stream = work.stream
    views = iterate_views(view or TableView(work.store, stream.table.name))

    def attempt() -> TableView:
        seen, route = next(views), stream.route
        require_unchanged_route(seen.table, stream)
        if route is None or route.takes is not None:
            return seen
        text = json.dumps({"field": route.field, "values": sorted(route.tables)})
        if seen.table.properties.get(keys.route_key(stream.stream)) == text:
            return seen
        update = commits.set_properties({keys.route_key(stream.stream): text})
        commit_once(work.store, seen.table, {}, [update])
        return seen.reload()

    return retry_commit(f"storing the route of stream {stream.stream}", attempt)
