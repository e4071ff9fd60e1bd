"""Schedules of stream files: what Airflow can run, and what has a next date at all."""

from functools import cache
from zlib import crc32

CRON_FIELDS = 5
CONTINUOUS = "continuous"


def parse_batch_schedule(text: str) -> str:
    """Read a schedule, or the word for batches that follow one another as records come.

    Raises:
        ValueError: see `parse_schedule`.
    """
    return CONTINUOUS if text.strip() == CONTINUOUS else parse_schedule(text)


@cache
def parse_schedule(text: str) -> str:
    """Read five cron fields, `@once` or a word like `@daily`; streams share a few of them.

    Raises:
        ValueError: no cron line, or one like `0 0 31 2 *`, whose date never comes.
    """
    from croniter import (  # type: ignore[import-untyped]  # noqa: PLC0415 - 40 ms
        CroniterError,
        croniter,
    )

    line = text.strip()
    fields = len(line.split())
    if not line.startswith("@") and fields != CRON_FIELDS:
        raise ValueError(f"no cron line: {fields} of {CRON_FIELDS} fields; example: `*/5 * * * *`")
    try:
        if line != "@once":
            croniter(line).get_next()
    except CroniterError as error:
        raise ValueError(f"no cron line: {error}; example: `*/5 * * * *`") from error
    return line


def spread(schedule: str, name: str) -> str:
    """Give a cron line a second of its own, a sixth field, so that not all streams begin at once.

    A hundred runs that begin together are looked at again and again while they wait. A word like
    `@daily` stays what it is.
    """
    if schedule.startswith("@"):
        return schedule
    return f"{schedule} {crc32(name.encode()) % 60}"


def default_maintenance_schedule(name: str) -> str:
    """Give the cron line of a stream that says none: each hour, in a minute of its own."""
    return f"{crc32(name.encode()) // 60 % 60} * * * *"
