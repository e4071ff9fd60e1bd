"""Statistics of Parquet files: bounds cover the largest value, and are valid UTF-8."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, NestedField, StringType
from support.lake import Lake

from frazil.iceberg.catalog import NewTable
from frazil.iceberg.parquet_files import build_data_file, read_statistics

LAST = "\U0010ffff"
LARGEST = {
    "\ud7ff" * 17: False,
    "x" * 15 + "\ud7ffz": False,
    "\ud7ff" + LAST * 20: False,
    LAST * 17: False,
    "a" + LAST * 16: True,
    "\ud7fe" * 17: True,
    "\ud7ff": True,
}
"""Text → whether it has an upper bound: PyIceberg increments the last of 16 characters."""


@pytest.fixture
def table(lake: Lake) -> Table:
    schema = Schema(
        NestedField(1, "s", StringType(), required=False),
        NestedField(2, "b", BinaryType(), required=False),
    )
    return lake.store.create("demo.bounds", NewTable(schema))


@pytest.mark.parametrize(("largest", "is_bounded"), LARGEST.items())
def test_a_file_with_this_largest_text_is_described_and_found(
    table: Table,
    largest: str,
    *,
    is_bounded: bool,
) -> None:
    rows = pa.table({"s": ["a", largest], "b": [b"", b"\xff" * 17]}, table.schema().as_arrow())
    path = f"{table.location()}/data/1.parquet"
    with table.io.new_output(path).create() as sink:
        pq.write_table(rows, sink)
    source = table.io.new_input(path)
    with source.open() as stream:
        statistics = read_statistics(table, pq.ParquetFile(stream).metadata)
    file = build_data_file((path, len(source)), (0, Record()), statistics)
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        append.append_data_file(file)

    assert 2 not in file.upper_bounds
    assert (1 in file.upper_bounds) == is_bounded
    assert len(table.scan(EqualTo("s", largest)).to_arrow()) == 1
