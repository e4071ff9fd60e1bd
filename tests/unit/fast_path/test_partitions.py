"""Workers tell partitions apart as Iceberg does."""

import json
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BooleanType,
    DateType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestamptzType,
)
from pyiceberg.types import TimestampType as LocalType
from support.lake import Lake, make_stream

from frazil.ingest.bootstrap import new_table
from frazil.ingest.fast_path import (
    MAX_PARTITIONS,
    PARTITION_KEY,
    count_partitions,
    list_partitions,
    plan_fast_path,
)
from frazil.ingest.messages import PartitionBy
from frazil_spark.fast_path.parquet_files import FileSpec
from frazil_spark.fast_path.partitions import MAX_TEXT_BYTES, PartitionIds, split, transform
from frazil_spark.fast_path.readers import ValueSpec
from frazil_spark.fast_path.worker import FILE, ON_FAST_PATH, TOO_BIG, write_fast_path_rows

from pyiceberg.io.pyarrow import schema_to_pyarrow  # isort: skip

TYPES: dict[str, tuple[IcebergType, pa.DataType, st.SearchStrategy[object]]] = {
    "date": (DateType(), pa.date32(), st.dates()),
    "timestamp": (LocalType(), pa.timestamp("us"), st.datetimes()),
    "timestamptz": (
        TimestamptzType(),
        pa.timestamp("us", "UTC"),
        st.datetimes(timezones=st.just(UTC)),
    ),
    "long": (LongType(), pa.int64(), st.integers(-(2**63) + 3, 2**63 - 1)),
    "int": (IntegerType(), pa.int32(), st.integers(-(2**31) + 3, 2**31 - 1)),
    "string": (StringType(), pa.string(), st.text()),
    "boolean": (BooleanType(), pa.bool_(), st.booleans()),
}
MOST = 5
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *[(kind, name) for kind in ("year", "month", "day") for name in ("date", "timestamptz")],
        *[(kind, "timestamp") for kind in ("year", "month", "day", "hour")],
        *[("identity", name) for name in ("date", "int", "long", "string", "boolean")],
        *[("bucket[7]", name) for name in ("date", "timestamp", "timestamptz", "int", "long")],
        *[("truncate[3]", name) for name in ("int", "long", "string")],
        ("bucket[7]", "string"),
        ("hour", "timestamptz"),
    ],
)
@given(st.data())
def test_a_transform_is_that_of_iceberg(kind: str, name: str, data: st.DataObject) -> None:
    iceberg, arrow, strategy = TYPES[name]
    values = data.draw(st.lists(st.none() | strategy, max_size=5))
    column = pa.array(values, arrow)
    held = column.cast(pa.int32()) if name == "date" else column
    held = column.cast(pa.int64()) if name.startswith("timestamp") else held

    found = transform(column, kind).to_pylist()

    apply = parse_transform(kind).transform(iceberg)
    assert found == [apply(value) for value in held.to_pylist()]
    assert transform(column[1:], kind).to_pylist() == found[1:]  # a slice of the same buffers


def test_what_is_cut_below_the_smallest_number_wraps_as_in_java() -> None:
    smallest = [pa.array([-(2**31)], pa.int32()), pa.array([-(2**63)], pa.int64())]

    assert [transform(column, "truncate[10]").to_pylist() for column in smallest] == [
        [2**31 - 2],
        [2**63 - 2],
    ]


def test_rows_of_a_partition_come_together_in_their_order() -> None:
    columns = {"at": pa.array([date(2024, 1, 1), None, date(2024, 1, 31), date(1969, 12, 31)])}
    columns["kind"] = pa.array(["a", None, "a", "a"])
    ids = PartitionIds((("at", "month"), ("kind", "identity")), limit=3)

    found = ids.assign(columns, 4)
    parts = {ids.values(n): rows["at"].to_pylist() for n, rows in split(pa.table(columns), found)}

    assert parts == {
        (648, "a"): [date(2024, 1, 1), date(2024, 1, 31)],
        (None, None): [None],
        (-1, "a"): [date(1969, 12, 31)],
    }
    assert ids.assign(columns, 4).tolist() == found.tolist()


