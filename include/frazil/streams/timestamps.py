"""Instants, durations, sizes, offsets and schedules as users write and read them, within limits."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache
from typing import Annotated
from zlib import crc32

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from frazil.errors import ConfigurationError
from frazil.messages import name_field

CRON_FIELDS = 5
CONTINUOUS = "continuous"
EXAMPLE = "2026-01-31T00:00:00Z"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def validate_not_boolean(given: object) -> object:
    """Return what is given for a number; a boolean would be read as 1 or 0.

    Raises:
        ValueError: it is a boolean.
    """
    if isinstance(given, bool):
        message = "Input should be a number, not a boolean"
        raise ValueError(message)  # noqa: TRY004 - pydantic reports no other errors
    return given


Number = Annotated[float, BeforeValidator(validate_not_boolean)]
Whole = Annotated[int, BeforeValidator(validate_not_boolean)]
Count = Annotated[Whole, Field(le=2**63 - 1)]
Megabytes = Annotated[Whole, Field(le=1_000_000)]
Seconds = Annotated[Whole, Field(le=1_000_000_000)]
Hours = Annotated[Whole, Field(le=876_000)]
"""A century, as of days: an instant that long ago is still one that every reader can write."""
Days = Annotated[Whole, Field(le=36_500)]


def _keep_partitions(given: object, read: ValidatorFunctionWrapHandler) -> dict[int, int]:
    """Return offsets by partition, and refuse two keys for one, such as 8 and the text 08."""
    offsets: dict[int, int] = read(given)
    if isinstance(given, Mapping) and len(offsets) < len(given):
        message = "two of the keys are the same partition; write partitions as plain numbers"
        raise ValueError(message)
    return offsets


_Natural = Annotated[Count, Field(ge=0)]
Offsets = Annotated[dict[_Natural, _Natural], WrapValidator(_keep_partitions)]


def parse_instant(written: object) -> str:
    """Return an ISO 8601 instant with zone as text; accept what YAML parses from it.

    Raises:
        ValueError: not an instant, without a zone, or before 1970.
    """
    # YAML parses 2026-01-31T00:00:00Z to a `datetime` and 2026-01-31 to a `date`.
    text = written.isoformat() if isinstance(written, date) else str(written)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"{text!r} is not an ISO 8601 instant; write it as {EXAMPLE}"
        raise ValueError(message) from error
    if instant.tzinfo is None:
        message = f"{text!r} has no time zone; write it as {EXAMPLE}"
        raise ValueError(message)
    if instant.timestamp() < 0:
        message = f"{text!r} is before 1970, the earliest timestamp of Kafka"
        raise ValueError(message)
    return text


def to_epoch_ms(instant: str) -> int:
    """Return a parsed instant in ms since 1970."""
    return int(datetime.fromisoformat(instant).timestamp() * 1000)


def from_epoch_ms(milliseconds: int) -> datetime:
    """Return an instant in UTC from ms since 1970."""
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)


def read_instant(text: str, field: str) -> int:
    """Parse the instant of a request's field to ms since 1970.

    Raises:
        ConfigurationError: not an instant, or without a zone.
    """
    try:
        return to_epoch_ms(parse_instant(text))
    except ValueError as error:
        raise ConfigurationError(
            f"{name_field(field)}: {error}", "give date, time and zone of the instant"
        ) from error


def read_span(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """Parse `since` and `until` to ms since 1970; None for one that is missing.

    Raises:
        ConfigurationError: not an instant, without a zone, or the end is not after the start.
    """
    since_ms = read_instant(since, "since") if since else None
    until_ms = read_instant(until, "until") if until else None
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise ConfigurationError(
            f"{name_field('since')} {since} is not before {name_field('until')} {until}",
            "swap them, or remove one of them",
        )
    return since_ms, until_ms


def describe_seconds(seconds: float) -> str:
    """Return a duration in words: `42 s`, `3 min 5 s`, `2 h 10 min`, `4 d 3 h`."""
    whole = int(seconds)
    for size, unit, smaller_size, smaller in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


@dataclass(frozen=True)
class RetentionWindow:
    """How long snapshots are kept for readers (`expire_ms`) and for a rollback (`rollback_ms`)."""

    expire_ms: int
    rollback_ms: int

    def cutoff_ms(self, now_ms: int) -> int:
        """Return the earliest instant (ms) as of which the table must stay readable."""
        return now_ms - max(self.expire_ms, self.rollback_ms)

    def abandoned_cutoff_ms(self, now_ms: int) -> int:
        """Return the instant (ms) before which a snapshot on no branch counts as abandoned."""
        return now_ms - max(DAY_MS, self.rollback_ms)


def parse_batch_schedule(text: str) -> str:
    """Check a schedule; also accept `continuous`, which runs a batch whenever records arrive.

    Raises:
        ValueError: see `parse_schedule`.
    """
    return CONTINUOUS if text.strip() == CONTINUOUS else parse_schedule(text)


@cache
def parse_schedule(text: str) -> str:
    """Check five cron fields, `@once` or a preset like `@daily`; cached, as streams share them.

    Raises:
        ValueError: not a cron expression, or one without a next date, like `0 0 31 2 *`.
    """
    from croniter import (  # type: ignore[import-untyped]  # noqa: PLC0415 - 40 ms
        CroniterError,
        croniter,
    )

    line = text.strip()
    fields = len(line.split())
    if not line.startswith("@") and fields != CRON_FIELDS:
        raise ValueError(
            f"not a cron expression: {fields} of {CRON_FIELDS} fields; example: `*/5 * * * *`"
        )
    try:
        if line != "@once":
            croniter(line).get_next()
    except CroniterError as error:
        raise ValueError(f"not a cron expression: {error}; example: `*/5 * * * *`") from error
    return line


BatchSchedule = Annotated[str, AfterValidator(parse_batch_schedule)]
Schedule = Annotated[str, AfterValidator(parse_schedule)]


def spread(schedule: str, name: str) -> str:
    """Add a second to a cron expression, derived from the stream's name, as a sixth field.

    Otherwise the runs of all streams would start in the same second and queue in the scheduler. A
    preset like `@daily` is returned unchanged.
    """
    if schedule.startswith("@"):
        return schedule
    return f"{schedule} {crc32(name.encode()) % 60}"


def default_maintenance_schedule(name: str) -> str:
    """Return an hourly cron expression at a minute that is derived from the stream's name."""
    return f"{crc32(name.encode()) // 60 % 60} * * * *"
