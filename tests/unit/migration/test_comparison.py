"""Two tables that one topic fills: what is the same, and every kind of difference."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml
from pyiceberg.types import DoubleType, StringType
from support.foreign_tables import VALUES, WRITERS, ForeignTable, Row, changed, records, without
from support.lake import Lake
from typer.testing import CliRunner

from frazil.errors import ConfigurationError, IncompatibleTableError
from frazil.ledger.history import Span
from frazil.ledger.offsets import OffsetRange
from frazil.migration.comparison import compare_tables
from frazil.migration.comparison_page import write_page
from frazil.migration.comparison_rules import claim_range
from frazil.migration.messages import CompareRequest, Comparison
from frazil.workspace import Workspace
from frazil_cli.main import app

pytestmark = pytest.mark.usefixtures("work")
ROWS = records(5, 4)


@pytest.fixture
def foreign(lake: Lake) -> ForeignTable:
    """Give the other writer's table, still without a row."""
    return ForeignTable(lake.catalog, "legacy.orders").create()


@pytest.fixture
def orders(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lake:
    """Give a stream file beside the lake; the stream has read 5 and 4 records."""
    content = lake.stream.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "orders.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path / "streams"))
    lake.ingest(5, 4)
    return lake


def compare(left: str = "orders", right: str = "legacy.orders", **options: object) -> Comparison:
    request = CompareRequest.model_validate({"left": left, "right": right, **options})
    return compare_tables(request, "test")


def total(answer: Comparison) -> dict[str, int]:
    """Add up what differs in all partitions, without what does not."""
    names = ("missing", "extra", "doubled_left", "doubled_right", "changed")
    sums = {n: sum(getattr(report, n) for report in answer.partitions) for n in names}
    return {name: count for name, count in sums.items() if count}


@pytest.mark.parametrize("writer", WRITERS)
def test_the_coordinates_of_every_writer_are_recognised(orders: Lake, writer: str) -> None:
    other = ForeignTable(orders.catalog, "legacy.orders", WRITERS[writer]).create()
    other.write(*ROWS)

    answer = compare()

    assert (answer.verdict, answer.right.writer) == ("equal", writer), answer.text
    assert [(p.judged, p.matched) for p in answer.partitions] == [((0, 5), 5), ((0, 4), 4)]


@pytest.mark.parametrize(
    ("rows", "found", "samples"),
    [
        pytest.param(without(ROWS, 0, 2), {"missing": 1}, {"missing": (2,)}, id="a dropped row"),
        pytest.param(
            [*ROWS, ROWS[3]], {"doubled_right": 1}, {"doubled_right": (3,)}, id="a doubled row"
        ),
        pytest.param(
            changed(ROWS, 0, 1, name="y"), {"changed": 1}, {"changed": (1,)}, id="a changed value"
        ),
        pytest.param(
            changed(ROWS, 0, 1, name=None), {"changed": 1}, {"changed": (1,)}, id="null, not text"
        ),
        pytest.param(
            changed(ROWS, 0, 1, name=""), {"changed": 1}, {"changed": (1,)}, id="empty, not text"
        ),
    ],
)
def test_a_difference_is_found_with_its_offset(
    orders: Lake,
    foreign: ForeignTable,
    rows: list[Row],
    found: dict[str, int],
    samples: dict[str, tuple[int, ...]],
) -> None:
    assert orders.point is not None
    foreign.write(*rows)

    answer = compare()

    assert (answer.verdict, total(answer)) == ("different", found)
    assert {k: v for k, v in answer.partitions[0].samples if v} == samples


def test_values_that_two_rows_swapped_are_found(orders: Lake, foreign: ForeignTable) -> None:
    assert orders.point is not None
    foreign.write(*changed(changed(ROWS, 0, 1, id=2), 0, 2, id=1))

    answer = compare()

    report = answer.partitions[0]
    assert (report.changed, report.changed_columns) == (2, ("id",))
    assert report.checksums["name"][0] == report.checksums["name"][1]
    assert report.checksums["id"][0] != report.checksums["id"][1]


def test_rows_in_other_files_and_another_order_are_the_same(
    orders: Lake, foreign: ForeignTable
) -> None:
    assert orders.point is not None
    for row in reversed(ROWS):
        foreign.write(row)

    assert compare().verdict == "equal"


def test_what_one_side_has_not_read_yet_is_ahead_and_not_missing(
    orders: Lake, foreign: ForeignTable
) -> None:
    assert orders.point is not None
    foreign.write(*records(3, 9))

    answer = compare()

    first, second = answer.partitions
    assert answer.verdict == "equal"
    assert (first.judged, first.left_ahead, first.right_ahead) == ((0, 3), 2, 0)
    assert (second.judged, second.left_ahead, second.right_ahead) == ((0, 4), 0, 5)


def test_a_hole_at_the_end_of_what_a_stream_has_read_is_judged(
    orders: Lake, foreign: ForeignTable
) -> None:
    """A ledger says how far it has read, where rows alone cannot: 4 is read and not there."""
    with orders.table.transaction() as transaction:
        transaction.delete("id == 4")
    foreign.write(*ROWS)

    answer = compare()

    assert (answer.verdict, total(answer)) == ("different", {"extra": 1})


def test_a_side_that_began_later_is_judged_from_there(orders: Lake, foreign: ForeignTable) -> None:
    assert orders.point is not None
    foreign.write(*records(5, 4, start=2))

    answer = compare()

    assert answer.verdict == "equal"
    assert [(p.judged, p.left_before) for p in answer.partitions] == [((2, 5), 2), ((2, 4), 2)]


def test_tables_without_a_common_offset_are_not_called_equal(
    orders: Lake, foreign: ForeignTable
) -> None:
    assert orders.point is not None
    foreign.write(*records(20, start=10))

    assert compare().verdict == "nothing in common"


def test_only_the_offsets_that_are_asked_for_are_judged(
    orders: Lake, foreign: ForeignTable
) -> None:
    assert orders.point is not None
    foreign.write(*without(ROWS, 0, 3))

    around, beside = (compare(offsets=(f"orders:0:{span}",)) for span in ("2-5", "0-3"))

    assert (around.verdict, total(around)) == ("different", {"missing": 1})
    assert [(p.partition, p.judged, p.left_rows) for p in around.partitions] == [(0, (2, 5), 3)]
    assert (beside.verdict, total(beside)) == ("equal", {})
    assert [(p.judged, p.left_ahead, p.right_ahead) for p in beside.partitions] == [((0, 3), 0, 0)]
    assert "over the offsets that were asked for" in write_page(beside)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("orders:0",), "is not a range of offsets"),
        (("orders:0:5-5",), "its end is exclusive"),
        (("orders:0:1-2", "orders:0:3-4"), "named twice"),
        (("orders:0:0-5", "orders:1:2-5"), r"orders-1 both sides have read \[0, 4\), not all of"),
        (("orders:7:1-2",), "orders-7 both sides have read nothing"),
        (("other:0:1-2",), "other-0 both sides have read nothing"),
    ],
)
def test_offsets_that_nobody_can_compare_are_refused(
    orders: Lake, foreign: ForeignTable, asked: tuple[str, ...], message: str
) -> None:
    assert orders.point is not None
    foreign.write(*ROWS)

    with pytest.raises(ConfigurationError, match=message):
        compare(offsets=asked)


