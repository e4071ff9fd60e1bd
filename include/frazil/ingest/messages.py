"""The messages that the four steps pass to each other, as versioned JSON."""

from typing import Literal

from pydantic import Field

from frazil.ledger.offsets import Ranges, Runs, unpack_ranges
from frazil.ledger.state import StreamState
from frazil.ledger.usage import Usage
from frazil.messages import Message, MessagePart
from frazil.quality.messages import CutPoints
from frazil.schemas.wire_format import KeyDecode, Part, WireFormat
from frazil.streams.change_events import ChangeEvents
from frazil.streams.routes import Route
from frazil.streams.sections import Convert


class BatchPlan(Message):
    """One planned batch: exact offset ranges on an exact base (protocol.md, PLAN).

    `left_out` are offsets of its ranges that were erased. Records whose schema requires one of the
    `quarantined_columns` become dead letters. `newest_timestamp_ms` is that of earlier batches;
    `reads_all` is true if the batch reads everything that Kafka had when it was planned.
    `decided_bad`, set for replays only, is the number of bad records that the budget check counted.
    """

    stream: str
    table: str
    table_uuid: str
    base_epoch: int
    base_batch: str
    batch_id: str
    ranges: dict[str, dict[int, tuple[int, int]]]
    topic_ids: dict[str, str]
    cluster_id: str
    next_offsets: dict[str, tuple[int, ...]]
    schema_id: int
    spec_id: int
    suite_hash: str
    stream_hash: str
    transform_version: str
    waived: str | None = None
    latest_schemas: dict[Part, int] = {}
    quarantined_columns: tuple[str, ...] = Field((), alias="put_aside")
    left_out: Runs = {}
    decided_bad: int | None = Field(None, exclude_if=lambda bad: bad is None)
    other_writers: Literal["allow", "refuse"] = "allow"
    newest_timestamp_ms: int | None = None
    reads_all: bool = False
    used: Usage | None = None
    began_at_ms: int | None = None
    ended_at_ms: int | None = None

    @property
    def ignores_budget(self) -> bool:
        """Return whether the error budget was waived, or was checked when a replay was planned."""
        return self.waived is not None or self.decided_bad is not None

    @property
    def offset_ranges(self) -> Ranges:
        """Return the ranges as `OffsetRange` values."""
        return unpack_ranges(self.ranges)

    @property
    def state_after(self) -> StreamState:
        """Return the stream's state after this batch is published."""
        return StreamState(
            epoch=self.base_epoch + 1,
            batch=self.batch_id,
            offsets=self.next_offsets,
            topic_ids=self.topic_ids,
            cluster_id=self.cluster_id,
        )


class NothingToRead(Message):
    """Kafka has no new records: no Spark job runs and no snapshot is made."""

    stream: str
    table: str
    epoch: int
    next_offsets: dict[str, tuple[int, ...]]

    @property
    def ends_run(self) -> bool:
        """Return true: no further step follows."""
        return True


class PartitionCount(MessagePart):
    """Numbers of records read from one partition, and of good rows among them."""

    topic: str
    partition: int
    rows_read: int
    rows_good: int


class StageCounters(Message):
    """What a stage counted in the records that it read."""

    rows_read: int
    rows_invalid: int = 0
    rows_routed_elsewhere: int = Field(0, alias="rows_elsewhere")
    rows_quarantined_by_review: int = Field(0, alias="rows_put_aside")
    rows_late: int = 0
    skipped: dict[str, int] = {}
    """Change events that are no change of a row, by name; `rows_routed_elsewhere` counts them."""
    truncates: int = 0
    """Events of a truncated source table that are bad records."""
    partitions: tuple[PartitionCount, ...] = ()
    metrics: dict[str, float | int | str | None] = {}
    min_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None
    schema_ids: tuple[int, ...] = ()
    unnamed_fields: tuple[str, ...] = ()


class Staged(StageCounters):
    """The staged snapshot of a batch, and the counters of its stage."""

    stream: str
    batch_id: str
    attempt: str
    snapshot_id: int | None
    base_head: int
    rows_written: int
    rows_quarantined: int
    rows_skipped: int
    dead_letters_snapshot_id: int | None = None
    already_published: bool = False
    ended_at_ms: int | None = None
    used: Usage | None = None


