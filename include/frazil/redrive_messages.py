"""What a redrive hands over: the choice of letters, jobs for Spark, the answer."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from frazil.contracts import Message, StageRequest, StageResult
from frazil.errors import ConfigurationError
from frazil.instants import parse_instant
from frazil.keys import LETTER_REASONS
from frazil.offsets import OffsetRange, Runs
from frazil.range_texts import parse_range


class LetterChoice(Message):
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
            if reason not in LETTER_REASONS:
                message = f"{reason!r} is no reason; there are {', '.join(LETTER_REASONS)}"
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
    def _refuse_an_end_before_the_start(self) -> "LetterChoice":
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


def parse_choice(given: Mapping[str, object]) -> LetterChoice:
    """Check what a form or a command line gave.

    Raises:
        ConfigurationError: each wrong field with what is wrong with it; nothing was tried.
    """
    try:
        return LetterChoice.model_validate(given)
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
