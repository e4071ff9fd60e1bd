"""Streams with the same schedule do not begin in the same second."""

from datetime import UTC, datetime

from croniter import croniter

from frazil.streams.timestamps import default_maintenance_schedule, spread

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)


def begin(name: str, schedule: str = "* * * * *") -> datetime:
    """Return the first moment after noon; a sixth field is seconds, for Airflow as for croniter."""
    found: datetime = croniter(spread(schedule, name), NOON).get_next(datetime)
    return found


def test_a_hundred_streams_of_one_schedule_begin_all_over_the_minute() -> None:
    seconds = [begin(f"stream{number}").second for number in range(100)]

    assert len(set(seconds)) > 40
    assert max(seconds.count(second) for second in seconds) < 8


def test_a_stream_keeps_its_second_and_its_minute() -> None:
    assert spread("*/5 * * * *", "orders") == "*/5 * * * * 2"
    first = begin("orders", "30 * * * *")

    assert (first.hour, first.minute, first.second) == (12, 30, 2)


def test_a_word_stays_what_it_is() -> None:
    assert spread("@hourly", "orders") == "@hourly"


def test_maintenance_of_a_hundred_streams_begins_all_over_the_hour() -> None:
    lines = [default_maintenance_schedule(f"stream{number}") for number in range(100)]
    begun = [croniter(line, NOON).get_next(datetime) for line in lines]
    minutes = [moment.minute for moment in begun]

    assert len(set(minutes)) > 40
    assert max(minutes.count(minute) for minute in minutes) < 8
    assert (max(begun) - NOON).total_seconds() <= 3600
