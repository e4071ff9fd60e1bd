"""What a recovery is asked for and what it will do: one form for command line, API and DAG."""

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
    parse_range,
    unpack_ranges,
)
from frazil.messages import Message
from frazil.streams.timestamps import parse_instant

Answer = Literal["reingest", "skip", "new-table"]


PlainRanges = dict[str, dict[int, tuple[int, int]]]


APPROVAL_VARIABLE = "FRAZIL_APPROVAL_ROWS"


APPROVAL_ROWS = 100_000
"""So many rows may go without a second person's word, unless the site says otherwise."""


class RecoverRequest(Message):
    """Exactly one of four ways; a person's name and reason as soon as it is no dry run."""

    stream: str
    to_snapshot: int | None = None
    to_time: str | None = None
    to_offset: str | None = None
    answer: Answer | None = None
    accept_gap: bool = False
    by: str = ""
    reason: str = ""
    dry_run: bool = True
    approval_rows: int | None = Field(None, ge=0)
    """Fewer rows than the site's limit, where who asks wants to be stricter."""

    @property
    def target(self) -> str:
        """Write what was asked for, as it was said."""
        if self.to_snapshot is not None:
            return f"snapshot {self.to_snapshot}"
        return f"time {self.to_time}" if self.to_time else f"before offset {self.to_offset}"


class RecoveryPlan(Message):
    """What a recovery does, shown before it is done; `target_id` is None for an answer to a halt.

    `again` is what each stream reads again, `lost` what of it Kafka no longer has. `erased_rows`
    were erased after the target and come back.
    """

    stream: str
    table: str
    request: RecoverRequest
    head: int | None
    target_id: int | None = None
    target_at: str | None = None
    rows_going: int | None = None
    snapshots_going: tuple[str, ...] = ()
    foreign_snapshots: int = 0
    erased_rows: int = 0
    again: dict[str, PlainRanges] = Field(default_factory=dict)
    lost: dict[str, PlainRanges] = Field(default_factory=dict)
    windows_lost: int = 0
    approval_rows: int = APPROVAL_ROWS
    text: str

    @property
    def is_last_word(self) -> bool:
        """Say that a dry run ends here."""
        return self.request.dry_run

    @property
    def needs_approval(self) -> bool:
        """Say whether a second person must agree: many rows, lost, erased or foreign ones.

        What an answer leaves out is lost for good too.
        """
        is_large = self.target_id is not None and (
            self.rows_going is None or self.rows_going > self.approval_rows
        )
        undone = self.foreign_snapshots + self.erased_rows
        is_loss = bool(self.lost) or self.request.answer == "skip"
        return is_large or is_loss or self.windows_lost + undone > 0


class Recovered(Message):
    """How a recovery ended."""

    stream: str
    table: str
    kind: str
    outcome: Literal["RECORDED", "ALREADY"]
    snapshot_id: int | None
    text: str


def validate_one_target(request: RecoverRequest) -> None:
    """Refuse a request that names no way back, or several.

    Raises:
        ConfigurationError: nothing was looked at.
    """
    ways = {
        "--to-snapshot": request.to_snapshot is not None,
        "--to-time": bool(request.to_time),
        "--to-offset": bool(request.to_offset),
        "--reingest": request.answer == "reingest",
        "--skip": request.answer == "skip",
        "--new-table": request.answer == "new-table",
    }
    given = [way for way, is_given in ways.items() if is_given]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise ConfigurationError(
            f"recover of stream {request.stream} needs exactly one of {', '.join(ways)}; given: "
            f"{found}",
            f"`frazil snapshots {request.stream}` lists snapshots to go back to; `frazil status "
            f"{request.stream}` says which answer a halt needs",
        )
    if request.accept_gap and request.answer is not None:
        raise ConfigurationError(
            f"--accept-gap fits a way back to a snapshot, not {given[0]}",
            f"`frazil accept-gap {request.stream}` records a gap on its own",
        )


