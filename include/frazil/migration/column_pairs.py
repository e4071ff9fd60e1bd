"""Pair the columns of two tables, and write SQL that makes equal values of two types identical.

Pure functions. Spark compares the results with `<=>`: it takes null for null, NaN for NaN and 0.0
for -0.0, also inside of structs and arrays; it cannot compare maps, which become sorted arrays.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.errors import IncompatibleTableError
from frazil.iceberg.table_schema import write_shape
from frazil.streams.column_types import quote_name, write_text

_MAX_DIGITS = 38
"""Of a decimal in Spark."""

_GREATEST_LONG = 2**63 - 1

_BYTES = (StringType, BinaryType, FixedType)
_INSTANTS = (TimestampType, TimestamptzType)
_FLOATS = (FloatType, DoubleType)
_INTEGERS = (IntegerType, LongType)
_NUMBERS = (*_INTEGERS, *_FLOATS, DecimalType)
_SCALARS = (*_BYTES, *_INSTANTS, *_NUMBERS, BooleanType, DateType, UUIDType)


@dataclass(frozen=True)
class ColumnPair:
    """One column name on both sides; a type is None where the side lacks the column.

    `values` are SQL for both sides, None where the types cannot be compared. A difference is one
    that a reader of the table meets: a lacking column or field, or a type of another kind.
    """

    name: str
    left: str | None
    right: str | None
    values: tuple[str, str] | None
    note: str = ""
    is_difference: bool = False


def require_readable_columns(schema: Schema, table: str) -> None:
    """Check that Spark can read all columns of a table.

    Raises:
        IncompatibleTableError: a column has type `time`, with which Spark cannot open the table.
    """
    unreadable = [n for n in schema.column_names if isinstance(schema.find_type(n), TimeType)]
    if unreadable:
        raise IncompatibleTableError(
            f"table {table} has columns of type time: {', '.join(unreadable)}; Spark "
            "cannot open such a table",
            "copy the table without these columns, or with the time as a string, and compare the "
            "copy",
        )


def pair_columns(
    left: Iterable[NestedField], right: Iterable[NestedField]
) -> tuple[ColumnPair, ...]:
    """Pair columns by name, in the order of the left side."""
    ours, theirs = ({field.name: field for field in side} for side in (left, right))
    return tuple(_pair(name, ours.get(name), theirs.get(name)) for name in ours | theirs)


def _pair(name: str, left: NestedField | None, right: NestedField | None) -> ColumnPair:
    ours, theirs = (write_shape(side.field_type) if side else None for side in (left, right))
    if left is None or right is None:
        note = f"only on the right: {theirs}" if left is None else f"only on the left: {ours}"
        return ColumnPair(name, ours, theirs, None, note, is_difference=True)
    values = _write_both(left.field_type, right.field_type, quote_name(name))
    if values is None:
        note = f"{ours} beside {theirs}, not comparable"
        return ColumnPair(name, ours, theirs, None, note, is_difference=True)
    lone = list(_list_lone_fields(left.field_type, right.field_type, name))
    if lone:
        return ColumnPair(name, ours, theirs, values, "; ".join(lone), is_difference=True)
    note = f"{ours} and {theirs}, compared by value" if ours != theirs else ""
    return ColumnPair(name, ours, theirs, values, note)


def _write_both(left: IcebergType, right: IcebergType, sql: str) -> tuple[str, str] | None:
    ours, theirs = write_comparable(left, right, sql), write_comparable(right, left, sql)
    return (ours, theirs) if ours is not None and theirs is not None else None


def write_comparable(own: IcebergType, other: IcebergType, sql: str, depth: int = 0) -> str | None:
    """Write the value `sql` of type `own` in the form that `own` and `other` have in common.

    None where values of the two types cannot be compared. `depth` numbers the variables of nested
    lambda functions.
    """
    item = f"x{depth}"
    match own, other:
        case StructType(), StructType():
            return _write_struct(own, other, sql, depth)
        case ListType(), ListType():
            element = write_comparable(own.element_type, other.element_type, item, depth + 1)
            return f"transform({sql}, {item} -> {element})" if element else None
        case MapType(), MapType():
            key = write_comparable(own.key_type, other.key_type, f"{item}.key", depth + 1)
            value = write_comparable(own.value_type, other.value_type, f"{item}.value", depth + 1)
            if key is None or value is None:
                return None
            entries = f"transform(map_entries({sql}), {item} -> struct({key} AS k, {value} AS v))"
            return f"sort_array({entries})"
    return _write_scalar(own, other, sql)


def _write_struct(own: StructType, other: StructType, sql: str, depth: int) -> str | None:
    """Write the fields that both structs have, in the order of their names."""
    theirs = {field.name: field.field_type for field in other.fields}
    fields = [
        (
            field.name,
            write_comparable(
                field.field_type, theirs[field.name], f"{sql}.{quote_name(field.name)}", depth
            ),
        )
        for field in sorted(own.fields, key=lambda each: each.name)
        if field.name in theirs
    ]
    if not fields or any(value is None for _, value in fields):
        return None
    listed = ", ".join(f"{write_text(name)}, {value}" for name, value in fields)
    return f"CASE WHEN {sql} IS NOT NULL THEN named_struct({listed}) END"


def _write_scalar(own: IcebergType, other: IcebergType, sql: str) -> str | None:
    both = (own, other)
    if own == other and isinstance(own, _SCALARS):
        return sql
    if all(isinstance(each, _BYTES) for each in both):
        return f"CAST({sql} AS BINARY)"
    if all(isinstance(each, _INSTANTS) for each in both):
        return f"CAST({sql} AS TIMESTAMP)"
    if all(isinstance(each, _NUMBERS) for each in both):
        return _write_number(own, other, sql)
    return None


def _write_number(own: IcebergType, other: IcebergType, sql: str) -> str:
    both = (own, other)
    if any(isinstance(each, _FLOATS) for each in both):
        is_inexact = any(isinstance(each, (LongType, DecimalType)) for each in both)
        return _write_rounded(own, sql) if is_inexact else f"CAST({sql} AS DOUBLE)"
    if all(isinstance(each, _INTEGERS) for each in both):
        return f"CAST({sql} AS BIGINT)"
    return _write_decimal(own, other, sql)


def _write_rounded(own: IcebergType, sql: str) -> str:
    """Write a number as its double, and whether that double casts back to the same number.

    A long or decimal can have more digits than a double: its nearest double is not its value.
    """
    double = f"CAST({sql} AS DOUBLE)"
    is_same = "TRUE"
    if isinstance(own, DecimalType):
        back = f"TRY_CAST({double} AS DECIMAL({own.precision}, {own.scale}))"
        is_same = f"{back} <=> {sql}"
    elif isinstance(own, _INTEGERS):
        # Spark casts the double 2^63 to the greatest long, which is 2^63 - 1.
        is_same = f"TRY_CAST({double} AS BIGINT) <=> {sql} AND NOT {sql} <=> {_GREATEST_LONG}"
    return f"named_struct('double', {double}, 'is_same', {is_same})"


def _write_decimal(own: IcebergType, other: IcebergType, sql: str) -> str:
    """Write an exact number as a decimal that holds both types, or as text where none does."""
    (whole, scale), (other_whole, other_scale) = _count_digits(own), _count_digits(other)
    whole, widest = max(whole, other_whole), max(scale, other_scale)
    if whole + widest <= _MAX_DIGITS:
        return f"CAST({sql} AS DECIMAL({whole + widest}, {widest}))"
    text = f"CAST({sql} AS STRING)"
    return f"TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM {text}))" if scale else text


def _count_digits(exact: IcebergType) -> tuple[int, int]:
    """Count the digits before and after the point."""
    if isinstance(exact, DecimalType):
        return exact.precision - exact.scale, exact.scale
    return (10 if isinstance(exact, IntegerType) else 19), 0


def _list_lone_fields(left: IcebergType, right: IcebergType, path: str) -> Iterable[str]:
    """List the fields of nested structs that one side lacks."""
    match left, right:
        case StructType(), StructType():
            ours, theirs = ({f.name: f for f in side.fields} for side in (left, right))
            for name in ours | theirs:
                if name not in ours or name not in theirs:
                    yield f"{path}.{name} only on the {'left' if name in ours else 'right'}"
                else:
                    types = (ours[name].field_type, theirs[name].field_type)
                    yield from _list_lone_fields(*types, f"{path}.{name}")
        case ListType(), ListType():
            yield from _list_lone_fields(left.element_type, right.element_type, f"{path}.element")
        case MapType(), MapType():
            yield from _list_lone_fields(left.key_type, right.key_type, f"{path}.key")
            yield from _list_lone_fields(left.value_type, right.value_type, f"{path}.value")


def describe_partitioning(schema: Schema, spec: PartitionSpec) -> tuple[str, ...]:
    """Describe a partition spec, as `bucket[4](id)`."""
    return tuple(f"{f.transform}({schema.find_column_name(f.source_id)})" for f in spec.fields)


def write_partition_values(table: Table) -> str:
    """Write SQL for the partition values that the manifests give a row's data file.

    Null for files without any, so that tables that were never partitioned compare equal.
    """
    specs = sorted(table.specs().values(), key=lambda spec: spec.spec_id, reverse=True)
    names: dict[int, str] = {}
    for spec in specs:  # Iceberg's `_partition` has the newest name of each field
        for each in spec.fields:
            names.setdefault(each.field_id, each.name)
    cases = ""
    for spec in specs:
        parts = [
            f"{write_text(label)}, CAST(_partition.{quote_name(names[each.field_id])} AS STRING)"
            for label, each in zip(
                describe_partitioning(table.schema(), spec), spec.fields, strict=True
            )
        ]
        if parts:
            cases += f" WHEN {spec.spec_id} THEN array({', '.join(parts)})"
    return f"CASE _spec_id{cases} END" if cases else "CAST(NULL AS ARRAY<STRING>)"
