"""Two tables are compared by Spark: values of all types, and rows of which one side lacks some.

Few jobs for many cases: the cases of values are the columns of one pair of tables, the cases of
rows are the partitions of another pair.
"""

import json
import secrets
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession
from support.foreign_tables import VALUES, WRITERS, ForeignTable, Row, changed, records, without
from support.stack_lake import StackLake
from typer.testing import CliRunner

from frazil.errors import ConfigurationError
from frazil.migration.comparison import PARTITION_VALUES, compare_tables
from frazil.migration.messages import CompareRequest, Comparison
from frazil_cli.main import app

pytestmark = [pytest.mark.spark, pytest.mark.stack]

NOON = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)
NFC, NFD = "\u00e9", "e\u0301"
NAN = float("nan")
INT, LONG, FLOAT, DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()
TEXT, BYTES, DAY = pa.string(), pa.binary(), pa.date32()
LOCAL, ZONED = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
D2, D4, D30 = pa.decimal128(9, 2), pa.decimal128(38, 4), pa.decimal128(38, 30)
STRUCT = pa.struct([("a", INT), ("b", TEXT)])
WIDER = pa.struct([("b", TEXT), ("a", LONG)])
ENTRIES, WIDE_ENTRIES = pa.map_(TEXT, INT), pa.map_(TEXT, LONG)
DEEP = pa.list_(pa.struct([("m", pa.map_(TEXT, pa.list_(DOUBLE)))]))

Case = tuple[object, pa.DataType, object, pa.DataType]
SAME: dict[str, Case] = {
    "int and long": (7, INT, 7, LONG),
    "decimal scale": (Decimal("1.50"), D2, Decimal("1.5000"), D4),
    "decimals of more than 38 digits": (Decimal("1.50"), D30, Decimal("1.5000"), D4),
    "a tiny decimal and zero": (Decimal("0.00"), D2, Decimal(0), D30),
    "long and decimal of more than 38 digits": (100, LONG, Decimal(100), D30),
    "whole number and decimal": (5, LONG, Decimal("5.00"), D2),
    "decimal as nearest double": (0.1, DOUBLE, Decimal("0.10"), D2),
    "float and double": (0.5, FLOAT, 0.5, DOUBLE),
    "whole number and double": (3, LONG, 3.0, DOUBLE),
    "zero has no sign": (-0.0, DOUBLE, 0.0, DOUBLE),
    "zero has no sign in a list": ([-0.0], pa.list_(DOUBLE), [0.0], pa.list_(DOUBLE)),
    "NaN is NaN": (NAN, DOUBLE, -NAN, DOUBLE),
    "NaN is NaN in a list": ([NAN], pa.list_(FLOAT), [NAN], pa.list_(DOUBLE)),
    "null is null": (None, INT, None, LONG),
    "text and its bytes": (NFC, TEXT, NFC.encode(), BYTES),
    "bytes of a fixed length": (b"ab", pa.binary(2), b"ab", BYTES),
    "zone and none": (NOON.replace(tzinfo=None), LOCAL, NOON, ZONED),
    "struct": ({"a": 1, "b": "x"}, STRUCT, {"b": "x", "a": 1}, WIDER),
    "null struct": (None, STRUCT, None, WIDER),
    "list": ([1, None], pa.list_(INT), [1, None], pa.list_(LONG)),
    "order of a map": ([("a", 1), ("b", 2)], ENTRIES, [("b", 2), ("a", 1)], WIDE_ENTRIES),
    "nested map": (
        [{"m": [("a", [NAN]), ("b", None)]}, None],
        DEEP,
        [{"m": [("b", None), ("a", [NAN])]}, None],
        DEEP,
    ),
}
OTHER: dict[str, Case] = {
    "bits are not the value": (-1, INT, 2**32 - 1, LONG),
    "decimal digits": (Decimal("1.50"), D2, Decimal("1.5001"), D4),
    "digits beyond 38": (Decimal("1.50"), D30, Decimal("1.5001"), D4),
    "a tiny decimal and nothing": (Decimal("0.00"), D4, Decimal("1e-30"), D30),
    "a float has lost digits": (0.1, FLOAT, 0.1, DOUBLE),
    "a small double": (0.0, DOUBLE, 1e-300, DOUBLE),
    "NaN is not null": (NAN, DOUBLE, None, DOUBLE),
    "two forms of Unicode": (NFC, TEXT, NFD, TEXT),
    "two forms of Unicode as bytes": (NFC, TEXT, NFD.encode(), BYTES),
    "empty is not null": ("", TEXT, None, TEXT),
    "zero is not null": (0, LONG, None, LONG),
    "a microsecond": (NOON.replace(tzinfo=None), LOCAL, NOON.replace(microsecond=2), ZONED),
    "day": (date(2026, 1, 31), DAY, date(2026, 2, 1), DAY),
    "boolean": (True, pa.bool_(), False, pa.bool_()),
    "a field": ({"a": 1, "b": "x"}, STRUCT, {"b": "x", "a": 2}, WIDER),
    "null inside and outside": ({"a": None, "b": None}, STRUCT, None, WIDER),
    "order of a list": ([1, 2], pa.list_(LONG), [2, 1], pa.list_(LONG)),
    "empty list and no list": ([], pa.list_(LONG), None, pa.list_(LONG)),
    "null in a list": ([None], pa.list_(LONG), [], pa.list_(LONG)),
    "values of a map": ([("a", 1), ("b", 2)], ENTRIES, [("a", 2), ("b", 1)], ENTRIES),
    "empty map and no map": ([], ENTRIES, None, ENTRIES),
    "deep in a map": ([{"m": [("a", [1.0])]}], DEEP, [{"m": [("a", [2.0])]}], DEEP),
}


