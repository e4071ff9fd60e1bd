"""What a recovery is asked for and what it will do: one form for command line, API and DAG."""

from typing import Literal

from pydantic import Field

from frazil.contracts import Message
from frazil.errors import ConfigurationError

Answer = Literal["reingest", "skip", "new-table"]

PLACE_PATTERN = r"^[A-Za-z0-9._-]+:[0-9]{1,9}:[0-9]{1,18}$"

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


def refuse_unclear(request: RecoverRequest) -> None:
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
