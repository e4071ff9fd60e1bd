"""Compare two tables that one topic fills, record by record, in Spark.

The job `count_offsets` returns the first and last offset of each partition on both sides. With the
ledgers they decide which ranges are judged; the job `compare_tables` joins both sides there on
topic, partition and offset.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.schema import Schema
from pyiceberg.table import Table

from frazil.connections.clients import CatalogPreset, find_catalog, find_spark_remote
from frazil.errors import ConfigurationError, MissingTableError, UnknownStreamError
from frazil.iceberg.catalog import TableStore
from frazil.iceberg.data_files import read_dead_letters
from frazil.iceberg.table_view import TableView
from frazil.ingest.dead_letters import list_resolved, select_open
from frazil.ledger import keys
from frazil.ledger.coordinates import Offsets, Partition, plain_runs
from frazil.ledger.history import Spans, list_attempts, list_spans, trace_steps
from frazil.ledger.offsets import OffsetRange, parse_offset_ranges
from frazil.ledger.recovery_point import (
    History,
    find_recovery_point,
    for_reading,
    walk_ancestors,
)
from frazil.ledger.state import StreamState
from frazil.messages import name_field
from frazil.migration.column_pairs import (
    ColumnPair,
    describe_partitioning,
    pair_columns,
    require_readable_columns,
    write_partition_values,
)
from frazil.migration.comparison_rules import (
    Claim,
    Claims,
    choose_ranges,
    claim_range,
    complete_reports,
    decide_verdict,
    describe_comparison,
)
from frazil.migration.foreign_rows import OffsetColumns, find_columns, write_coordinates
from frazil.migration.messages import (
    ColumnReport,
    ComparedTable,
    CompareRequest,
    Comparison,
    ExtentRequest,
    Extents,
    JoinRequest,
    JoinResult,
    PartitionReport,
    SideReport,
    TableExtent,
)
from frazil.spark.engine import Engine, SparkEngine
from frazil.streams.column_types import quote_name
from frazil.streams.models import Stream
from frazil.workspace import Workspace, open_workspace

PARTITION_VALUES = "(partition values)"
"""The name under which partition values are reported, like one more column."""


@dataclass(frozen=True)
class Side:
    """One side: a table at its newest snapshot, and the stream that fills it, if one does."""

    name: str
    preset: CatalogPreset
    table: Table
    schema: Schema
    history: History
    columns: tuple[OffsetColumns, ...]
    topic: str | None
    stream: Stream | None
    dead_letters: Mapping[Partition, Mapping[str, Offsets]]

    @property
    def partitioned_by(self) -> tuple[str, ...]:
        """Describe the partition spec."""
        return describe_partitioning(self.table.schema(), self.table.spec())

    @property
    def read(self) -> ComparedTable:
        """Return the table as Spark reads it, with SQL for its coordinates."""
        identifier = ".".join(map(quote_name, (self.preset.name, *self.table.name())))
        coordinates = write_coordinates(self.schema, self.columns, self.topic)
        return ComparedTable(table=identifier, snapshot_id=self.history.head, **coordinates)


def compare_tables(request: CompareRequest, run_id: str) -> Comparison:
    """Compare two tables over the offsets that both have read, or over the requested ones.

    Raises:
        UnknownStreamError, MissingTableError: a side does not exist.
        ConfigurationError, IncompatibleTableError: the coordinates of a side cannot be read, or
            a side has not read all requested offsets.
        TableError: the stream of a side is halted.
        UnavailableError, JobFailedError: catalog, warehouse or Spark failed; run again.
    """
    chosen = parse_offset_ranges(request.offsets)
    work, left, right = _open_sides(request, run_id)
    engine: Engine = work.engine if work else SparkEngine(find_spark_remote())
    catalogs = _merge_catalogs(left.preset, right.preset)
    extent_request = ExtentRequest(left=left.read, right=right.read, session_conf=catalogs)
    extents = engine.run_job("count_offsets", extent_request, Extents)
    claims = (_claim(left, extents.left), _claim(right, extents.right))
    ranges = choose_ranges(*claims, chosen)
    judged = {key: span for key, span in ranges.items() if span is not None}
    pairs = _pair_columns(left, right)
    found: tuple[PartitionReport, ...] = ()
    if judged:
        join = _plan_join(extent_request, (left, right), claims, judged, pairs)
        join = join.model_copy(update={"in_ranges_only": bool(chosen)})
        found = engine.run_job("compare_tables", join, JoinResult).partitions
    reports = complete_reports(ranges, *claims, found)
    sides = (_report_side(left, extents.left), _report_side(right, extents.right))
    return _build_result(request, sides, pairs, reports)


def _open_sides(request: CompareRequest, run_id: str) -> tuple[Workspace | None, Side, Side]:
    """Open both sides; the workspace is that of the first side that is a stream."""
    names = (request.left, request.right)
    works = [None if "." in name else _open_stream(name, run_id) for name in names]
    sources = [work.stream.source.names for work in works if work is not None]
    topic = request.topic or next((each[0] for each in sources if len(each) == 1), None)
    columns = (request.left_columns, request.right_columns)
    left, right = (
        _open_side(name, work.stream if work else None, named, topic, request.connection)
        for name, work, named in zip(names, works, columns, strict=True)
    )
    return next((work for work in works if work is not None), None), left, right


def _open_stream(name: str, run_id: str) -> Workspace:
    try:
        return open_workspace(name, run_id)
    except UnknownStreamError as error:
        table = f"a table that no stream fills is named with its namespace: NAMESPACE.{name}"
        raise UnknownStreamError(error.facts, f"{error.next_step}; {table}") from error


def _open_side(
    name: str, stream: Stream | None, named: str | None, topic: str | None, connection: str
) -> Side:
    if not all(part.strip() for part in name.split(".")) or not name.isprintable():
        raise ConfigurationError(
            f"{name!r} is neither a stream nor a table",
            "write the name of a stream, or namespace.table, for example legacy.flights",
        )
    store = TableStore(find_catalog(stream.table.connection if stream else connection))
    table, history = _load(store, name, stream, connection)
    head = table.snapshot_by_id(history.head) if history.head is not None else None
    # Spark reads a snapshot with the columns that the table had at that time.
    schema_id = head.schema_id if head else None
    schema = table.schema() if schema_id is None else table.schemas()[schema_id]
    require_readable_columns(schema, history.table)
    topics = stream.source.names if stream else ()
    return Side(
        name=name,
        preset=store.preset,
        table=table,
        schema=schema,
        history=history,
        columns=find_columns(schema, named, history.table),
        topic=topics[0] if len(topics) == 1 else topic,
        stream=stream,
        dead_letters=read_dead_letters(store.find(stream.dead_letters_table)) if stream else {},
    )


def _load(
    store: TableStore, name: str, stream: Stream | None, connection: str
) -> tuple[Table, History]:
    """Load the table of one side.

    Raises:
        MissingTableError: there is none; no run creates one that is named itself.
    """
    try:
        view = TableView(store, stream.table.name if stream else name)
        table = view.table
    except MissingTableError as error:
        if stream is not None:
            raise
        raise MissingTableError(
            error.facts,
            f"check the name (namespace.table) and the catalog of connection {connection}; the "
            "table of a stream appears with its first batch",
        ) from error
    return table, view.history


def _merge_catalogs(left: CatalogPreset, right: CatalogPreset) -> dict[str, str]:
    """Return the session settings with which Spark reads both catalogs; no secrets are in it.

    Raises:
        ConfigurationError: two catalogs have one name.
    """
    if left.name == right.name and dict(left.properties) != dict(right.properties):
        raise ConfigurationError(
            f"the connections of both sides point to different catalogs with one name, {left.name}",
            "set another `catalog`, the name that Spark uses for a catalog, in the extra of one "
            "connection",
        )
    return left.spark_conf() | right.spark_conf()


def _claim(side: Side, extent: TableExtent) -> Claims:
    """Return what one side has read, by its ledger and its rows, with its open dead letters."""
    if extent.without_topic:
        raise ConfigurationError(
            f"table {side.history.table} has no column with the topic of its records",
            f"name the topic that filled it: {name_field('topic')} TOPIC",
        )
    stream = side.stream.stream if side.stream else ""
    point = find_recovery_point(for_reading(side.history), stream) if stream else None
    steps = trace_steps(side.history, stream) if point else ()
    first = next((step.after for step in steps if step.after), None)
    starts, ends = _by_partition(first), _by_partition(point.state if point else None)
    spans, attempts, resolved = list_spans(steps), list_attempts(steps), list_resolved(steps)
    has_backfills = any(step.kind == keys.BACKFILL for step in steps)
    extents = {(each.topic, each.partition): each for each in extent.partitions}
    claims = {}
    for key in {*extents, *ends}:
        own, rows = spans.get(key, Spans()), extents.get(key)
        dead_letters = side.dead_letters.get(key, {})
        still_open, _ = select_open(dead_letters, own, attempts, resolved.get(key, {}))
        start = starts.get(key, 0) if key in ends else None
        read = claim_range(rows, start, ends.get(key), own.current if has_backfills else ())
        claims[key] = Claim(rows.rows if rows else 0, read, still_open)
    return claims


def _by_partition(state: StreamState | None) -> dict[Partition, int]:
    """Return a state's next offsets by topic and partition."""
    offsets = state.offsets if state else {}
    return {(t, p): offset for t, each in offsets.items() for p, offset in enumerate(each)}


