"""The types of a registered schema in one model for all formats, and the columns for them.

docs/formats.md lists the mapping.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from frazil.streams.column_types import Column, ColumnType, ListType, MapType, Primitive, StructType

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
_ARROW: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
}


class NotConvertibleError(ValueError):
    """A column cannot hold a schema's values exactly; the text names the field and the reason."""


@dataclass(frozen=True)
class Scalar:
    """A single value: the column type that holds it exactly, and how it is decoded.

    `encoding` is empty if it is decoded as `type`; `symbols` are an enum's numbers and names.
    """

    type: Primitive
    encoding: str = ""
    symbols: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Sequence:
    """A list."""

    element: "Source"


@dataclass(frozen=True)
class Dictionary:
    """A map; its keys become text."""

    key: Scalar
    value: "Source"


@dataclass(frozen=True)
class Record:
    """A record, or a message: named fields in the schema's order."""

    fields: tuple[tuple[str, "Source"], ...]


@dataclass(frozen=True)
class Unsupported:
    """A type that no column holds, and why."""

    reason: str


Source = Scalar | Sequence | Dictionary | Record | Unsupported


def derive_columns(root: Source, *, is_flat: bool, single_column: str) -> tuple[Column, ...]:
    """Return the columns for a schema; all optional, since a later schema may lack a field.

    Raises:
        NotConvertibleError: no column type holds a field exactly.
    """
    fields = list_fields(root, is_flat=is_flat, single_column=single_column)
    return tuple(Column(name, _derive(source, name)) for name, source in fields.items())


def list_fields(root: Source, *, is_flat: bool, single_column: str) -> Mapping[str, Source]:
    """Return the type of each column by name; a value that is not a record is a single column."""
    if is_flat and isinstance(root, Record):
        return dict(root.fields)
    return {single_column: root}


def _derive(source: Source, name: str) -> ColumnType:
    match source:
        case Scalar(column_type, _, _):
            return column_type
        case Sequence(element):
            return ListType(_derive(element, f"{name}.element"))
        case Dictionary(_, value):
            return MapType(Primitive("string"), _derive(value, f"{name}.value"))
        case Record(fields) if fields:
            return StructType(tuple(Column(n, _derive(s, f"{name}.{n}")) for n, s in fields))
        case Record():
            message = f"{name} is a record without fields"
            raise NotConvertibleError(message)
        case Unsupported(reason):
            message = f"{name} {reason}"
            raise NotConvertibleError(message)


def to_arrow_type(source: Source) -> pa.DataType:
    """Return the Arrow type of a value decoded by a Python worker, without unsupported fields."""
    match source:
        case Scalar():
            return _to_scalar_type(source)
        case Sequence(element):
            return pa.list_(to_arrow_type(element))
        case Dictionary(key, value):
            return pa.map_(to_arrow_type(key), to_arrow_type(value))
        case Record(fields):
            supported = [(n, s) for n, s in fields if not isinstance(s, Unsupported)]
            return pa.struct([pa.field(n, to_arrow_type(s)) for n, s in supported])
        case Unsupported(reason):
            raise NotConvertibleError(reason)


def _to_scalar_type(scalar: Scalar) -> pa.DataType:
    if scalar.encoding == "instant":
        return pa.struct([pa.field("seconds", pa.int64()), pa.field("nanos", pa.int32())])
    if scalar.encoding == "enum":
        return pa.int32()
    plain = _ARROW.get(scalar.type.name) or pa.decimal128(*scalar.type.parameters)
    return pa.struct([pa.field("value", plain)]) if scalar.encoding == "wrapped" else plain
