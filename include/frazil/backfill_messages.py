"""What a backfill is asked for, which windows it has, and how each of them ended."""

from typing import Literal

from pydantic import Field

from frazil.contracts import Message
from frazil.offsets import count_offsets, describe_ranges, unpack_ranges

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
