"""Values as a registered schema describes them, and the columns that hold them exactly.

docs/formats.md lists the mapping.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from frazil.streams.column_types import Column, ColumnType, ListType, MapType, Primitive, StructType


class NoExactFormError(ValueError):
    """A schema has values that a column cannot hold exactly; the text names the field."""


@dataclass(frozen=True)
class Scalar:
    """One value; `type` holds it exactly, `form` is how it travels where that is not the type's."""

    type: Primitive
    form: str = ""
    symbols: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Sequence:
    """Values of one kind, in order."""

    element: "Source"


@dataclass(frozen=True)
class Dictionary:
    """Values by a key, which becomes text."""

    key: Scalar
    value: "Source"


@dataclass(frozen=True)
class Record:
    """Values by the names of their fields."""

    fields: tuple[tuple[str, "Source"], ...]


@dataclass(frozen=True)
class Unsupported:
    """Values that no column type holds."""

    reason: str


Source = Scalar | Sequence | Dictionary | Record | Unsupported


def derive_columns(root: Source, *, is_flat: bool, whole: str) -> tuple[Column, ...]:
    """Give the columns of a schema; all optional, since a later schema may leave a field out.

    Raises:
        NoExactFormError: a field has no exact form; list the columns, without it.
    """
    fields = list_fields(root, is_flat=is_flat, whole=whole)
    return tuple(Column(name, _derive(source, name)) for name, source in fields.items())


def list_fields(root: Source, *, is_flat: bool, whole: str) -> Mapping[str, Source]:
    """Give what becomes a column each; a value that is no record is one column in any case."""
    if is_flat and isinstance(root, Record):
        return dict(root.fields)
    return {whole: root}


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
            raise NoExactFormError(message)
        case Unsupported(reason):
            message = f"{name} {reason}"
            raise NoExactFormError(message)


_ARROW: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
}


def write_wire(source: Source) -> pa.DataType:
    """Choose the Arrow type in which a Python worker gives a value, without what nobody holds."""
    match source:
        case Scalar():
            return _write_scalar(source)
        case Sequence(element):
            return pa.list_(write_wire(element))
        case Dictionary(key, value):
            return pa.map_(write_wire(key), write_wire(value))
        case Record(fields):
            held = [(n, s) for n, s in fields if not isinstance(s, Unsupported)]
            return pa.struct([pa.field(n, write_wire(s)) for n, s in held])
        case Unsupported(reason):
            raise NoExactFormError(reason)


def _write_scalar(scalar: Scalar) -> pa.DataType:
    if scalar.form == "instant":
        return pa.struct([pa.field("seconds", pa.int64()), pa.field("nanos", pa.int32())])
    if scalar.form == "enum":
        return pa.int32()
    own = _ARROW.get(scalar.type.name) or pa.decimal128(*scalar.type.parameters)
    return pa.struct([pa.field("value", own)]) if scalar.form == "wrapped" else own