@pytest.fixture
def catalog(lake: StackLake, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """Open the stack's catalog; the stream of `lake` has a file."""
    content = lake.stream.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    folder = lake.folder / "streams"
    folder.mkdir()
    (folder / f"{lake.stream.stream}.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setenv("FRAZIL_STREAMS", str(folder))
    return lake.store.catalog


def compare(left: str, right: str, **options: object) -> Comparison:
    request = CompareRequest.model_validate({"left": left, "right": right, **options})
    return compare_tables(request, "test")


def new_name() -> str:
    return f"compared.c{secrets.token_hex(4)}"


@pytest.mark.storm(1)
@pytest.mark.parametrize("left", [0, 1])
def test_equal_values_of_two_types_are_the_same_and_other_values_are_not(
    catalog: Catalog, left: int
) -> None:
    cases = list((SAME | OTHER).items())
    names = [new_name(), new_name()]
    for side, name in enumerate(names):
        fields = [pa.field(case, values[1 + 2 * side]) for case, values in cases]
        row: Row = {case: values[2 * side] for case, values in cases}
        made = ForeignTable(catalog, name, values=fields).create()
        made.write({"partition": 0, "offset": 0, **row})

    answer = compare(names[left], names[1 - left])

    (report,) = answer.partitions
    assert answer.layout == ()
    assert (report.matched, report.samples.changed) == (1, (0,))
    assert set(report.changed_columns) == set(OTHER)
    sums = report.checksums
    assert {name for name, (ours, theirs) in sums.items() if ours != theirs} == set(OTHER)


ENDS = (6,) * 8
DROPPED, DOUBLED, CHANGED, SWAPPED, AHEAD, BEHIND, LATER, HOLE = range(8)


@pytest.fixture
def sides(lake: StackLake, catalog: Catalog) -> tuple[str, str]:
    """Fill the stream's table and another writer's, with one kind of difference a partition."""
    lake.ingest(*ENDS)
    rows = without(records(*ENDS), DROPPED, 2)
    rows = [*rows, *(row for row in rows if (row["partition"], row["offset"]) == (DOUBLED, 3))]
    for offset, name in ((1, None), (2, ""), (4, "y")):
        rows = changed(rows, CHANGED, offset, name=name)
    rows = changed(changed(rows, SWAPPED, 1, id=2), SWAPPED, 2, id=1)
    rows = [row for row in rows if row["partition"] != AHEAD or int(str(row["offset"])) < 3]
    rows += [
        {"partition": BEHIND, "offset": offset, "id": offset, "name": "x"} for offset in (6, 7)
    ]
    rows = [row for row in rows if row["partition"] != LATER or int(str(row["offset"])) >= 2]
    foreign = ForeignTable(catalog, new_name()).create()
    for part in (rows[::2], rows[1::2]):
        foreign.write(*part)
    with lake.table.transaction() as transaction:
        transaction.delete(f"id == 5 and _kafka.partition == {HOLE}")
    return lake.stream.stream, foreign.name


@pytest.mark.core
def test_each_difference_of_rows_is_found_with_its_offset(
    sides: tuple[str, str], lake: StackLake
) -> None:
    answer = compare(*sides)

    reports = answer.partitions
    samples = [{kind: offsets for kind, offsets in p.samples if offsets} for p in reports]
    assert (answer.verdict, answer.layout) == ("different", ())
    assert samples == [
        {"missing": (2,)},
        {"doubled_right": (3,)},
        {"changed": (1, 2, 4)},
        {"changed": (1, 2)},
        {},
        {},
        {},
        {"extra": (5,)},
    ]
    assert [p.matched for p in reports] == [5, 5, 6, 6, 3, 6, 4, 5]
    assert [p.left_rows for p in reports] == [6, 6, 6, 6, 3, 6, 4, 5]
    assert [p.right_rows for p in reports] == [5, 7, 6, 6, 3, 6, 4, 6]
    assert (reports[AHEAD].judged, reports[AHEAD].left_ahead) == ((0, 3), 3)
    assert (reports[BEHIND].judged, reports[BEHIND].right_ahead) == ((0, 6), 2)
    assert (reports[LATER].judged, reports[LATER].left_before) == ((2, 6), 2)
    assert reports[SWAPPED].changed_columns == ("id",)
    assert reports[SWAPPED].checksums["name"][0] == reports[SWAPPED].checksums["name"][1]
    assert [p.changed_columns for p in reports if p.partition == CHANGED] == [("name",)]
    head = lake.table.current_snapshot()
    assert head is not None
    assert answer.left.snapshot_id == head.snapshot_id
    assert str(answer.right.newest_event_at) == "2026-09-21 14:13:20.007000+00:00"


def test_the_command_judges_only_the_chosen_offsets(sides: tuple[str, str], tmp_path: Path) -> None:
    stream, foreign = sides
    page = tmp_path / "page.html"
    ranges = [f"orders:{DROPPED}:3-6", f"orders:{CHANGED}:5-6", f"orders:{AHEAD}:1-3"]
    equal = [part for each in ranges for part in ("--offsets", each)]
    other = ["--offsets", f"orders:{DROPPED}:2-4", "--json"]

    runner = CliRunner(env={"COLUMNS": "200"})
    same = runner.invoke(app, ["compare", stream, foreign, *equal, "--html", str(page)])
    apart = runner.invoke(app, ["compare", stream, foreign, *other])

    assert (same.exit_code, apart.exit_code) == (0, 1), same.output + apart.output
    assert "3-6" in same.stdout
    assert f"6 records of the offsets {', '.join(ranges)}" in " ".join(same.stdout.split())
    assert '<p class="verdict equal">equal</p>' in page.read_text()
    (report,) = json.loads(apart.stdout)["partitions"]
    assert (report["missing"], report["left_rows"], report["left_ahead"]) == (1, 2, 0)
    with pytest.raises(ConfigurationError, match=rf"both sides have read orders:{AHEAD}:0-3"):
        compare(stream, foreign, offsets=(f"orders:{AHEAD}:1-6",))


def test_tables_without_a_topic_and_without_a_common_offset(catalog: Catalog) -> None:
    left, right = (
        ForeignTable(catalog, new_name(), WRITERS["Redpanda"]).create().write(*records(9, start=n))
        for n in (0, 20)
    )
    with pytest.raises(ConfigurationError, match="no column with the topic"):
        compare(left.name, right.name)

    answer = compare(left.name, right.name, topic="orders")

    assert answer.verdict == "nothing in common"
    assert [(p.judged, p.left_ahead, p.right_ahead) for p in answer.partitions] == [(None, 9, 0)]


@pytest.mark.storm(2)
@pytest.mark.parametrize(
    "writers", [[*WRITERS][:2], [*WRITERS][2:4], [*WRITERS][4:]], ids=", ".join
)
def test_the_coordinates_of_every_writer_are_read(catalog: Catalog, writers: list[str]) -> None:
    """Each writer's table is one side; the last of three has a row without a coordinate too."""
    first, *others = (
        ForeignTable(catalog, new_name(), WRITERS[writer]).create().write(*records(3, 2))
        for writer in writers
    )
    stray: Row = {"id": 7, "name": "stray"}
    for made in others[1:]:
        made.table.append(pa.Table.from_pylist([stray], made.schema))

    answers = [compare(first.name, other.name, topic="orders", rows_only=True) for other in others]

    strays = [0, 1][: len(answers)]
    assert [answer.right.unplaced for answer in answers] == strays
    assert [answer.verdict for answer in answers] == ["equal", "different"][: len(answers)]
    for answer in answers:
        assert (answer.left.rows, [p.matched for p in answer.partitions]) == (5, [3, 2])
        newest = {answer.left.newest_event_at, answer.right.newest_event_at} - {None}
        assert newest == {datetime(2026, 9, 21, 14, 13, 20, 2000, tzinfo=UTC)}


def test_layout_and_the_partition_values_of_the_manifests_are_compared(catalog: Catalog) -> None:
    """Engines prune files by what the manifests say, also where the rows say something else."""
    left, right = (ForeignTable(catalog, new_name()).create() for _ in range(2))
    rows = records(4)
    for made in (left, right):
        with made.table.update_spec() as spec:
            spec.add_identity("name")
    left.write(*rows)
    right.write(*rows[:3])
    with right.table.update_spec() as spec:
        spec.remove_field("name")
    right.write(rows[3])
    other = compare(left.name, right.name)
    with right.table.update_spec() as spec:
        spec.add_identity("name")

    answer = compare(left.name, right.name)

    assert (other.partitions[0].changed, len(other.layout)) == (0, 1)
    assert "partitioned by identity(name) on the left, by nothing on the right" in other.layout
    assert (answer.verdict, answer.layout) == ("different", ())
    assert answer.partitions[0].changed_columns == (PARTITION_VALUES,)
    assert answer.partitions[0].samples.changed == (3,)


RIGHT_SQL = """
    SELECT bigint(id) AS id, concat('name ', id) AS name,
      map('b', bigint(1), 'a', bigint(id)) AS pairs,
      struct(int(id % 2) AS partition, bigint(id div 2) AS offset,
        bigint(1790000000000 + id div 2) AS timestamp) AS _kafka_metadata
    FROM range(1000)
"""


def test_rows_that_spark_changed_and_deleted_are_found(
    spark: SparkSession, catalog: Catalog
) -> None:
    """Delete files hide rows, and a million offsets between two rows are no burden."""
    fields = [*VALUES, pa.field("pairs", WIDE_ENTRIES)]
    left = ForeignTable(catalog, new_name(), WRITERS["AutoMQ Table Topic"], fields).create()
    rows = [
        {"id": n, "name": f"name {n}", "pairs": [("a", n), ("b", 1)]}
        | {"partition": n % 2, "offset": n // 2}
        for n in range(1000)
    ]
    left.write(*rows)
    right = new_name()
    spark.sql(
        f"CREATE TABLE lake.{right} USING iceberg TBLPROPERTIES ('format-version' = '2', "
        "'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read') "
        f"AS {RIGHT_SQL}"
    )
    assert compare(left.name, right, topic="orders").verdict == "equal"

    for statement in (
        "UPDATE {} SET pairs = map('b', bigint(id), 'a', bigint(1)) WHERE id = 701",
        "DELETE FROM {} WHERE id % 2 = 0 AND id >= 100 AND id < 300",
        "INSERT INTO {} SELECT * FROM {} WHERE id = 999",
    ):
        spark.sql(statement.replace("{}", f"lake.{right}"))
    first, second = compare(left.name, right, topic="orders").partitions

    assert (first.missing, first.samples.missing) == (100, tuple(range(50, 70)))
    assert (first.changed, first.doubled_right) == (0, 0)
    assert (second.samples.changed, second.changed_columns) == ((350,), ("pairs",))
    assert (second.samples.doubled_right, second.right_rows) == ((499,), 501)
