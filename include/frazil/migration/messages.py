"""Requests, plans and results of a move to another cluster and of a comparison of two tables."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator

from frazil.ledger.offsets import Runs, describe_partition
from frazil.messages import Message, MessagePart, Report


class MoveRequest(Message):
    """The stream to move; with name and reason, unless it is a dry run.

    `next` are given next offsets on the new cluster, as `topic:partition:offset`.
    """

    stream: str
    old_connection: str | None = None
    next: tuple[str, ...] = ()
    by: str = ""
    reason: str = ""
    dry_run: bool = True


class MovedPartition(Message):
    """One partition's next offset on both clusters, and the evidence that they match."""

    topic: str
    partition: int
    old_next: int
    new_next: int
    evidence: str


class MovePlan(Message):
    """A planned move: the next offset of each partition on the new cluster."""

    stream: str
    table: str
    request: MoveRequest
    old_cluster: str = ""
    new_cluster: str = ""
    partitions: tuple[MovedPartition, ...] = ()
    text: str

    @property
    def ends_run(self) -> bool:
        """Return whether this is a dry run, after which no task has anything to do."""
        return self.request.dry_run


class Moved(Message):
    """The result of a move; `snapshot_id` is the snapshot that recorded it."""

    stream: str
    table: str
    snapshot_id: int | None
    text: str


class CompareRequest(Message):
    """The two sides of a comparison: each a stream, or a table with its namespace."""

    left: Annotated[str, AfterValidator(str.strip)]
    right: Annotated[str, AfterValidator(str.strip)]
    left_columns: str | None = None
    right_columns: str | None = None
    topic: str | None = None
    offsets: tuple[str, ...] = ()
    connection: str = "iceberg_default"
    rows_only: bool = False


class ComparedTable(MessagePart):
    """One side of a comparison as Spark reads it; all but `snapshot_id` and dead letters are SQL.

    `table` is the quoted identifier, `values` have the same order and types on both sides.
    """

    table: str
    snapshot_id: int | None
    topic: str
    partition: str
    offset: str
    timestamp_ms: str
    values: tuple[str, ...] = ()
    dead_letters: Runs = {}


class ExtentRequest(Message):
    """Request of the job `count_offsets`: count the rows of both tables by partition."""

    left: ComparedTable
    right: ComparedTable
    session_conf: dict[str, str] = {}


class PartitionExtent(MessagePart):
    """The rows of one partition in one table, with their first and last offset."""

    topic: str
    partition: int
    rows: int
    first: int
    last: int


class TableExtent(MessagePart):
    """All rows of one table, by partition.

    `unplaced` rows have no partition or no offset, those `without_topic` have both but no topic.
    """

    partitions: tuple[PartitionExtent, ...] = ()
    unplaced: int = 0
    without_topic: int = 0
    newest_event_ms: int | None = None

    @property
    def rows(self) -> int:
        """Return the number of all rows."""
        return sum(each.rows for each in self.partitions) + self.unplaced + self.without_topic


class Extents(Message):
    """Result of the job `count_offsets`."""

    left: TableExtent
    right: TableExtent


class JoinRequest(ExtentRequest):
    """Request of the job `compare_tables`: compare both tables' rows in these ranges of offsets.

    With `in_ranges_only` rows outside the ranges are not counted as ahead or before.
    """

    columns: tuple[str, ...]
    ranges: dict[str, dict[int, tuple[int, int]]]
    in_ranges_only: bool = False


class Samples(Report):
    """At most twenty offsets of each kind."""

    missing: tuple[int, ...] = ()
    extra: tuple[int, ...] = ()
    doubled_left: tuple[int, ...] = ()
    doubled_right: tuple[int, ...] = ()
    changed: tuple[int, ...] = ()


class PartitionReport(Report):
    """One partition; `judged` is the half-open range of offsets that both sides have read.

    `missing` records are only on the left, `extra` ones only on the right; `…_dead_letters`
    counts those that are dead letters on the other side. `matched` records are once on both sides,
    `changed` of them with other values. `…_ahead` rows come after the judged range, `…_before`
    rows before it. `checksums` of the matched rows are by column, left and right.
    """

    topic: str
    partition: int
    judged: tuple[int, int] | None
    left_rows: int = 0
    right_rows: int = 0
    matched: int = 0
    missing: int = 0
    extra: int = 0
    doubled_left: int = 0
    doubled_right: int = 0
    missing_dead_letters: int = 0
    extra_dead_letters: int = 0
    left_before: int = 0
    left_ahead: int = 0
    right_before: int = 0
    right_ahead: int = 0
    changed: int = 0
    changed_columns: tuple[str, ...] = ()
    checksums: dict[str, tuple[str, str]] = {}
    samples: Samples = Samples()

    @property
    def is_same(self) -> bool:
        """Return whether every judged record is the same on both sides."""
        return not any(
            (self.missing, self.extra, self.doubled_left, self.doubled_right, self.changed)
        )


class JoinResult(Message):
    """Result of the job `compare_tables`: the partitions that have rows."""

    partitions: tuple[PartitionReport, ...]


class ColumnReport(Report):
    """One column name; a type is null where the side lacks the column."""

    name: str
    left: str | None
    right: str | None
    compared: bool
    note: str
    is_difference: bool


class SideReport(Report):
    """One side: its snapshot, the writer whose offset columns it has, and its freshness.

    `unplaced` rows have no partition or no offset and are not judged.
    """

    name: str
    table: str
    writer: str
    snapshot_id: int | None
    rows: int
    unplaced: int
    partitioned_by: tuple[str, ...]
    newest_event_at: datetime | None
    newest_commit_at: datetime | None


Verdict = Literal["equal", "different", "nothing in common"]


class Comparison(Report):
    """The result of a comparison.

    `layout` lists differences of columns and partitioning; with `rows_only` they do not affect the
    verdict. `offsets` are the requested ranges; without any, all that both have read is judged.
    """

    left: SideReport
    right: SideReport
    verdict: Verdict
    rows_only: bool
    offsets: tuple[str, ...]
    layout: tuple[str, ...]
    columns: tuple[ColumnReport, ...]
    partitions: tuple[PartitionReport, ...]
    text: str

    @property
    def findings(self) -> tuple[str, ...]:
        """List the differences: at most twenty offsets of each kind, then the layout."""
        offsets = (
            f"{describe_partition(report.topic, report.partition)}: {_name_kind(kind)}: "
            + ", ".join(str(offset) for offset in found)
            for report in self.partitions
            for kind, found in report.samples
            if found
        )
        return (*offsets, *self.layout)


def _name_kind(kind: str) -> str:
    """Name a kind of samples: `missing`, `duplicates on the left`."""
    return kind.replace("_", " on the ").replace("doubled", "duplicates")