class ReplayRequest(Message):
    """Offsets, as `topic:partition:start-end` with the end exclusive, or instants."""

    stream: str
    offsets: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    dry_run: bool = True


class Differences(Message):
    """What the table has of a range and what Kafka's records would be today, in rows.

    rows_now = same + changed + now_bad + undelivered; rows_good = same + changed + missing.
    """

    rows_now: int = 0
    rows_read: int = 0
    rows_good: int = 0
    same: int = 0
    changed: int = 0
    missing: int = 0
    now_bad: int = 0
    undelivered: int = 0

    @property
    def text(self) -> str:
        """Say it for people."""
        return (
            f"the table has {self.rows_now} rows of it, Kafka delivers {self.rows_read} records, "
            f"{self.rows_good} of them good: {self.same} rows stay as they are, {self.changed} "
            f"change, {self.missing} are missing and come, {self.now_bad} go because their records "
            "no longer decode"
        )


class ReplayPlan(Message):
    """A replay that was looked at: its ranges, rules and own id, and what it would change."""

    stream: str
    table: str
    dry_run: bool
    batch: BatchPlan
    differences: Differences
    text: str

    @property
    def is_last_word(self) -> bool:
        """Say that a dry run ends here."""
        return self.dry_run


class Replayed(Message):
    """How a replay ended; `rows_deleted` were there before and gave way."""

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
        """Say it for people."""
        return (
            f"{self.outcome}: {self.rows_written} rows in place of {self.rows_deleted}, "
            f"{self.rows_quarantined} dead letters, {self.rows_skipped} skipped, as snapshot "
            f"{self.snapshot_id} of {self.table}; the recovery point did not move"
        )


Order = Literal["oldest", "newest"]


class BackfillRequest(Message):
    """What lies below a stream's beginning: by offsets, by instants, or all that Kafka keeps.

    `window_records` is the stream's own `batch.max_records` where it is left out; `max_records`
    ends the whole backfill after so many, and the next one goes on from there.
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
    """One portion of a backfill: it is staged, judged and published on its own."""

    stream: str
    number: int
    count: int
    ranges: dict[str, dict[int, tuple[int, int]]]

    @property
    def text(self) -> str:
        """Say it for people."""
        return (
            f"window {self.number} of {self.count}: {describe_ranges(unpack_ranges(self.ranges))}"
        )


class BackfillPlan(Message):
    """The windows in the order in which they are filled; `left` offsets remain for another run."""

    stream: str
    table: str
    dry_run: bool
    windows: tuple[Window, ...]
    filled: int
    left: int
    text: str

    @property
    def is_last_word(self) -> bool:
        """Say that a dry run ends here, and so does a run with nothing to fill."""
        return self.dry_run or not self.windows


class Filled(Message):
    """How a window ended."""

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
        """Say it for people."""
        ranges = unpack_ranges(self.ranges)
        place = f"window {self.number} of {self.count}, {describe_ranges(ranges)}"
        if self.snapshot_id is None:
            return f"ALREADY: {place}: all of its {count_offsets(ranges)} offsets are in the table"
        return (
            f"{self.outcome}: {place}: {self.rows_written} rows, {self.rows_quarantined} dead "
            f"letters, {self.rows_skipped} skipped, as snapshot {self.snapshot_id}"
        )


class DeadLetterChoice(Message):
    """Which letters of a stream to bring back; what is left empty chooses all.

    `since` (inclusive) and `until` (exclusive) are instants at which letters were quarantined.
    `offsets` are ranges `topic:partition:start-end`, half-open.
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
    def _take_null_as_none(cls, value: object) -> object:
        return () if value is None else value

    @field_validator("reasons")
    @classmethod
    def _refuse_strange_reasons(cls, reasons: tuple[str, ...]) -> tuple[str, ...]:
        for reason in reasons:
            if reason not in DEAD_LETTER_REASONS:
                message = f"{reason!r} is no reason; there are {', '.join(DEAD_LETTER_REASONS)}"
                raise ValueError(message)
        return reasons

    @field_validator("since", "until")
    @classmethod
    def _refuse_vague_instants(cls, instant: str | None) -> str | None:
        return parse_instant(instant) if instant else None

    @field_validator("offsets")
    @classmethod
    def _refuse_broken_ranges(cls, written: tuple[str, ...]) -> tuple[str, ...]:
        for text in written:
            try:
                parse_range(text)
            except ConfigurationError as error:
                message = f"{error.facts}; {error.next_step}"
                raise ValueError(message) from error
        return written

    @model_validator(mode="after")
    def _refuse_an_end_before_the_start(self) -> "DeadLetterChoice":
        if self.since and self.until and self.since_at >= self.until_at:  # type: ignore[operator]
            message = f"since {self.since} is not before until {self.until}"
            raise ValueError(message)
        return self

    @property
    def since_at(self) -> datetime | None:
        """Give the first instant."""
        return datetime.fromisoformat(self.since) if self.since else None

    @property
    def until_at(self) -> datetime | None:
        """Give the instant behind the last."""
        return datetime.fromisoformat(self.until) if self.until else None

    @property
    def ranges(self) -> tuple[tuple[str, int, OffsetRange], ...]:
        """Give topic, partition and offsets of each range."""
        return tuple(parse_range(text) for text in self.offsets)


