"""Partitions and sort order in stream files: `day(ts)`, `bucket(id, 16)`, `carrier`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frazil.ledger.keys import KAFKA_COLUMN
from frazil.streams.column_types import Column, FieldError, Primitive, StructType, format_type

_MAX_WIDTH = 2**31 - 1
_CALL = re.compile(r"\s*(?:(\w+)\s*\(\s*([\w.]+)\s*(?:,\s*(\d+)\s*)?\)|([\w.]+))\s*\Z")
_TIME_TYPES = frozenset({"date", "timestamp", "timestamptz"})
_HOUR_TYPES = frozenset({"timestamp", "timestamptz"})
_BUCKET_TYPES = frozenset(
    {"int", "long", "decimal", "date", "timestamp", "timestamptz"}
    | {"string", "uuid", "fixed", "binary"}
)
_TRUNCATE_TYPES = frozenset({"int", "long", "decimal", "string", "binary"})
_ALL_TYPES = _BUCKET_TYPES | {"boolean", "float", "double"}

ALLOWED_TYPES: Mapping[str, frozenset[str]] = {
    "identity": _ALL_TYPES - {"float", "double", "fixed"},
    "year": _TIME_TYPES,
    "month": _TIME_TYPES,
    "day": _TIME_TYPES,
    "hour": _HOUR_TYPES,
    "bucket": _BUCKET_TYPES,
    "truncate": _TRUNCATE_TYPES,
}
"""Transform → the column types that it supports (Iceberg spec, Partition Transforms).

`identity` leaves out `fixed`: Iceberg's Java library writes such partition values with a length
that its own schema does not declare, and other libraries cannot read the manifest.
"""


@dataclass(frozen=True)
class PartitionField:
    """One partition transform; `width` is the parameter of bucket and truncate."""

    transform: str
    column: str
    width: int | None = None

    @property
    def iceberg_transform(self) -> str:
        """Return the transform as in Iceberg's metadata."""
        return self.transform if self.width is None else f"{self.transform}[{self.width}]"

    @property
    def text(self) -> str:
        """Return the transform as in stream files."""
        if self.transform == "identity":
            return self.column
        width = "" if self.width is None else f", {self.width}"
        return f"{self.transform}({self.column}{width})"

    @property
    def name(self) -> str:
        """Return the name of the partition field, as Spark names it."""
        column = self.column.replace(".", "_")
        match self.transform:
            case "identity":
                return column
            case "bucket" | "truncate":
                return f"{column}_{'bucket' if self.transform == 'bucket' else 'trunc'}"
        return f"{column}_{self.transform}"

    @property
    def has_column_name(self) -> bool:
        """Return whether it has the name of its column, as only an identity may."""
        return self.transform == "identity" and self.name == self.column


def validate_layout(
    partition_by: Sequence[str], sort_by: Sequence[str], columns: tuple[Column, ...]
) -> None:
    """Check the partition transforms and the sort order of a table with these columns.

    Raises:
        FieldError: with the entry that does not fit.
    """
    before: list[PartitionField] = []
    for index, text in enumerate(partition_by):
        try:
            before.append(parse_partition_field(text, columns, before))
        except ValueError as error:
            raise FieldError(("table", "partition_by", index), str(error)) from error
    for index, name in enumerate(sort_by):
        _validate_sorted(("table", "sort_by", index), name, columns)


def _validate_sorted(place: tuple[str | int, ...], name: str, columns: tuple[Column, ...]) -> None:
    """Check that a column of the sort order exists and has values that Iceberg can sort."""
    types = {column.name: column.type for column in columns}
    if name not in types:
        reason = f"column {name!r} is not among {', '.join(sorted(types))}"
        if "(" in name:
            reason += "; name the column without a transform"
        raise FieldError(place, reason)
    if not isinstance(types[name], Primitive):
        fitting = [each for each, kind in types.items() if isinstance(kind, Primitive)]
        reason = (
            f"{name} is {format_type(types[name])}, which has no order; remove it, or "
            f"sort by one of: {', '.join(fitting) or 'none'}"
        )
        raise FieldError(place, reason)


def name_source(text: str) -> str:
    """Return the column that an entry of `partition_by` names; empty for a syntax error."""
    match = _CALL.match(text)
    return (match[2] or match[4]) if match else ""


def list_own_names(partition_by: Sequence[str]) -> frozenset[str]:
    """Return the names of partition fields that are not their column's, in lower case.

    Raises:
        ValueError: a syntax error.
    """
    fields = map(_split, partition_by)
    return frozenset(each.name.lower() for each in fields if not each.has_column_name)


