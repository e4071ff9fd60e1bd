"""A stream file's content becomes values, and its hash follows what decides about rows."""

import pytest
from pydantic import ValidationError
from support.lake import make_stream

from frazil.ingest.bootstrap import new_table
from frazil.streams.column_types import parse_column
from frazil.streams.loading import load_readable_streams
from frazil.streams.sections import StartAtOffsets, StartAtTime


def test_the_smallest_stream_has_every_default_of_the_design() -> None:
    stream = make_stream()

    assert (stream.source.connection, stream.source.start) == ("kafka_default", "earliest")
    assert stream.source.isolation == "read_committed"
    assert (stream.table.mode, stream.table.partition_by) == ("append", ())
    assert (stream.errors.tolerance, stream.errors.max_bad_ratio) == ("quarantine", 0.05)
    assert (stream.schema_policy.add_column, stream.schema_policy.other) == ("auto", "review")
    assert (stream.quality.suite, stream.quality.on_failure) == (None, "block")
    assert (stream.freshness.warn_seconds, stream.freshness.fail_seconds) == (180, 600)
    maintenance = stream.maintenance
    assert (maintenance.expire_hours, maintenance.rollback_hours) == (72, 24)
    assert (maintenance.compact_target_mb, maintenance.orphan_days) == (128, 3)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("latest", "latest"),
        ({"timestamp": "2026-01-31T00:00:00Z"}, StartAtTime(timestamp="2026-01-31T00:00:00Z")),
        ({"offsets": {"0": 5, "3": 9}}, StartAtOffsets(offsets={0: 5, 3: 9})),
    ],
    ids=["a word", "an instant", "exact offsets"],
)
def test_a_stream_may_begin_at(start: object, expected: object) -> None:
    stream = make_stream(source={"topic": "orders", "start": start})

    assert stream.source.start == expected


@pytest.mark.parametrize("schedule", ["*/5 8-18 * * MON-FRI", "0 0 29 2 *", "@daily", " @once "])
def test_a_schedule_is_what_airflow_can_run(schedule: str) -> None:
    stream = make_stream(batch={"schedule": schedule}, maintenance={"schedule": schedule})

    assert stream.batch.schedule == stream.maintenance.schedule == schedule.strip()


@pytest.mark.parametrize(("convert", "word"), [("string", "string"), ("raw", "binary")])
def test_a_whole_value_is_one_column(convert: str, word: str) -> None:
    stream = make_stream(value={"convert": convert})

    assert stream.value.parsed_columns == (parse_column("value", word),)


def test_the_name_of_dead_letters_follows_the_table() -> None:
    stream = make_stream()

    assert stream.dead_letters_table == "demo.orders__dead_letters"


def test_the_table_is_created_as_the_file_says() -> None:
    columns = {"id": "long!", "at": "timestamp"}
    table = {"name": "demo.t", "partition_by": ["day(at)"], "sort_by": ["id"]}
    stream = make_stream(value={"columns": columns}, table=table | {"properties": {"a": "b"}})

    new = new_table(stream)

    assert [field.name for field in new.schema.fields] == ["id", "at", "_kafka"]
    assert [field.name for field in new.spec.fields] == ["at_day"]
    assert [field.source_id for field in new.sort_order.fields] == [1]
    assert new.properties == {
        "a": "b",
        "write.parquet.dict-size-bytes": "32768",
        "frazil.columns.orders": '["id", "at"]',
        "frazil.partitions.orders": '["day(at)"]',
    }


@pytest.mark.parametrize(
    ("sections", "same"),
    [
        ({"batch": {"schedule": "@daily"}}, True),
        ({"freshness": {"warn_seconds": 1}}, True),
        ({"maintenance": {"expire_hours": 1}}, True),
        ({"owner": "someone.else@example.org"}, True),
        ({"value": {"columns": {"id": "long!"}}}, False),
        ({"errors": {"max_bad_ratio": 0.5}}, False),
        ({"quality": {"on_failure": "warn"}}, False),
        ({"source": {"topic": "other"}}, False),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_only_what_decides_about_rows_moves_the_hash(
    sections: dict[str, object],
    same: bool,  # noqa: FBT001
) -> None:
    changed = make_stream(**sections)

    assert (changed.content_hash == make_stream().content_hash) is same


def test_a_stream_cannot_be_changed_once_read() -> None:
    stream = make_stream()

    with pytest.raises(ValidationError, match="frozen"):
        stream.owner = "nobody"


def test_the_streams_of_this_project_are_valid() -> None:
    from frazil.environment import streams_dir  # noqa: PLC0415 - reads the environment

    streams, errors = load_readable_streams(streams_dir())

    assert "flights" in {stream.stream for stream in streams}
    assert errors == ()
