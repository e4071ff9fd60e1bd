"""Requests, plans and results of recovery, replay, backfill and redrive."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from frazil.errors import ConfigurationError
from frazil.ingest.messages import BatchPlan, StageRequest, StageResult
from frazil.ledger.keys import DEAD_LETTER_REASONS
from frazil.ledger.offsets import (
    OffsetRange,
    Runs,
    count_offsets,
    describe_ranges,
    split_ranges,
    unpack_ranges,
)
from frazil.messages import LaterCount, Message, count_noun, read_reason
from frazil.streams.timestamps import parse_instant

HaltResolution = Literal["reingest", "skip", "new-table"]
PlainRanges = dict[str, dict[int, tuple[int, int]]]

APPROVAL_VARIABLE = "FRAZIL_APPROVAL_ROWS"
"""Environment variable with the site's own limit."""

APPROVAL_ROWS = 100_000
"""A rollback of more rows needs a second person's approval."""
Order = Literal["oldest", "newest"]


class RecoverRequest(Message):
    """Exactly one target or resolution of a halt; author and reason, unless it is a dry run."""

    stream: str
    to_snapshot: int | None = None
    to_time: str | None = None
    to_offset: str | None = None
    answer: HaltResolution | None = None
    accept_gap: bool = False
    by: str = ""
    reason: str = ""
    dry_run: bool = True
    approval_rows: int | None = Field(None, ge=0)
    """A limit stricter than the site's."""

    @property
    def target(self) -> str:
        """Return the target as it was written."""
        if self.to_snapshot is not None:
            return f"snapshot {self.to_snapshot}"
        return f"time {self.to_time}" if self.to_time else f"before offset {self.to_offset}"


class RecoveryPlan(Message):
    """Preview of a recovery; `target_id` is None for the resolution of a halt.

    `rows_removed` and `snapshots_removed` are removed from main. `again` is what each stream reads
    again, `lost` the part of it that Kafka no longer has, `windows_lost` the number of backfilled
    windows that cannot be filled again. `erased_rows` were erased after the target and come back.
    `rows_removed_earlier` were removed by this table's rollbacks of the last day that no second
    person approved. None is an unknown number.
    """

    stream: str
    table: str
    request: RecoverRequest
    head: int | None
    target_id: int | None = None
    target_at: str | None = None
    rows_removed: int | None = Field(None, alias="rows_going")
    snapshots_removed: tuple[str, ...] = Field((), alias="snapshots_going")
    rows_removed_earlier: int | None = Field(0, exclude_if=lambda rows: rows == 0)
    foreign_snapshots: int = 0
    erased_rows: int = 0
    again: dict[str, PlainRanges] = Field(default_factory=dict)
    lost: dict[str, PlainRanges] = Field(default_factory=dict)
    windows_lost: int = 0
    approval_rows: int = APPROVAL_ROWS
    text: str

    @property
    def ends_run(self) -> bool:
        """Return whether this is a dry run: no task follows."""
        return self.request.dry_run

    @property
    def needs_approval(self) -> bool:
        """Return whether a second person must approve.

        Required for many rows, including those of earlier rollbacks, for lost records or changes of
        other writers, and for erased rows that come back. `skip` always loses records.
        """
        removed, earlier = self.rows_removed, self.rows_removed_earlier
        is_unknown = removed is None or (removed > 0 and earlier is None)
        is_many = (removed or 0) > 0 and (removed or 0) + (earlier or 0) > self.approval_rows
        is_large = self.target_id is not None and (is_unknown or is_many)
        undone = self.foreign_snapshots + self.erased_rows
        is_loss = bool(self.lost) or self.request.answer == "skip"
        return is_large or is_loss or self.windows_lost + undone > 0


class Recovered(Message):
    """Outcome of a recovery."""

    stream: str
    table: str
    kind: str
    outcome: Literal["RECORDED", "ALREADY"]
    snapshot_id: int | None
    text: str


class ReplayRequest(Message):
    """What to replay: offsets as `topic:partition:start-end` (end exclusive), or instants."""

    stream: str
    offsets: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    dry_run: bool = True


class CompareRangeRequest(StageRequest):
    """The request of the Spark job `compare_range`.

    With `samples` the fields of `_kafka` are compared too, and up to that many differing rows are
    listed. `older`: path of a column → offsets whose rows were written before the column existed;
    null is also correct there.
    """

    samples: int = 0
    older: dict[str, Runs] = {}