def _pair_columns(left: Side, right: Side) -> tuple[ColumnPair, ...]:
    """Pair the columns; coordinates are values only where both sides have the same ones."""
    is_shared = left.columns == right.columns and len(left.columns) == 1
    layouts = () if is_shared else (*left.columns, *right.columns)
    kept = (
        [f for f in side.schema.fields if not any(layout.owns(f.name) for layout in layouts)]
        for side in (left, right)
    )
    return pair_columns(*kept)


def _plan_join(
    extent_request: ExtentRequest,
    sides: tuple[Side, Side],
    claims: tuple[Claims, Claims],
    judged: Mapping[Partition, OffsetRange],
    pairs: tuple[ColumnPair, ...],
) -> JoinRequest:
    """Add the ranges, the values to compare and the open dead letters to what Spark reads."""
    compared = {pair.name: pair.values for pair in pairs if pair.values is not None}
    if sides[0].partitioned_by == sides[1].partitioned_by:
        ours, theirs = (write_partition_values(side.table) for side in sides)
        compared[PARTITION_VALUES] = (ours, theirs)
    ranges: dict[str, dict[int, tuple[int, int]]] = {}
    for (topic, partition), span in judged.items():
        ranges.setdefault(topic, {})[partition] = (span.start, span.end)
    left, right = (
        read.model_copy(
            update={
                "values": tuple(values[index] for values in compared.values()),
                "dead_letters": plain_runs(
                    {key: claim.dead_letters for key, claim in own.items() if key in judged}
                ),
            }
        )
        for index, (read, own) in enumerate(
            zip((extent_request.left, extent_request.right), claims, strict=True)
        )
    )
    return JoinRequest(
        left=left,
        right=right,
        session_conf=extent_request.session_conf,
        columns=tuple(compared),
        ranges=ranges,
    )


