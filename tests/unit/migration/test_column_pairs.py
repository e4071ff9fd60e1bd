"""Pairs of columns: which types are compared, and which differences are named."""

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StructType, TimeType
from support.foreign_tables import ForeignTable
from support.lake import Lake

from frazil.errors import IncompatibleTableError
from frazil.migration.column_pairs import (
    pair_columns,
    require_readable_columns,
    write_partition_values,
)

LONG, TEXT, ZONED = pa.int64(), pa.string(), pa.timestamp("us", tz="UTC")


def schema_of(kind: pa.DataType) -> Schema:
    with SqlCatalog("memory", uri="sqlite://") as catalog:
        return catalog._convert_schema_if_needed(pa.schema([("x", kind)]))  # noqa: SLF001


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param(TEXT, LONG, id="text and number"),
        pytest.param(LONG, ZONED, id="a number may be any unit of time"),
        pytest.param(pa.date32(), ZONED, id="day and instant"),
        pytest.param(pa.bool_(), LONG, id="boolean and number"),
        pytest.param(pa.uuid(), TEXT, id="uuid and text"),
        pytest.param(pa.list_(LONG), LONG, id="list and element"),
        pytest.param(pa.list_(TEXT), pa.list_(LONG), id="inside a list"),
        pytest.param(pa.map_(TEXT, TEXT), pa.map_(TEXT, LONG), id="inside a map"),
        pytest.param(pa.struct([("a", TEXT)]), pa.struct([("a", LONG)]), id="inside a struct"),
        pytest.param(pa.struct([("a", TEXT)]), pa.struct([("b", TEXT)]), id="no common field"),
    ],
)
def test_types_of_two_kinds_are_a_difference(ours: pa.DataType, theirs: pa.DataType) -> None:
    (pair,) = pair_columns(schema_of(ours).fields, schema_of(theirs).fields)

    assert (pair.values, pair.is_difference) == (None, True)


def test_a_column_or_field_that_only_one_side_has_is_named() -> None:
    wider = pa.struct([("a", LONG), ("b", TEXT)])
    narrow = schema_of(pa.struct([("a", LONG)])).fields

    (pair,) = pair_columns(narrow, schema_of(wider).fields)
    (left,) = pair_columns(narrow, ())
    (right,) = pair_columns((), narrow)

    assert (pair.note, pair.is_difference) == ("x.b only on the right", True)
    assert (left.note, left.values) == ("only on the left: struct<a:long>", None)
    assert (right.note, right.values) == ("only on the right: struct<a:long>", None)


def test_a_field_of_a_map_that_only_one_side_has_is_named() -> None:
    wider, narrow = pa.struct([("a", LONG), ("b", TEXT)]), pa.struct([("a", LONG)])

    (pair,) = pair_columns(
        schema_of(pa.map_(wider, narrow)).fields, schema_of(pa.map_(narrow, wider)).fields
    )

    assert pair.is_difference
    assert pair.note == "x.key.b only on the left; x.value.b only on the right"


@pytest.mark.parametrize(
    ("exact", "written"),
    [
        pytest.param(
            LONG,
            "TRY_CAST(CAST(`x` AS DOUBLE) AS BIGINT) <=> `x` AND NOT `x` <=> 9223372036854775807",
            id="long",
        ),
        pytest.param(
            pa.decimal128(20, 3),
            "TRY_CAST(CAST(`x` AS DOUBLE) AS DECIMAL(20, 3)) <=> `x`",
            id="decimal",
        ),
    ],
)
def test_an_exact_number_with_more_digits_than_a_double_equals_no_double(
    exact: pa.DataType, written: str
) -> None:
    (pair,) = pair_columns(schema_of(exact).fields, schema_of(pa.float64()).fields)
    (swapped,) = pair_columns(schema_of(pa.float32()).fields, schema_of(exact).fields)

    sides = tuple(
        f"named_struct('double', CAST(`x` AS DOUBLE), 'is_same', {is_same})"
        for is_same in (written, "TRUE")
    )
    assert pair.values == sides
    assert swapped.values == sides[::-1]


def test_an_int_is_exact_as_a_double() -> None:
    (pair,) = pair_columns(schema_of(pa.int32()).fields, schema_of(pa.float64()).fields)

    assert pair.values == ("CAST(`x` AS DOUBLE)", "CAST(`x` AS DOUBLE)")


def test_names_are_quoted() -> None:
    with SqlCatalog("memory", uri="sqlite://") as catalog:
        schema = catalog._convert_schema_if_needed(  # noqa: SLF001
            pa.schema([("a`.b c", pa.struct([("it's", LONG)]))])
        )

    (pair,) = pair_columns(schema.fields, schema.fields)

    assert pair.values is not None
    assert "`a``.b c`.`it's`" in pair.values[0]
    assert "'it's'" not in pair.values[0]


def test_a_table_that_spark_cannot_open_is_refused() -> None:
    inner = StructType(NestedField(2, "at", TimeType()))

    with pytest.raises(IncompatibleTableError, match=r"legacy\.a has columns of type time: x\.at"):
        require_readable_columns(Schema(NestedField(1, "x", inner)), "legacy.a")


def test_partition_values_are_read_by_the_spec_of_each_file(lake: Lake) -> None:
    foreign = ForeignTable(lake.catalog, "legacy.orders").create()
    assert write_partition_values(foreign.table) == "CAST(NULL AS ARRAY<STRING>)"

    with foreign.table.update_spec() as spec:
        spec.add_identity("name")

    written = write_partition_values(foreign.table)
    assert written == (
        "CASE _spec_id WHEN 1 THEN array('identity(name)', CAST(_partition.`name` AS STRING)) END"
    )