class ExpectationOutcome(MessagePart):
    """The result of one expectation; `line` describes it for people."""

    type: str
    column: str | None = None
    success: bool
    blocking: bool = True
    line: str = ""


class Verdict(Message):
    """The decision of CHECK on a staged batch."""

    stream: str
    batch_id: str
    attempt: str
    outcome: Literal["passed", "warned", "waived", "empty"]
    suite: str | None = None
    suite_hash: str = ""
    results: tuple[ExpectationOutcome, ...] = ()
    waived: str | None = None
    at_ms: int | None = None
    used: Usage | None = None


class Published(Message):
    """The outcome of PUBLISH; the warning does not concern rows or offsets of the table."""

    stream: str
    table: str
    batch_id: str
    outcome: Literal["PUBLISHED", "ALREADY"]
    snapshot_id: int | None
    epoch: int | None
    rows_written: int
    rows_quarantined: int
    rows_skipped: int
    ranges: dict[str, dict[int, tuple[int, int]]]
    warning: str | None = None

    @property
    def level(self) -> str:
        """Return the level of the log line."""
        return "warn" if self.warning else "info"


class PartitionBy(MessagePart):
    """A partition field: a column, and a transform of the Iceberg specification."""

    column: str
    transform: str


class FastPathSpec(MessagePart):
    """The folder, schema and options with which Spark's Python workers write data files.

    `counted_columns` are the columns that Spark's metrics need. `cut_points` group rows that no
    metric can tell apart; without them Spark counts every row.
    """

    folder: str
    schema_ipc: str
    target_bytes: int
    parquet: dict[str, str | int]
    counted_columns: tuple[str, ...] = ()
    cut_points: CutPoints | None = None
    partitions: tuple[PartitionBy, ...] = ()
    max_partitions: int = 1
    """The most partitions that one task may open files for."""


class RowLimits(MessagePart):
    """What rows need beside values of their columns' types; a row beyond them is a bad record.

    `operation` is the column whose values must be operations of changes. `lowest` has, for numbers
    whose partitions are truncated, the lowest one that has a partition, by column.
    """

    operation: str | None = None
    lowest: dict[str, str] = {}


NO_LIMITS = RowLimits()


class StageRequest(Message):
    """The request of the Spark job `stage_batch`."""

    catalog: str
    table: str
    branch: str
    stream: str
    batch_id: str
    ranges: dict[str, dict[int, tuple[int, int]]]
    left_out: Runs = {}
    kafka_options: dict[str, str]
    convert: Convert
    columns: dict[str, str]
    isolation: Literal["read_committed", "read_uncommitted"]
    metrics: dict[str, str] = {}
    errors: dict[str, str | float | int | None] = {}
    waived: bool = False
    dead_letters_table: str | None = None
    write_options: dict[str, str] = {}
    session_conf: dict[str, str] = {}
    fast_path: FastPathSpec | None = None
    is_flat: bool = True
    wire: WireFormat | None = None
    key: KeyDecode | None = None
    route: Route | None = None
    events: ChangeEvents | None = None
    limits: RowLimits = NO_LIMITS
    late_before_ms: int | None = None
    isolated: Runs = {}
    """Offsets that are not read, because their records make the job fail."""
    isolated_records: int = 0
    """The number of records at these offsets that count as bad records of this stream."""
    given: Runs = {}
    """Offsets that Spark does not read from Kafka; `given_records` has their records."""
    given_records: str = ""
    """Records as `frazil.kafka.record_batches` encodes them."""
    max_bytes_per_second: int | None = None


class StageResult(StageCounters):
    """The counters of the Spark job `stage_batch`."""

    rows_good: int
    rows_dead: int = 0
    files: tuple[str, ...] = ()
    value_schema_ids: tuple[int, ...] = ()
    unknown_ids: dict[Part, tuple[int, ...]] = {}
    unknown_first: str = ""