class Differences(Message):
    """Rows of a range in the table compared with the records that Kafka delivers today.

    `rows_read` records are delivered, `rows_good` of them decode. rows_now = same + changed +
    now_bad + undelivered; rows_good = same + changed + missing. Of the rows that are `now_bad`,
    `now_invalid` are not decodable, `now_set_aside` are so by schema review, and `now_elsewhere`
    belong to other streams of a route, as `rows_elsewhere` of the records do. If samples were
    requested, `differing` has the first rows that changed or no longer decode, `columns` what
    differs in them.
    """

    rows_now: int = 0
    rows_read: int = 0
    rows_good: int = 0
    same: int = 0
    changed: int = 0
    missing: int = 0
    now_bad: int = 0
    undelivered: int = 0
    now_invalid: LaterCount = 0
    now_set_aside: LaterCount = 0
    now_elsewhere: LaterCount = 0
    rows_elsewhere: LaterCount = 0
    truncates: LaterCount = 0
    differing: tuple[tuple[str, int, int], ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Describe the comparison in one line."""
        return (
            f"{count_noun(self.rows_now, 'row')} in the table, "
            f"{count_noun(self.rows_read, 'record')} in Kafka ({self.rows_good:,} good): "
            f"{self.same:,} unchanged, {self.changed:,} changed, {self.missing:,} added, "
            f"{self.now_bad:,} removed (no longer decodable)"
        )


class ValueAudit(Message):
    """Rows whose record Kafka still has, compared with what the record decodes to today.

    `coordinates` are the first rows that differ, at most twenty; no value is reported.
    """

    rows: int
    same: int
    changed: int
    undecodable: int
    columns: tuple[str, ...] = ()
    coordinates: tuple[tuple[str, int, int], ...] = ()
    text: str

    @property
    def holds(self) -> bool:
        """Return whether every compared row is equal."""
        return self.changed + self.undecodable == 0


class ReplayPlan(Message):
    """A planned replay: its batch with ranges, rules and id, and what it would change."""

    stream: str
    table: str
    dry_run: bool
    batch: BatchPlan
    differences: Differences
    text: str

    @property
    def ends_run(self) -> bool:
        """Return whether this is a dry run: no task follows."""
        return self.dry_run


class Replayed(Message):
    """Outcome of a replay; `rows_deleted` are the rows that it replaced."""

    stream: str
    table: str
    batch_id: str
    outcome: Literal["REPLAYED", "ALREADY"]
    snapshot_id: int
    rows_written: int
    rows_deleted: int
    rows_quarantined: int
    rows_skipped: int
    ranges: dict[str, dict[int, tuple[int, int]]]

    @property
    def text(self) -> str:
        """Describe the outcome in one line."""
        return (
            f"{self.outcome}: {count_noun(self.rows_written, 'row')} written, replacing "
            f"{self.rows_deleted:,}; {count_noun(self.rows_quarantined, 'dead letter')}, "
            f"{self.rows_skipped:,} skipped; snapshot {self.snapshot_id} of {self.table}, the "
            "recovery point is unchanged"
        )


class BackfillRequest(Message):
    """What to read below a stream's beginning: offsets, instants, or all that Kafka keeps.

    `window_records` is the size of a window, by default the stream's `batch.max_records`;
    `max_records` limits the whole backfill, and the next one continues from there.
    """

    stream: str
    offsets: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    window_records: int | None = Field(default=None, ge=1)
    max_records: int | None = Field(default=None, ge=1)
    order: Order = "oldest"
    dry_run: bool = True


class Window(Message):
    """One window of a backfill, staged, checked and published on its own."""

    stream: str
    number: int
    count: int
    ranges: dict[str, dict[int, tuple[int, int]]]

    @property
    def text(self) -> str:
        """Describe the window in one line."""
        return (
            f"window {self.number} of {self.count}: {describe_ranges(unpack_ranges(self.ranges))}"
        )


class BackfillPlan(Message):
    """Windows in the order of execution; `filled` offsets are there, `left` remain for later."""

    stream: str
    table: str
    dry_run: bool
    windows: tuple[Window, ...]
    filled: int
    left: int
    text: str

    @property
    def ends_run(self) -> bool:
        """Return whether no task follows: a dry run, or nothing to fill."""
        return self.dry_run or not self.windows


class Filled(Message):
    """Outcome of a window."""

    stream: str
    table: str
    number: int
    count: int
    outcome: Literal["FILLED", "ALREADY"]
    snapshot_id: int | None
    rows_written: int = 0
    rows_quarantined: int = 0
    rows_skipped: int = 0
    ranges: dict[str, dict[int, tuple[int, int]]]

    @property
    def text(self) -> str:
        """Describe the outcome in one line."""
        ranges = unpack_ranges(self.ranges)
        window = f"window {self.number} of {self.count}, {describe_ranges(ranges)}"
        if self.snapshot_id is None:
            offsets = count_noun(count_offsets(ranges), "offset")
            return f"ALREADY: {window}: {offsets}, all already in the table"
        return (
            f"{self.outcome}: {window}: {count_noun(self.rows_written, 'row')} written, "
            f"{count_noun(self.rows_quarantined, 'dead letter')}, {self.rows_skipped:,} skipped; "
            f"snapshot {self.snapshot_id}"
        )


class DeadLetterChoice(Message):
    """Which open dead letters of a stream to replay; an empty field chooses all.

    `since` (inclusive) and `until` (exclusive) are instants of quarantine. `offsets` are half-open
    ranges `topic:partition:start-end`.
    """

    stream: str = Field(min_length=1)
    reasons: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    offsets: tuple[str, ...] = ()
    schema_ids: tuple[int, ...] = ()
    dry_run: bool = True

    @field_validator("reasons", "offsets", "schema_ids", mode="before")
    @classmethod
    def _read_null_as_empty(cls, value: object) -> object:
        return () if value is None else value

    @field_validator("reasons")
    @classmethod
    def _validate_reasons(cls, reasons: tuple[str, ...]) -> tuple[str, ...]:
        for reason in reasons:
            if reason not in DEAD_LETTER_REASONS:
                message = (
                    f"{reason!r} is not a reason; valid reasons: {', '.join(DEAD_LETTER_REASONS)}"
                )
                raise ValueError(message)
        return reasons

    @field_validator("since", "until")
    @classmethod
    def _validate_instants(cls, instant: str | None) -> str | None:
        return parse_instant(instant) if instant else None

    @field_validator("offsets")
    @classmethod
    def _validate_offsets(cls, written: tuple[str, ...]) -> tuple[str, ...]:
        for text in written:
            try:
                list(split_ranges(text))
            except ConfigurationError as error:
                message = f"{error.facts}; {error.next_step}"
                raise ValueError(message) from error
        return written

    @model_validator(mode="after")
    def _validate_span(self) -> "DeadLetterChoice":
        if self.since and self.until and self.since_at >= self.until_at:  # type: ignore[operator]
            message = f"since {self.since} is not before until {self.until}"
            raise ValueError(message)
        return self

    @property
    def since_at(self) -> datetime | None:
        """Return `since` as an instant."""
        return datetime.fromisoformat(self.since) if self.since else None

    @property
    def until_at(self) -> datetime | None:
        """Return `until` as an instant."""
        return datetime.fromisoformat(self.until) if self.until else None

    @property
    def ranges(self) -> tuple[tuple[str, int, OffsetRange], ...]:
        """Return topic, partition and offsets of each range."""
        return tuple(each for text in self.offsets for each in split_ranges(text))


def parse_choice(given: Mapping[str, object]) -> DeadLetterChoice:
    """Validate the fields of a form or a command line.

    Raises:
        ConfigurationError: names every invalid field and its problem.
    """
    try:
        return DeadLetterChoice.model_validate(given)
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, each['loc']))}: {read_reason(each)}".removeprefix(": ")
            for each in error.errors()
        ]
        raise ConfigurationError(
            f"replay of dead letters: {'; '.join(lines)}",
            "`frazil replay-dead-letters --help` shows every option with an example",
        ) from error


class RedriveRequest(StageRequest):
    """Request of the Spark job `redrive_letters`: a stage that reads dead letters, not Kafka.

    `dead_letters` are their coordinates by attempt. A dry run decodes them and writes nothing.
    """

    dead_letters: dict[str, Runs]
    dry_run: bool = True


class RedriveResult(StageResult):
    """Counts of `redrive_letters`; `failing` are dead letters that still fail, by reason."""

    failing: dict[str, int] = Field(default_factory=dict)


class MarkRequest(Message):
    """Request of the Spark job `mark_letters`: redrive id → attempt → coordinates to mark."""

    catalog: str
    table: str
    marks: dict[str, dict[str, Runs]]
    session_conf: dict[str, str] = Field(default_factory=dict)


class MarkResult(Message):
    """Result of `mark_letters`."""

    table: str


class Redriven(Message):
    """One snapshot that restored dead letters as rows."""

    redrive_id: str
    outcome: Literal["PUBLISHED", "ALREADY"]
    snapshot_id: int
    rows_written: int


class RedriveReport(Message):
    """Result of a replay of dead letters, or its preview.

    Of the chosen `dead_letters`, `rows` decode with the present stream file; `failing` do not, by
    reason. `marked` is how many were marked as resolved in the dead-letter table.
    """

    stream: str
    table: str
    dry_run: bool
    dead_letters: int = Field(alias="letters")
    rows: int
    failing: dict[str, int] = Field(default_factory=dict)
    redrives: tuple[Redriven, ...] = ()
    marked: int = 0

    @property
    def text(self) -> str:
        """Describe the result in one line."""
        counts = ", ".join(f"{n:,} {reason}" for reason, n in sorted(self.failing.items()))
        failing = f"; still failing: {counts}" if counts else ""
        total = count_noun(self.dead_letters, "dead letter")
        if self.dry_run:
            return (
                f"dry run: {self.rows:,} of {total} would be restored into {self.table}{failing}; "
                "nothing was written"
            )
        ids = ", ".join(str(redriven.snapshot_id) for redriven in self.redrives)
        snapshots = f" in snapshot {ids}" if ids else ""
        return f"{self.rows:,} of {total} restored into {self.table}{snapshots}{failing}"
