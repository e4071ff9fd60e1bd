"""Rows that Python workers write, and rows that Spark writes: the same bytes, the same rows.

One topic of well-formed and odd records is read into two tables, once by each way.
"""

import json
import secrets
import sys
from collections.abc import Mapping, Sequence

import pyarrow.parquet as pq
import pytest
from conftest import Lab
from faults.judges import assert_audited
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from support.json_corpus import BIG, COLUMNS, make_records

from frazil.ingest.fast_path import INTERPRET_VARIABLE, MIN_RECORDS_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.stack]


def load(lab: Lab, name: str) -> Table:
    return load_catalog("lake", **lab.stack.catalog_properties).load_table(name)


def read_rows(lab: Lab, name: str) -> list[Mapping[str, object]]:
    return sorted(load(lab, name).scan().to_arrow().to_pylist(), key=coordinate)


def use_direct_stream(
    lab: Lab,
    stream: str,
    min_records: int,
    interpreted: int = 0,
    partition_by: Sequence[str] = (),
) -> None:
    """Read the lab's topic into a table of its own.

    Workers write batches of so many records or more; up to `interpreted` Spark compiles no code.
    """
    lab.stream = stream
    document = {
        **lab.document,
        "stream": stream,
        "value": {"convert": "json", "columns": COLUMNS},
        "table": {"name": f"lab.{stream}", "partition_by": [*partition_by]},
        "errors": {"max_bad_ratio": 1.0},
        "batch": {"max_records": 100_000},
        "quality": {"suite": "direct"},
    }
    (lab.folder / "expectations").mkdir(exist_ok=True)
    suite = {"name": "direct", "expectations": EXPECTATIONS}
    (lab.folder / "expectations" / "direct.json").write_text(json.dumps(suite))
    lab.document = document
    lab.write_stream()
    limits = {MIN_RECORDS_VARIABLE: str(min_records), INTERPRET_VARIABLE: str(interpreted)}
    done = lab.frazil("run", stream, **limits)
    assert done.code == 0, done.out + done.err


EXPECTATIONS = [
    {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}},
    {"type": "expect_column_max_to_be_between", "kwargs": {"column": "id", "min_value": 10}},
    {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "instant", "min_value": "1990-01-01T00:00:00Z", "mostly": 0.1},
    },
    {
        "type": "expect_column_value_lengths_to_be_between",
        "kwargs": {"column": "text", "max_value": 70_000},
    },
]


@pytest.fixture
def two(lab: Lab) -> tuple[Lab, str, str]:
    """Return the lab with a topic, and names for two streams of it."""
    lab.create_topic()
    return lab, f"d{secrets.token_hex(4)}", f"s{secrets.token_hex(4)}"


def read_letters(lab: Lab, stream: str) -> list[tuple[object, ...]]:
    rows = read_rows(lab, f"lab.{stream}__dead_letters")
    return [(*coordinate(r), r["reason"], r["detail"], r["value"]) for r in rows]


def coordinate(row: Mapping[str, object]) -> tuple[object, object]:
    kafka = row["_kafka"]
    assert isinstance(kafka, Mapping)
    return kafka["partition"], kafka["offset"]


@pytest.mark.core
def test_workers_and_both_of_sparks_ways_write_the_same_rows_and_letters(
    two: tuple[Lab, str, str],
) -> None:
    lab, direct, plain = two
    small = f"{plain}_small"
    seed = secrets.randbelow(10**6)
    sys.stdout.write(f"seed {seed}\n")
    topic = lab.topic
    lab.produce(make_records(seed, 3000))
    lab.document = {**lab.document, "source": {"topic": topic}}

    use_direct_stream(lab, direct, 0)
    use_direct_stream(lab, plain, 10**9)
    use_direct_stream(lab, small, 10**9, interpreted=10**9)

    assert count_by_workers(lab, f"lab.{direct}") > 500
    assert count_by_workers(lab, f"lab.{plain}") == 0
    for other in (direct, small):
        # By their text: -0.0 equals 0.0.
        assert repr(read_rows(lab, f"lab.{other}")) == repr(read_rows(lab, f"lab.{plain}"))
        assert read_letters(lab, other) == read_letters(lab, plain) != []
    snapshots = [load(lab, f"lab.{name}").current_snapshot() for name in (direct, small, plain)]
    summaries = [snapshot.summary for snapshot in snapshots if snapshot and snapshot.summary]
    keys = ("frazil.counts", "frazil.quality", "frazil.rows-written", "frazil.max-timestamp-ms")
    told = [[summary[k] for k in keys] for summary in summaries]
    assert told[0] == told[1] == told[2]
    assert_audited(lab, direct, f"lab.{direct}")
    assert_files_are_alike(lab, direct, plain)


