"""Schedules of stream files: what Airflow can run, and what has a next date at all."""

from functools import cache

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
