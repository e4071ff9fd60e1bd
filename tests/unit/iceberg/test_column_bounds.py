"""Bounds of long texts and bytes in manifests cover the largest value, and are valid UTF-8."""

import uuid

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.expressions import EqualTo
from pyiceberg.io import pyarrow as writer
from pyiceberg.schema import Schema
from pyiceberg.table import Table, WriteTask
from pyiceberg.types import BinaryType, NestedField, StringType
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string
from support.lake import Lake

from frazil.iceberg.catalog import NewTable
from frazil.iceberg.column_bounds import truncate_upper_bound

LAST = "\U0010ffff"
EDGES = st.sampled_from(["a", "\x7f", "\u07ff", "\ud7ff", "\ue000", "\uffff", "\U00010000", LAST])
TEXTS = st.text(EDGES | st.characters(exclude_categories=["Cs"]), max_size=24)
LARGEST = ("\ud7ff" * 17, "x" * 15 + "\ud7ffz", "a" + LAST * 16, "\ud7ff" + LAST * 20, LAST * 17)


@given(TEXTS, st.none() | st.integers(1, 20))
@example("\ud7ff" * 17, 16)
def test_a_bound_of_text_is_the_smallest_that_covers_it(text: str, length: int | None) -> None:
    bound = truncate_upper_bound(text, length)

    start = text[:length]
    if bound is None:
        assert set(start) == {LAST}
        assert len(text) > len(start)
        return
    assert bound.encode() >= text.encode()
    assert len(bound) <= len(start)
    if bound != text:
        before = chr(0xD7FF if bound[-1] == "\ue000" else ord(bound[-1]) - 1)
        assert (bound[:-1] + before + LAST * len(text)).encode() > text.encode()
        assert bound[:-1] + before <= start


@given(st.binary(max_size=24) | st.lists(st.sampled_from([0, 254, 255])).map(bytes))
def test_a_bound_of_bytes_covers_them(value: bytes) -> None:
    bound = truncate_upper_bound_binary_string(value, 16)

    assert set(value[:16]) == {255} if bound is None else bound >= value


@pytest.fixture
def table(lake: Lake) -> Table:
    schema = Schema(
        NestedField(1, "s", StringType(), required=False),
        NestedField(2, "b", BinaryType(), required=False),
    )
    return lake.store.create("demo.bounds", NewTable(schema))


@pytest.mark.parametrize("largest", LARGEST)
def test_a_file_with_this_largest_text_is_written_and_found(table: Table, largest: str) -> None:
    rows = pa.table({"s": ["a", largest], "b": [b"", b"\xff" * 17]}, table.schema().as_arrow())
    task = WriteTask(uuid.uuid4(), 0, table.schema(), rows.to_batches())

    (file,) = writer.write_file(table.io, table.metadata, iter([task]))
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        append.append_data_file(file)

    assert 2 not in file.upper_bounds
    assert (1 in file.upper_bounds) == (largest != LAST * 17)
    assert len(table.scan(EqualTo("s", largest)).to_arrow()) == 1