def assert_files_are_alike(lab: Lab, direct: str, plain: str) -> None:
    """See that the workers' files have bounds, sizes and the schema of Spark's."""
    files = load(lab, f"lab.{direct}").inspect.files().to_pylist()
    by_workers = [f for f in files if is_by_workers(str(f["file_path"]))]
    assert all(f["readable_metrics"]["id"]["upper_bound"] is not None for f in by_workers)
    assert all(f["column_sizes"] and f["split_offsets"] for f in by_workers)
    of_spark = load(lab, f"lab.{plain}").inspect.files().to_pylist()
    schemas = [
        pq.read_metadata(str(f["file_path"]).removeprefix("file://")).schema
        for f in (by_workers[0], of_spark[0])
    ]
    columns = [
        [(c.path, c.physical_type, str(c.logical_type), c.max_definition_level) for c in schema]
        for schema in schemas
    ]
    assert columns[0] == columns[1]


@pytest.mark.storm(1)
@pytest.mark.parametrize(
    "by",
    [
        ["hour(local)", "bucket(text, 2)", "truncate(small, 10)"],
        ["year(instant)", "day", "flag", "bucket(id, 2)"],
    ],
    ids=", ".join,
)
def test_workers_put_rows_into_the_partitions_that_spark_would(
    two: tuple[Lab, str, str], by: list[str]
) -> None:
    lab, direct, plain = two
    lab.produce(make_records(secrets.randbelow(10**6), 3000))
    lab.document = {**lab.document, "source": {"topic": lab.topic}}

    use_direct_stream(lab, direct, 0, partition_by=by)
    use_direct_stream(lab, plain, 10**9, partition_by=by)

    assert count_by_workers(lab, f"lab.{direct}") > 0
    assert count_by_workers(lab, f"lab.{plain}") == 0
    assert repr(read_rows(lab, f"lab.{direct}")) == repr(read_rows(lab, f"lab.{plain}"))
    assert count_by_partition(lab, direct) == count_by_partition(lab, plain)


def test_a_batch_without_a_doubtful_record_is_parted_too(two: tuple[Lab, str, str]) -> None:
    lab, direct, _ = two
    lab.produce([b'{"id":%d,"day":"2024-01-%02d"}' % (n, n % 2 + 1) for n in range(100)])
    lab.document = {**lab.document, "source": {"topic": lab.topic}}

    use_direct_stream(lab, direct, 0, partition_by=["day"])

    assert count_by_workers(lab, f"lab.{direct}") > 0
    assert [count for _, count in count_by_partition(lab, direct)] == [50, 50]


def count_by_partition(lab: Lab, stream: str) -> list[tuple[str, object]]:
    parts = load(lab, f"lab.{stream}").inspect.partitions().to_pylist()
    return sorted((repr(part["partition"]), part["record_count"]) for part in parts)


def count_by_workers(lab: Lab, name: str) -> int:
    files = load(lab, name).inspect.files().to_pylist()
    return sum(f["record_count"] for f in files if is_by_workers(str(f["file_path"])))


def is_by_workers(path: str) -> bool:
    return "parquet-cpp-arrow" in str(pq.read_metadata(path.removeprefix("file://")).created_by)


def test_a_record_too_big_for_workers_lets_spark_write_everything(
    two: tuple[Lab, str, str],
) -> None:
    lab, direct, _ = two
    lab.produce([*make_records(2, 200), BIG])
    lab.document = {**lab.document, "source": {"topic": lab.topic}}

    use_direct_stream(lab, direct, 0)

    rows = read_rows(lab, f"lab.{direct}")
    assert max(len(str(row["text"] or "")) for row in rows) == 60_000
    files = load(lab, f"lab.{direct}").inspect.files().to_pylist()
    assert not [f for f in files if is_by_workers(str(f["file_path"]))]