def parse_partition_field(
    text: str, columns: tuple[Column, ...], before: Sequence[PartitionField] = ()
) -> PartitionField:
    """Parse one entry of `partition_by` and check it against the columns and earlier entries.

    Raises:
        ValueError: a syntax error, an unknown column, a transform that does not support the
            column's type, or a field name that another field or column has, which Spark
            cannot load.
    """
    field = _split(text)
    if field.transform not in ALLOWED_TYPES:
        message = f"unknown transform {field.transform!r}; known: {', '.join(ALLOWED_TYPES)}"
        raise ValueError(message)
    if (field.width is not None) != (field.transform in {"bucket", "truncate"}):
        message = f"{text!r}: bucket and truncate have a width, other transforms have none"
        raise ValueError(message)
    if field.width is not None and not 1 <= field.width <= _MAX_WIDTH:
        message = f"{text!r}: the width must be above 0 and at most {_MAX_WIDTH}"
        raise ValueError(message)
    column_type = _find_type(field.column, columns)
    name = column_type.name
    if name not in ALLOWED_TYPES[field.transform]:
        fitting = ", ".join(sorted(ALLOWED_TYPES[field.transform]))
        message = f"{text!r}: {field.column} is {name}; {field.transform} supports {fitting}"
        raise ValueError(message)
    _validate_field_name(field, columns, before)
    if name in {"decimal", "uuid"}:
        _validate_distinct_types(field, column_type, columns, before)
    _validate_parents(field, columns)
    return field


def _split(text: str) -> PartitionField:
    match = _CALL.match(text)
    if match is None:
        message = (
            f"{text!r} is not a partition transform; examples: day(ts), bucket(id, 16), carrier"
        )
        raise ValueError(message)
    transform, argument, width, bare = match.groups()
    return PartitionField(
        (transform or "identity").lower(), argument or bare, int(width) if width else None
    )


def _validate_parents(field: PartitionField, columns: tuple[Column, ...]) -> None:
    """Check that the field of the partition is in no struct that may be null."""
    if field.transform == "identity" and _is_in_nullable_struct(field.column, columns):
        message = (
            f"{field.text!r}: Spark would read a null struct as one of nulls, and compaction would "
            "write it; use another transform, or require the struct with `!`"
        )
        raise ValueError(message)


def _is_in_nullable_struct(path: str, columns: tuple[Column, ...]) -> bool:
    """Return whether a field is inside a struct that may be null."""
    head, _, rest = path.partition(".")
    column = next(each for each in columns if each.name == head)
    if not rest or not isinstance(column.type, StructType):
        return False
    return not column.required or _is_in_nullable_struct(rest, column.type.fields)


def _validate_distinct_types(
    field: PartitionField,
    column_type: Primitive,
    columns: tuple[Column, ...],
    before: Sequence[PartitionField],
) -> None:
    """Check that no earlier field has partition values of the same decimal type, or uuids.

    Avro, the format of manifests, defines a named type once; PyIceberg defines it for each field,
    which Java refuses, and cannot read Java's reference to the first.
    """
    of_values = {"identity", "truncate"}
    for each in before:
        is_same = _find_type(each.column, columns) == column_type
        if is_same and {field.transform, each.transform} <= of_values:
            message = (
                f"{field.text!r} and {each.text!r} have the same type {format_type(column_type)}, "
                "which PyIceberg and Java write differently; use `bucket` for one of them, or "
                "another precision"
            )
            raise ValueError(message)


def _validate_field_name(
    field: PartitionField, columns: tuple[Column, ...], before: Sequence[PartitionField]
) -> None:
    """Check that neither an earlier partition field nor another column has the field's name.

    Names that differ only in case are one name to Spark.
    """
    name = field.name.lower()
    same = next((each for each in before if each.name.lower() == name), None)
    if same is not None:
        message = f"{field.text!r} and {same.text!r} would both be named {field.name}"
        raise ValueError(message + (", in any case of its letters" * (same.name != field.name)))
    taken = {each.lower(): each for each in (KAFKA_COLUMN, *(c.name for c in columns))}
    if not field.has_column_name and name in taken:
        other = "the name of a column"
        if taken[name] != field.name:
            other += f" in another case, {taken[name]}"
        message = f"{field.text!r} would be named {field.name}, which is {other}"
        raise ValueError(message)


def _find_type(path: str, columns: tuple[Column, ...]) -> Primitive:
    """Return the primitive type at a dotted path."""
    head, _, rest = path.partition(".")
    column = next((c for c in columns if c.name == head), None)
    if column is None:
        known = ", ".join(c.name for c in columns)
        message = f"column {head!r} is not among {known}"
        raise ValueError(message)
    if rest and isinstance(column.type, StructType):
        return _find_type(rest, column.type.fields)
    if rest or not isinstance(column.type, Primitive):
        message = f"{path!r} is not a primitive column"
        raise ValueError(message)
    return column.type
