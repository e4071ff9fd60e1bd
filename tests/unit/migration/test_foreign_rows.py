"""Where other writers' tables have the coordinates of their records."""

import pyarrow as pa
import pytest
from support.foreign_tables import VALUES, WRITERS, ForeignTable, records
from support.lake import Lake

from frazil.errors import ConfigurationError, IncompatibleTableError
from frazil.migration.foreign_rows import find_columns, read_offsets

NAMED = "partition=p,offset=o"


@pytest.mark.parametrize("writer", WRITERS)
def test_the_coordinates_of_every_writer_are_recognised(lake: Lake, writer: str) -> None:
    foreign = ForeignTable(lake.catalog, "legacy.orders", WRITERS[writer]).create()
    foreign.write(*records(5, 4))

    columns = find_columns(foreign.table.schema(), None, foreign.name)
    found = read_offsets(foreign.table, columns, "orders")

    assert [each.writer for each in columns] == [writer]
    assert {key: offsets.tolist() for key, offsets in found.offsets.items()} == {
        ("orders", 0): [0, 1, 2, 3, 4],
        ("orders", 1): [0, 1, 2, 3],
    }


def test_rows_without_a_coordinate_are_counted(lake: Lake) -> None:
    foreign = ForeignTable(lake.catalog, "legacy.orders").create().write(*records(2))
    foreign.table.append(pa.Table.from_pylist([{"id": 7, "name": "stray"}], foreign.schema))

    columns = find_columns(foreign.table.schema(), None, foreign.name)

    assert read_offsets(foreign.table, columns, "orders").without_offset == 1


def test_columns_of_an_unknown_writer_can_be_named(lake: Lake) -> None:
    fields = [pa.field("p", pa.int32()), pa.field("o", pa.int64())]
    foreign = ForeignTable(lake.catalog, "legacy.orders", values=[*VALUES, *fields])
    foreign = foreign.of(writer=type(foreign.writer)([], lambda _t, p, o, _ms: {"p": p, "o": o}))
    schema = foreign.create().table.schema()
    with pytest.raises(IncompatibleTableError, match="AutoMQ"):
        find_columns(schema, None, foreign.name)

    (columns,) = find_columns(schema, NAMED, foreign.name)

    assert (columns.writer, columns.names) == ("named columns", ("p", "o"))


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("p", "does not name offset columns"),
        ("partition=p", "does not name offset columns"),
        ("partition=name,offset=o", "wrong type: name is string, o is missing$"),
        ("partition=p,offset=o,color=red", "does not name offset columns"),
    ],
)
def test_wrong_names_of_columns_are_refused(lake: Lake, named: str, reason: str) -> None:
    foreign = ForeignTable(lake.catalog, "legacy.orders").create()

    with pytest.raises(ConfigurationError, match=f"(?m){reason}"):
        find_columns(foreign.table.schema(), named, foreign.name)
