"""What a replay is asked for, what it would change, and how it ended."""

from typing import Literal

from frazil.contracts import BatchPlan, Message


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