@pytest.mark.parametrize("kind", ["identity", "bucket[7]", "truncate[2]"])
def test_a_row_with_a_long_text_is_left_to_spark(kind: str) -> None:
    names = ["ä" * (MAX_TEXT_BYTES // 2), "ä" * (MAX_TEXT_BYTES // 2) + "x", None, "short"]

    found = PartitionIds((("name", kind),), limit=9).assign({"name": pa.array(names)}, 4)

    assert [number < 0 for number in found] == [False, True, False, False]


def test_a_partition_too_many_is_left_to_spark() -> None:
    names = pa.array(["a", "b", "one more", "b", "a"])

    found = PartitionIds((("name", "identity"),), limit=2).assign({"name": names}, 5)

    assert found.tolist() == [0, 1, -1, 1, 0]


@pytest.mark.parametrize(
    ("ends", "most"),
    [((20_000, 0), 4), ((20_000, 20_000), 4), ((100, 0), 1), ((10**9, 0), MAX_PARTITIONS)],
)
def test_files_do_not_become_too_small_on_average(
    lake: Lake, ends: tuple[int, int], most: int
) -> None:
    assert count_partitions(lake.plan(*ends), rows_in_a_file=5000) == most


@pytest.mark.parametrize(("buckets", "is_direct"), [(2, True), (3, False)])
def test_more_buckets_than_a_task_may_begin_are_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buckets: int, *, is_direct: bool
) -> None:
    monkeypatch.setenv("FRAZIL_DIRECT_MIN_RECORDS", "0")
    by = ["bucket(id, 32)", f"bucket(name, {buckets})", "id"]
    lake = Lake(tmp_path, make_stream(table={"name": "demo.orders", "partition_by": by}))
    lake.begin()

    direct = plan_fast_path(lake.table, lake.stream, lake.plan(100, 0), {})

    assert (direct is not None) == is_direct
    lake.close()


@pytest.mark.parametrize(
    ("partition_by", "found"),
    [
        ([], ()),
        (["day(at)"], (PartitionBy(column="at", transform="day"),)),
        (
            ["hour(at)", "name"],
            (
                PartitionBy(column="at", transform="hour"),
                PartitionBy(column="name", transform="identity"),
            ),
        ),
        (
            ["bucket(id, 4)", "truncate(name, 2)"],
            (
                PartitionBy(column="id", transform="bucket[4]"),
                PartitionBy(column="name", transform="truncate[2]"),
            ),
        ),
        (["price"], None),
        (["day(at)", "bucket(price, 2)"], None),
        (["place.country"], None),
    ],
    ids=str,
)
def test_what_only_spark_can_place_is_left_to_spark(
    partition_by: list[str], found: tuple[PartitionBy, ...] | None
) -> None:
    columns = {"id": "long!", "name": "string", "at": "timestamp", "price": "decimal(9,2)"}
    columns["place"] = "struct<country: string>!"
    table = {"name": "demo.orders", "partition_by": partition_by}

    new = new_table(make_stream(value={"columns": columns}, table=table))

    assert list_partitions(new.schema, new.spec) == found


def make_records(instants: list[str]) -> pa.RecordBatch:
    count = len(instants)
    values = [f'{{"id":{n},"at":"{at}"}}'.encode() for n, at in enumerate(instants)]
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(["orders"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(np.arange(count)),
            "timestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0] * count, pa.int32()),
            "headers": pa.nulls(count, HEADERS),
            TOO_BIG: pa.array([False] * count),
        }
    )


def test_each_file_is_of_one_partition_and_says_which(tmp_path: Path) -> None:
    days = [f"2024-01-{n + 1:02d}T12:00:00" for n in range(MOST + 2)]
    stream = make_stream(value={"columns": {"id": "long!", "at": "timestamp"}})
    schema = schema_to_pyarrow(new_table(stream).schema, include_field_ids=True)
    order = FileSpec(
        *(ValueSpec("json"), schema, str(tmp_path), "batch", 2**30, {}, ()),
        partitions=(("at", "day"),),
        max_partitions=MOST,
    )

    sent = [*write_fast_path_rows(order, iter([make_records([*days, days[0]])]))]

    shown = [batch for batch in sent if batch[ON_FAST_PATH][0].as_py()]
    (told,) = (text for batch in shown for text in batch[FILE].to_pylist() if text)
    files = [pq.ParquetFile(path.removeprefix("file://")) for path in told.split("\n")]
    epoch = datetime(1970, 1, 1)  # noqa: DTZ001 - a timestamp without a zone
    for file in files:
        (place,) = json.loads(file.metadata.metadata[PARTITION_KEY])
        assert {(at - epoch).days for at in file.read()["at"].to_pylist()} == {place}
    assert (len(files), sum(file.metadata.num_rows for file in files)) == (MOST, MOST + 1)
    (rest,) = (batch for batch in sent if not batch[ON_FAST_PATH][0].as_py())
    assert rest["offset"].to_pylist() == [MOST, MOST + 1]
    assert all(rest["value"].to_pylist())
