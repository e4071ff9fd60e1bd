"""A table that Spark wrote and changed is compared by value with one that PyIceberg wrote."""

import secrets
from collections.abc import Iterator

import pyarrow as pa
import pytest
from conftest import Stack
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession
from support.foreign_tables import WRITERS, ForeignTable

from frazil.migration.comparison import compare_tables
from frazil.migration.messages import CompareRequest, Comparison

pytestmark = [pytest.mark.spark, pytest.mark.stack]

ROWS = 1000
LEFT = {
    "id": (pa.int32(), lambda n: n),
    "price": (pa.decimal128(12, 2), lambda n: None if n % 7 == 0 else n),
    "real": (pa.float64(), lambda n: float("nan") if n % 5 == 0 else n / 4),
    "zero": (pa.float64(), lambda _: 0.0),
    "text": (pa.string(), lambda n: f"caf\u00e9 {n}"),
    "deep": (
        pa.struct([("a", pa.int32()), ("tags", pa.list_(pa.string()))]),
        lambda n: {"a": n, "tags": [str(n), None] if n % 2 else []},
    ),
    "pairs": (pa.map_(pa.string(), pa.int32()), lambda n: [("a", n), ("b", 1)]),
}
RIGHT_SQL = """
    SELECT bigint(id) AS id, if(id % 7 = 0, NULL, decimal(id)) AS price,
      if(id % 5 = 0, double('NaN'), id / 4) AS real, double('-0.0') AS zero,
      concat('caf\u00e9 ', id) AS text,
      named_struct('a', bigint(id), 'tags', if(id % 2 = 1, array(string(id), NULL),
        CAST(array() AS array<string>))) AS deep,
      map('b', bigint(1), 'a', bigint(id)) AS pairs,
      struct(int(id % 2) AS partition, bigint(id div 2) AS offset,
        bigint(1790000000000 + id div 2) AS timestamp) AS _kafka_metadata
    FROM range(1000)
"""


@pytest.fixture
def spark(stack: Stack) -> Iterator[SparkSession]:
    """Open a session on the stack's Spark Connect server."""
    address = str(stack.facts["spark_connect"]["url"])
    session = SparkSession.builder.remote(address).create()
    yield session
    session.stop()


@pytest.fixture
def name(stack: Stack, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> str:
    """Fill `<name>_left` by PyIceberg and `<name>_right` by Spark with the same records."""
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    name = f"compared.c{secrets.token_hex(4)}"
    catalog = load_catalog("lake", **stack.catalog_properties)
    fields = [pa.field(column, kind) for column, (kind, _) in LEFT.items()]
    left = ForeignTable(catalog, f"{name}_left", WRITERS["AutoMQ Table Topic"], fields).create()
    left.write(
        *(
            {c: make(n) for c, (_, make) in LEFT.items()} | {"partition": n % 2, "offset": n // 2}
            for n in range(ROWS)
        )
    )
    spark.sql(
        f"CREATE TABLE lake.{name}_right USING iceberg TBLPROPERTIES ('format-version' = '2', "
        f"'write.delete.mode' = 'merge-on-read') AS {RIGHT_SQL}"
    )
    return name


def compare(name: str) -> Comparison:
    request = CompareRequest(left=f"{name}_left", right=f"{name}_right", topic="orders")
    return compare_tables(request, "test")


def test_what_two_engines_wrote_is_the_same_by_value(name: str) -> None:
    answer = compare(name)

    assert answer.verdict == "equal", answer.text
    assert [report.matched for report in answer.partitions] == [500, 500]
    assert {c.name for c in answer.columns if c.note} == {"id", "price", "deep", "pairs"}


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ("price = price + 1", "price"),
        ("real = real + 0.25", "real"),
        ("zero = 1e-300D", "zero"),
        ("text = concat('cafe', '\u0301', ' ', id)", "text"),
        ("deep = named_struct('a', deep.a, 'tags', array(NULL, string(id)))", "deep"),
        ("pairs = map('a', bigint(1), 'b', bigint(id))", "pairs"),
    ],
)
def test_one_changed_value_is_found_with_its_column(
    spark: SparkSession, name: str, change: str, column: str
) -> None:
    spark.sql(f"UPDATE lake.{name}_right SET {change} WHERE id = 701")  # noqa: S608 - our own

    answer = compare(name)

    assert answer.verdict == "different"
    changed = {p.partition: (p.samples.changed, p.changed_columns) for p in answer.partitions}
    assert changed == {0: ((), ()), 1: ((350,), (column,))}


def test_a_row_that_a_delete_file_hides_is_missing(spark: SparkSession, name: str) -> None:
    spark.sql(f"DELETE FROM lake.{name}_right WHERE id = 701")  # noqa: S608 - our own

    answer = compare(name)

    assert [report.samples.missing for report in answer.partitions] == [(), (350,)]
