"""Schedules of stream files: cron expressions that Airflow can run, spread over the minute."""

from functools import cache
from zlib import crc32

CRON_FIELDS = 5
CONTINUOUS = "continuous"


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
