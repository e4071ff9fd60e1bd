"""Avro payloads as the columns of a table, field by field for a whole batch.

This code travels to Spark's Python workers by value. `frazil.schemas.fast_path_layouts` writes the
layout for one schema and the columns, only where Spark's reader decodes the very same values. A
payload that the layout does not cover is left to Spark.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from frazil_spark.fast_path.cursors import (
    MAX_ITEMS,
    VARINT32_BYTES,
    VARINT64_BYTES,
    Cursors,
    Layout,
    join_lists,
    make_array,
    make_days,
    make_decimals,
    make_instants,
    spread,
)

_NATURAL: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "date": pa.date32(),
    "micros": pa.timestamp("us"),
    "millis": pa.timestamp("us"),
}


def read_avro_columns(layout: Layout, cursors: Cursors, columns: pa.Schema) -> list[pa.Array]:
    """Read payloads to their ends; `cursors.is_read` then marks those without doubt."""
    return _read_record(layout, cursors, list(columns))


def _read_value(  # noqa: PLR0911 - one answer for each kind
    layout: Layout, cursors: Cursors, kind: pa.DataType
) -> pa.Array:
    """Read one value of each payload, as an array of its column's type."""
    match layout:
        case str(word):
            return _SCALARS[word](cursors, kind)
        case {"null": int(null_index), "of": inner}:
            return _read_optional(null_index, inner, cursors, kind)
        case {"items": inner}:
            return _read_list(inner, cursors, kind)
        case {"fields": _}:
            fields = list(kind.fields)
            return pa.StructArray.from_arrays(_read_record(layout, cursors, fields), fields=fields)
        case {"symbols": list(symbols)}:
            return _read_enum(pa.array(symbols, pa.string()), cursors)
        case {"decimal": int(size)}:
            return _read_decimal(size, cursors, kind)
        case {"fixed": int(size)}:
            held = cursors.read_fixed(size)
            return make_array(held, pa.binary(size)).cast(kind)
    message = f"no such layout: {layout}"
    raise ValueError(message)


def _read_record(layout: Layout, cursors: Cursors, fields: list[pa.Field]) -> list[pa.Array]:
    """Read the fields in the schema's order; return the requested ones, or nulls."""
    kinds = {field.name: field.type for field in fields}
    found: dict[str, pa.Array] = {}
    match layout:
        case {"fields": list(pairs)}:
            for pair in pairs:
                match pair:
                    case [str(name), inner]:
                        kind = kinds.get(name) or natural_type(inner)
                        found[name] = _read_value(inner, cursors, kind)
    absent = len(cursors)
    return [
        found[field.name] if field.name in found else pa.nulls(absent, field.type)
        for field in fields
    ]


def natural_type(layout: Layout) -> pa.DataType:  # noqa: PLR0911 - one answer for each kind
    """Return a type for a field that is read only to find the end of it."""
    match layout:
        case str(word):
            return _NATURAL[word]
        case {"of": inner}:
            return natural_type(inner)
        case {"items": inner}:
            return pa.list_(natural_type(inner))
        case {"fields": list(pairs)}:
            named = [(str(p[0]), natural_type(p[1])) for p in pairs if isinstance(p, list)]
            return pa.struct([pa.field(name, kind) for name, kind in named])
        case {"fixed": int(size)}:
            return pa.binary(size)
        case {"decimal": _}:
            return pa.decimal128(18, 0)
    return pa.string()


def _read_optional(null_index: int, inner: Layout, cursors: Cursors, kind: pa.DataType) -> pa.Array:
    """Read a union of one type and null; `null_index` is the index of null in it."""
    choice = cursors.read_signed(VARINT32_BYTES)
    cursors.refuse((choice != 0) & (choice != 1))
    is_there = choice == 1 - null_index
    if is_there.all():
        return _read_value(inner, cursors, kind)
    rows = np.flatnonzero(is_there)
    picked = cursors.pick(rows)
    values = _read_value(inner, picked, kind)
    cursors.put_back(rows, picked)
    return spread(values, is_there)


def _read_list(inner: Layout, cursors: Cursors, kind: pa.ListType) -> pa.Array:
    """Read lists of one block, the first items of all lists first; refuse other lists."""
    counts = cursors.read_signed(VARINT32_BYTES)
    cursors.refuse((counts < 0) | (counts > MAX_ITEMS))
    counts = np.where(cursors.at <= cursors.end, counts, 0)
    parts, owners = [], []
    for number in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > number)
        picked = cursors.pick(rows)
        parts.append(_read_value(inner, picked, kind.value_type))
        owners.append(rows)
        cursors.put_back(rows, picked)
    rows = np.flatnonzero(counts)
    picked = cursors.pick(rows)
    picked.refuse(picked.read_signed(VARINT32_BYTES) != 0)
    cursors.put_back(rows, picked)
    return join_lists(parts, owners, counts, kind)


def _read_enum(symbols: pa.StringArray, cursors: Cursors) -> pa.Array:
    indexes = cursors.read_signed(VARINT32_BYTES)
    out_of_range = (indexes < 0) | (indexes >= len(symbols))
    cursors.refuse(out_of_range)
    return symbols.take(make_array(np.where(out_of_range, 0, indexes), pa.int64()))


def _read_decimal(size: int, cursors: Cursors, kind: pa.DataType) -> pa.Array:
    """Read a big-endian unscaled number; size 0 means that its length precedes it."""
    lengths = np.full(len(cursors), size) if size else cursors.read_signed(VARINT32_BYTES)
    starts, ends = cursors.read_spans(lengths)
    return make_decimals(cursors, starts, ends, kind)


def _read_bytes(cursors: Cursors, _: pa.DataType) -> pa.Array:
    return cursors.take_bytes(*cursors.read_spans(cursors.read_signed(VARINT32_BYTES)))


def _read_text(cursors: Cursors, _: pa.DataType) -> pa.Array:
    return cursors.take_texts(*cursors.read_spans(cursors.read_signed(VARINT32_BYTES)))


def _read_whole(most: int, cursors: Cursors, kind: pa.DataType) -> pa.Array:
    own = pa.int32() if most == VARINT32_BYTES else pa.int64()
    return make_array(cursors.read_signed(most).astype(own.to_pandas_dtype()), own).cast(kind)


def _read_real(own: pa.DataType, cursors: Cursors, kind: pa.DataType) -> pa.Array:
    return make_array(cursors.read_reals(f"<f{own.byte_width}"), own).cast(kind)


def _read_boolean(cursors: Cursors, kind: pa.DataType) -> pa.Array:
    return make_array(cursors.read_booleans(), kind)


def _read_day(cursors: Cursors, _: pa.DataType) -> pa.Array:
    return make_days(cursors, cursors.read_signed(VARINT32_BYTES))


def _read_instant(unit: int, cursors: Cursors, kind: pa.DataType) -> pa.Array:
    return make_instants(cursors, cursors.read_signed(), unit, kind)


_SCALARS: Mapping[str, Callable[[Cursors, pa.DataType], pa.Array]] = {
    "boolean": _read_boolean,
    "int": partial(_read_whole, VARINT32_BYTES),
    "long": partial(_read_whole, VARINT64_BYTES),
    "float": partial(_read_real, pa.float32()),
    "double": partial(_read_real, pa.float64()),
    "bytes": _read_bytes,
    "string": _read_text,
    "date": _read_day,
    "micros": partial(_read_instant, 1),
    "millis": partial(_read_instant, 1000),
}