def test_a_row_without_a_coordinate_is_a_difference(orders: Lake, foreign: ForeignTable) -> None:
    assert orders.point is not None
    foreign.write(*ROWS)
    foreign.table.append(pa.Table.from_pylist([{"id": 7, "name": "stray"}], foreign.schema))

    answer = compare(rows_only=True)

    assert (answer.verdict, answer.right.unplaced) == ("different", 1)


def test_another_column_and_other_partitioning_are_differences_that_can_be_set_aside(
    orders: Lake, foreign: ForeignTable
) -> None:
    assert orders.point is not None
    with foreign.table.update_schema() as schema:
        schema.add_column("discount", DoubleType())
    with foreign.table.update_spec() as spec:
        spec.add_identity("name")
    foreign.write(*ROWS)

    answer = compare()

    assert answer.verdict == "different"
    assert answer.layout == (
        "column discount: only on the right: double",
        "partitioned by nothing on the left, by identity(name) on the right",
    )
    assert compare(rows_only=True).verdict == "equal"


def test_rows_in_other_partitions_of_the_same_spec_are_found(
    orders: Lake, foreign: ForeignTable
) -> None:
    """The manifests decide, not the rows: an engine prunes files by what they say."""
    twin = ForeignTable(orders.catalog, "legacy.twin").create()
    for table in (foreign, twin):
        with table.table.update_spec() as spec:
            spec.add_identity("name")
    foreign.write(*ROWS)
    twin.write(*ROWS)
    assert compare("legacy.orders", "legacy.twin").verdict == "equal"

    with twin.table.update_spec() as spec:
        spec.remove_field("name")
    with twin.table.update_spec() as spec:
        spec.add_identity("name")
    twin.table.delete("id == 3 and _kafka_metadata_partition == 0")
    with twin.table.update_spec() as spec:
        spec.remove_field("name")
    twin.write(ROWS[3])
    with twin.table.update_spec() as spec:
        spec.add_identity("name")

    answer = compare("legacy.orders", "legacy.twin")
    assert (answer.verdict, answer.layout) == ("different", ())
    assert answer.partitions[0].changed_columns == ("(partition values)",)


