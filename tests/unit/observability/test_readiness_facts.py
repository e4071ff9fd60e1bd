"""A file that asks for another layout than the table has is told, and changes nothing."""

from dataclasses import replace

import pytest
from support.lake import Lake, make_stream

from frazil.observability.readiness_facts import list_differences


@pytest.fixture
def partitioned(lake: Lake) -> Lake:
    """Begin a table with a layout beside the lake's own."""
    stream = make_stream(
        "shipped",
        table={
            "name": "demo.shipped",
            "partition_by": ["bucket(id, 4)"],
            "sort_by": ["name"],
            "properties": {"write.target-file-size-bytes": "1000000"},
        },
    )
    lake.begin(stream)
    return replace(lake, stream=stream)


def test_a_table_that_its_file_made_differs_in_nothing(partitioned: Lake) -> None:
    assert list_differences(partitioned.table, partitioned.stream) == ()


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"partition_by": ["bucket(id, 8)"]}, "is bucket(id, 8), the table has bucket(id, 4)"),
        ({"sort_by": ["id"]}, "sort_by is id, the table has name ASC NULLS FIRST"),
        ({"properties": {"write.parquet.page-size-bytes": "900"}}, "the table has none"),
        ({"properties": {"write.target-file-size-bytes": "9"}}, "the table has 1000000"),
    ],
    ids=["partitions", "order", "a new property", "another value"],
)
def test_what_the_file_asks_for_later_is_named(
    partitioned: Lake, edit: dict[str, object], told: str
) -> None:
    plain = partitioned.stream.table.model_dump(exclude_unset=True)
    edited = make_stream("shipped", table={**plain, **edit})

    (difference,) = list_differences(partitioned.table, edited)

    assert told in difference


def test_what_the_file_leaves_out_is_the_table_s_own_matter(partitioned: Lake) -> None:
    assert list_differences(partitioned.table, make_stream(table={"name": "demo.shipped"})) == ()


def test_a_property_that_another_engine_set_wrongly_is_named(partitioned: Lake) -> None:
    with partitioned.table.transaction() as transaction:
        transaction.set_properties({"read.split.target-size": "0"})

    (difference,) = list_differences(partitioned.table, partitioned.stream)

    assert difference.startswith("property read.split.target-size of the table is 0: it must be")
