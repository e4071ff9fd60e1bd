"""What a move to another cluster is asked for, what it comes to, and how it ended."""

from datetime import datetime
from typing import Literal

from frazil.messages import Message, Report


class MoveRequest(Message):
    """Where to look; a person's name and reason as soon as it is no dry run.

    `next` are offsets on the new cluster, as `topic:partition:offset`, where a person knows them.
    """

    stream: str
    old_connection: str | None = None
    next: tuple[str, ...] = ()
    by: str = ""
    reason: str = ""
    dry_run: bool = True


class MovedPartition(Message):
    """One partition's next offset on both clusters, and what shows that they are one."""

    topic: str
    partition: int
    old_next: int
    new_next: int
    evidence: str


class MovePlan(Message):
    """A move that was looked at, shown before it is done."""

    stream: str
    table: str
    request: MoveRequest
    old_cluster: str = ""
    new_cluster: str = ""
    partitions: tuple[MovedPartition, ...] = ()
    text: str

    @property
    def is_last_word(self) -> bool:
        """Say that a dry run ends here."""
        return self.request.dry_run


class Moved(Message):
    """How a move ended."""

    stream: str
    table: str
    snapshot_id: int | None
    text: str


class CompareRequest(Message):
    """What is compared: a stream's name, or a table's with its namespace, on each side."""

    left: str
    right: str
    left_columns: str | None = None
    right_columns: str | None = None
    topic: str | None = None
    offsets: tuple[str, ...] = ()
    connection: str = "iceberg_default"
    rows_only: bool = False


class Samples(Report):
    """At most twenty offsets of each kind."""

    missing: tuple[int, ...] = ()
    extra: tuple[int, ...] = ()
    doubled_left: tuple[int, ...] = ()
    doubled_right: tuple[int, ...] = ()
    changed: tuple[int, ...] = ()


class PartitionReport(Report):
    """One partition; `judged` is the half-open range that both sides claim to have read.

    `missing` records are on the left alone, `extra` ones on the right alone; of them so many are
    dead letters on the other side. `matched` ones are there once on both sides, `changed` of them
    with other values. `…_ahead` rows lie behind what is judged, `…_before` rows before it.
    `checksums` are of the matched rows, by column, left and right.
    """

    topic: str
    partition: int
    judged: tuple[int, int] | None
    left_rows: int
    right_rows: int
    matched: int
    missing: int
    extra: int
    doubled_left: int
    doubled_right: int
    missing_dead_letters: int
    extra_dead_letters: int
    left_before: int
    left_ahead: int
    right_before: int
    right_ahead: int
    changed: int = 0
    changed_columns: tuple[str, ...] = ()
    checksums: dict[str, tuple[str, str]] = {}
    samples: Samples = Samples()

    @property
    def is_same(self) -> bool:
        """Say whether every judged record is the same on both sides."""
        return not any(
            (self.missing, self.extra, self.doubled_left, self.doubled_right, self.changed)
        )


class ColumnReport(Report):
    """One column name; a type is null where the side lacks the column."""

    name: str
    left: str | None
    right: str | None
    compared: bool
    note: str
    is_difference: bool


class SideReport(Report):
    """One side: what was read, where its coordinates are, and how fresh it is.

    `unplaced` rows have no coordinate and are not judged.
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
    """Two tables, offset by offset.

    `layout` lists differences of columns and partitioning that a reader meets. With `rows_only`
    they are shown and do not decide. `offsets` are what was asked for; without any, all that both
    have read is judged.
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
        """List what differs: at most twenty offsets of each kind, then columns and layout."""
        offsets = (
            f"{report.topic}-{report.partition}: {kind.replace('_', ' on the ')}: "
            + ", ".join(str(offset) for offset in found)
            for report in self.partitions
            for kind, found in report.samples
            if found
        )
        return (*offsets, *self.layout)