def test_columns_of_a_writer_nobody_knows_can_be_named(orders: Lake) -> None:
    fields = [pa.field("p", pa.int32()), pa.field("o", pa.int64())]
    other = ForeignTable(orders.catalog, "legacy.orders", values=[*VALUES, *fields])
    other = other.of(writer=type(other.writer)([], lambda _t, p, o, _ms: {"p": p, "o": o}))
    other.create().write(*ROWS)
    with pytest.raises(IncompatibleTableError, match="AutoMQ"):
        compare()

    answer = compare(right_columns="partition=p,offset=o")

    assert (answer.verdict, answer.right.writer) == ("equal", "named columns"), answer.layout


@pytest.mark.parametrize(
    "named", ["p", "partition=p", "partition=name,offset=o", "partition=p,offset=o,color=red"]
)
def test_wrong_names_of_columns_are_refused(
    orders: Lake, foreign: ForeignTable, named: str
) -> None:
    assert orders.point is not None
    foreign.write(*ROWS)

    with pytest.raises(ConfigurationError):
        compare(right_columns=named)


def test_a_table_without_a_topic_column_needs_a_topic(orders: Lake) -> None:
    for name in ("legacy.left", "legacy.right"):
        other = ForeignTable(orders.catalog, name, WRITERS["Redpanda"]).create()
        other.write(*ROWS)
    with pytest.raises(ConfigurationError, match="no column with the topic"):
        compare("legacy.left", "legacy.right")

    assert compare("legacy.left", "legacy.right", topic="orders").verdict == "equal"


def test_of_a_stream_with_several_topics_one_is_compared(orders: Lake, tmp_path: Path) -> None:
    path = tmp_path / "streams" / "orders.yaml"
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**content, "source": {"topics": ["orders", "sales"]}}))
    other = ForeignTable(orders.catalog, "legacy.orders", WRITERS["Redpanda"]).create()
    other.write(*ROWS)

    answer = compare(topic="orders")

    assert answer.verdict == "equal", answer.text
    assert [p.matched for p in answer.partitions] == [5, 4]


def test_freshness_stands_side_by_side(orders: Lake, foreign: ForeignTable) -> None:
    foreign.write(*ROWS)

    answer = compare()

    head = orders.table.current_snapshot()
    assert head is not None
    assert answer.left.newest_commit_at is not None
    assert int(answer.left.newest_commit_at.timestamp() * 1000) == head.timestamp_ms
    assert str(answer.right.newest_event_at) == "2026-09-21 14:13:20.004000+00:00"


@pytest.mark.parametrize(
    ("columns", "code"),
    [((), 0), (("--right-columns", "partition=id,offset=id"), 1)],
    ids=["equal is 0", "different is 1"],
)
def test_the_exit_code_says_whether_they_are_equal(
    orders: Lake, foreign: ForeignTable, columns: Sequence[str], code: int
) -> None:
    assert orders.point is not None
    foreign.write(*ROWS)

    done = CliRunner().invoke(app, ["compare", "orders", "legacy.orders", "--json", *columns])

    assert done.exit_code == code, done.output
    assert json.loads(done.stdout)["verdict"] == ("equal" if code == 0 else "different")


def test_ranges_are_shown_as_they_are_written(orders: Lake, foreign: ForeignTable) -> None:
    assert orders.point is not None
    foreign.write(*ROWS)

    asked = ["--offsets", "orders:0:0-5", "--offsets", "orders:1:1-3"]
    done = CliRunner().invoke(app, ["compare", "orders", "legacy.orders", *asked])

    assert done.exit_code == 0, done.output
    assert "│ [0, 5) │" in done.stdout
    assert "│ [1, 3) │" in done.stdout
    assert "7 records of the offsets orders:0:0-5, orders:1:1-3" in done.stdout.replace("\n", " ")


