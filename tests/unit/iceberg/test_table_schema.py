"""Properties that columns and partitions demand: no statistics of uuids, no names too long."""

import pytest

from frazil.iceberg.table_schema import (
    build_partition_spec,
    build_table_schema,
    list_required_properties,
)
from frazil.streams.column_types import parse_column
from frazil.streams.partitioning import parse_partition_field

COLUMNS = tuple(
    parse_column(name, text)
    for name, text in {
        "id": "long!",
        "text": "string",
        "blob": "binary",
        "price": "decimal(38,10)",
        "at": "timestamptz",
        "who": "struct<uid: uuid, name: string>!",
        "uid": "uuid",
        "n" * 250: "int",
    }.items()
)
FLAT = {
    "write.object-storage.enabled": "true",
    "write.object-storage.partitioned-paths": "false",
}


def list_required(*partition_by: str) -> dict[str, str]:
    schema = build_table_schema(COLUMNS)
    fields = tuple(parse_partition_field(text, COLUMNS) for text in partition_by)
    required = list_required_properties(schema, build_partition_spec(schema, fields))
    return {name: value for name, value in required.items() if "stats" not in name}


def test_files_have_no_statistics_of_uuids_at_any_depth() -> None:
    schema = build_table_schema(COLUMNS)

    assert list_required_properties(schema, build_partition_spec(schema, ())) == {
        "write.parquet.stats-enabled.column.who.uid": "false",
        "write.parquet.stats-enabled.column.uid": "false",
    }


@pytest.mark.parametrize(
    "partition_by",
    [
        ["text"],
        ["blob"],
        ["who.name"],
        ["truncate(text, 21)"],  # text_trunc= and 21 characters of 12 bytes
        ["truncate(blob, 61)"],
        ["n" * 250],
        ["truncate(text, 20)", "truncate(who.name, 18)", "price", "at", "uid"],
    ],
    ids=", ".join,
)
def test_a_value_that_may_be_too_long_for_a_folder_is_in_no_path(partition_by: list[str]) -> None:
    assert list_required(*partition_by) == FLAT


@pytest.mark.parametrize(
    "partition_by",
    [
        [],
        ["truncate(text, 20)", "truncate(blob, 60)"],
        ["id", "price", "at", "uid"],
        ["day(at)", "bucket(text, 16)", "bucket(blob, 16)", "truncate(price, 10)"],
    ],
    ids=", ".join,
)
def test_other_values_stay_in_the_paths(partition_by: list[str]) -> None:
    assert list_required(*partition_by) == {}