def _report_side(side: Side, extent: TableExtent) -> SideReport:
    commits = (
        entry.committed_at_ms
        for entry in walk_ancestors(side.history, beyond_metadata=False)
        if entry.summary.get("operation") != "replace"
        and entry.summary.get("added-records", "0") != "0"
    )
    return SideReport(
        name=side.name,
        table=side.history.table,
        writer=" and ".join(columns.writer for columns in side.columns),
        snapshot_id=side.history.head,
        rows=extent.rows,
        unplaced=extent.unplaced,
        partitioned_by=side.partitioned_by,
        newest_event_at=_to_datetime(extent.newest_event_ms),
        newest_commit_at=_to_datetime(next(commits, None)),
    )


def _to_datetime(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, tz=UTC)


def _build_result(
    request: CompareRequest,
    sides: tuple[SideReport, SideReport],
    pairs: tuple[ColumnPair, ...],
    reports: tuple[PartitionReport, ...],
) -> Comparison:
    left, right = sides
    layout = [f"column {pair.name}: {pair.note}" for pair in pairs if pair.is_difference]
    if left.partitioned_by != right.partitioned_by:
        specs = (", ".join(side.partitioned_by) or "nothing" for side in sides)
        layout.append("partitioned by " + " on the left, by ".join(specs) + " on the right")
    unplaced = left.unplaced + right.unplaced
    facts = (reports, unplaced, tuple(layout))
    return Comparison(
        left=left,
        right=right,
        verdict=decide_verdict(*facts, rows_only=request.rows_only),
        rows_only=request.rows_only,
        offsets=request.offsets,
        layout=tuple(layout),
        columns=tuple(
            ColumnReport(
                name=pair.name,
                left=pair.left,
                right=pair.right,
                compared=pair.values is not None,
                note=pair.note,
                is_difference=pair.is_difference,
            )
            for pair in pairs
        ),
        partitions=reports,
        text=describe_comparison(*facts, request.offsets),
    )