def parse_choice(given: Mapping[str, object]) -> DeadLetterChoice:
    """Check what a form or a command line gave.

    Raises:
        ConfigurationError: each wrong field with what is wrong with it; nothing was tried.
    """
    try:
        return DeadLetterChoice.model_validate(given)
    except ValidationError as error:
        lines = [
            f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}".removeprefix(": ")
            for each in error.errors()
        ]
        raise ConfigurationError(
            f"replay of dead letters: {'; '.join(lines)}",
            "`frazil replay-dead-letters --help` shows every option with an example",
        ) from error


class RedriveRequest(StageRequest):
    """What the Spark job `redrive_letters` is asked: a stage that reads letters instead of Kafka.

    `letters` names each by attempt and coordinate. A dry run decodes and writes nothing.
    """

    letters: dict[str, Runs]
    dry_run: bool = True


class RedriveResult(StageResult):
    """What `redrive_letters` counted; `failing` are letters that still fail, by today's reason."""

    failing: dict[str, int] = Field(default_factory=dict)


class MarkRequest(Message):
    """What the Spark job `mark_letters` is asked: redrive id → attempt → coordinates."""

    catalog: str
    table: str
    marks: dict[str, dict[str, Runs]]
    session_conf: dict[str, str] = Field(default_factory=dict)


class MarkResult(Message):
    """That `mark_letters` ended."""

    table: str


class Redriven(Message):
    """One snapshot that brought letters back."""

    redrive_id: str
    outcome: Literal["PUBLISHED", "ALREADY"]
    snapshot_id: int
    rows_written: int


class RedriveAnswer(Message):
    """What a replay of dead letters did, or in a dry run would do.

    Of `letters` chosen, `rows` decode by today's stream file; `failing` still fail, by reason.
    """

    stream: str
    table: str
    dry_run: bool
    letters: int
    rows: int
    failing: dict[str, int] = Field(default_factory=dict)
    redrives: tuple[Redriven, ...] = ()
    marked: int = 0

    @property
    def text(self) -> str:
        """Say it for people."""
        fails = ", ".join(f"{count} {reason}" for reason, count in sorted(self.failing.items()))
        still = f"; still failing: {fails}" if fails else ""
        if self.dry_run:
            return (
                f"dry run: of {self.letters} letters {self.rows} would come back into "
                f"{self.table}{still}; nothing was written"
            )
        ids = ", ".join(str(redriven.snapshot_id) for redriven in self.redrives)
        where = f" as snapshot {ids}" if ids else ""
        return f"of {self.letters} letters {self.rows} came back into {self.table}{where}{still}"