def test_the_page_escapes_every_name(orders: Lake, foreign: ForeignTable) -> None:
    assert orders.point is not None
    with foreign.table.update_schema() as schema:
        schema.add_column("<script>alert(1)</script>", StringType())
    foreign.write(*changed(ROWS, 0, 1, name="secret payload"))

    page = write_page(compare())

    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "http" not in page.replace("http-equiv", ""), "one file, nothing to load"
    assert "secret" not in page


def test_a_stream_that_has_not_begun_is_compared_by_its_rows(
    orders: Lake, foreign: ForeignTable, work: Workspace
) -> None:
    assert work.stream.stream == orders.stream.stream
    foreign.write(*ROWS)

    answer = compare("demo.orders", "legacy.orders")

    assert (answer.verdict, answer.left.writer) == ("equal", "Frazil")


DAY = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)
OURS = {
    "number": (pa.int32(), 7),
    "price": (pa.decimal128(9, 2), Decimal("1.50")),
    "real": (pa.float32(), 0.5),
    "zero": (pa.float64(), -0.0),
    "nothing": (pa.float64(), float("nan")),
    "at": (pa.timestamp("us"), DAY.replace(tzinfo=None)),
    "text": (pa.string(), "\u00e9"),
    "deep": (pa.struct([("a", pa.int32())]), {"a": 1}),
    "many": (pa.list_(pa.int32()), [1, 2]),
    "pairs": (pa.map_(pa.string(), pa.int32()), [("a", 1), ("b", 2)]),
}
THEIRS = {
    "number": (pa.int64(), 7),
    "price": (pa.decimal128(38, 4), Decimal("1.5000")),
    "real": (pa.float64(), 0.5),
    "zero": (pa.float64(), 0.0),
    "nothing": (pa.float64(), float("nan")),
    "at": (pa.timestamp("us", tz="UTC"), DAY),
    "text": (pa.binary(), "\u00e9".encode()),
    "deep": (pa.struct([("a", pa.int64())]), {"a": 1}),
    "many": (pa.list_(pa.int64()), [1, 2]),
    "pairs": (pa.map_(pa.string(), pa.int64()), [("b", 2), ("a", 1)]),
}
OTHER: dict[str, object] = {
    "number": 8,
    "price": Decimal("1.5001"),
    "real": 0.25,
    "zero": 1e-300,
    "nothing": None,
    "at": DAY.replace(microsecond=2),
    "text": "e\u0301".encode(),
    "deep": {"a": 2},
    "many": [2, 1],
    "pairs": [("a", 2), ("b", 1)],
}


def write_typed(
    lake: Lake, name: str, columns: dict[str, tuple[pa.DataType, object]], **values: object
) -> None:
    """Write one record of partition 0 with these columns."""
    fields = [pa.field(column, kind) for column, (kind, _) in columns.items()]
    row = {column: value for column, (_, value) in columns.items()} | values
    made = ForeignTable(lake.catalog, name, values=fields).create()
    made.write({"partition": 0, "offset": 0, **row})


@pytest.mark.parametrize("column", [None, *OTHER])
def test_a_value_in_another_type_is_the_same_and_another_value_is_not(
    lake: Lake, column: str | None
) -> None:
    write_typed(lake, "legacy.left", OURS)
    write_typed(lake, "legacy.right", THEIRS, **({column: OTHER[column]} if column else {}))

    answer = compare("legacy.left", "legacy.right")

    assert answer.layout == ()
    assert answer.partitions[0].changed_columns == ((column,) if column else ())
    assert answer.verdict == ("different" if column else "equal")


@pytest.mark.parametrize(
    ("windows", "start"),
    [
        ([(0, 10)], 50),
        ([(0, 10), (20, 50)], 20),
        ([(30, 50), (10, 30), (0, 5)], 10),
        ([(0, 50)], 0),
    ],
)
def test_what_lies_below_a_hole_of_a_backfill_is_not_judged(
    windows: list[tuple[int, int]], start: int
) -> None:
    spans = tuple(Span(low, high, index) for index, (low, high) in enumerate([(50, 90), *windows]))
    held = np.concatenate([np.arange(span.start, span.end) for span in spans])

    assert claim_range(np.sort(held), 50, 90, spans) == OffsetRange(start, 90)
