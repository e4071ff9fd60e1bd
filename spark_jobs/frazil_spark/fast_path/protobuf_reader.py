"""Protobuf messages as the columns of a table, field by field for a whole batch.

This code travels to Spark's Python workers by value. It reads by a layout of
`frazil.schemas.fast_path_layouts`, and only messages as serializers write them: fields in the order
of their numbers, each once, all known. Google's library reads any other message.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil_spark.fast_path.cursors import (
    FIRST_DAY,
    LAST_DAY,
    MAX_ITEMS,
    VARINT32_BYTES,
    VARINT64_BYTES,
    Cursors,
    Layout,
    Longs,
    join_lists,
    make_array,
    spread,
)

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_SECONDS_OF_A_DAY = 86_400
_MICROS = 1_000_000
_NANOS = 1_000_000_000
_INT, _LONG = pa.int32(), pa.int64()


@dataclass(frozen=True)
class Field:
    """A field of a message as its layout describes it."""

    number: int
    name: str
    label: str
    layout: Layout

    @property
    def tag(self) -> bytes:
        """Return the tag in front of the field."""
        wire = _BYTES
        if isinstance(self.layout, str) and self.label != "packed":
            wire = _WORDS[self.layout].wire
        elif isinstance(self.layout, dict) and "names" in self.layout and self.label != "packed":
            wire = _VARINT
        number, parts = self.number << 3 | wire, bytearray()
        while number > 127:  # noqa: PLR2004 - seven bits each
            parts.append(number & 127 | 128)
            number >>= 7
        return bytes([*parts, number])


def read_message_columns(layout: Layout, cursors: Cursors, columns: pa.Schema) -> list[pa.Array]:
    """Read messages to their ends; `cursors.is_read` then marks those without doubt."""
    return _read_fields(layout, cursors, list(columns))


def list_fields(layout: Layout) -> list[Field]:
    """List the fields of a message."""
    found = []
    match layout:
        case {"fields": list(fields)}:
            for each in fields:
                match each:
                    case [int(number), str(name), str(label), inner]:
                        found.append(Field(number, name, label, inner))
    return found


def _read_fields(layout: Layout, cursors: Cursors, asked: list[pa.Field]) -> list[pa.Array]:
    """Read a message's fields by number; return the requested ones, or nulls."""
    kinds = {field.name: field.type for field in asked}
    found = {}
    for field in list_fields(layout):
        kind = kinds.get(field.name) or natural_type(field)
        found[field.name] = _read_field(field, cursors, kind)
    count = len(cursors)
    return [found[f.name] if f.name in found else pa.nulls(count, f.type) for f in asked]


def natural_type(field: Field) -> pa.DataType:
    """Return a type for a field that is read only to find the end of it."""
    match field.layout:
        case str(word):
            own = _WORDS[word].natural
        case {"fields": _}:
            own = pa.struct([pa.field(f.name, natural_type(f)) for f in list_fields(field.layout)])
        case {"wrapped": inner}:
            own = natural_type(list_fields({"fields": [inner]})[0])
        case _:
            own = pa.string()
    return pa.list_(own) if field.label in {"many", "packed"} else own


def _read_field(field: Field, cursors: Cursors, kind: pa.DataType) -> pa.Array:
    if field.label == "many":
        return _read_repeated(field, cursors, kind)
    is_there = cursors.begin_with(field.tag)
    rows = np.flatnonzero(is_there)
    picked = cursors.pick(rows)
    picked.skip(len(field.tag))
    if field.label == "packed":
        starts = np.minimum(cursors.at, cursors.end)
        ends = starts.copy()
        starts[rows], ends[rows] = _read_span(picked)
        cursors.put_back(rows, picked)
        return _read_packed(field.layout, cursors, cursors.enter(starts, ends), kind)
    values = _read_value(field.layout, picked, kind)
    cursors.put_back(rows, picked)
    values = spread(values, is_there)
    is_filled = field.label == "maybe" or len(rows) == len(cursors)
    return values if is_filled else pc.fill_null(values, _zero(field.layout, kind))


def _zero(layout: Layout, kind: pa.DataType) -> pa.Scalar:
    """Return the default value of an absent field."""
    match layout:
        case {"names": list(names)}:
            named = [pair[1] for pair in names if isinstance(pair, list) and pair[0] == 0]
            return pa.scalar(named[0], kind)
    if pa.types.is_string(kind):
        return pa.scalar("", kind)
    return pa.scalar(b"", kind) if pa.types.is_binary(kind) else pa.scalar(0).cast(kind)


def _read_repeated(field: Field, cursors: Cursors, kind: pa.ListType) -> pa.Array:
    """Read values that each have a tag, the first values of all messages first."""
    counts = np.zeros(len(cursors), np.int64)
    parts, owners = [], []
    for _ in range(MAX_ITEMS):
        rows = np.flatnonzero(cursors.begin_with(field.tag))
        if not len(rows):
            break
        picked = cursors.pick(rows)
        picked.skip(len(field.tag))
        parts.append(_read_value(field.layout, picked, kind.value_type))
        owners.append(rows)
        counts[rows] += 1
        cursors.put_back(rows, picked)
    return join_lists(parts, owners, counts, kind)


def _read_packed(layout: Layout, cursors: Cursors, inner: Cursors, kind: pa.ListType) -> pa.Array:
    """Read values packed in one span."""
    counts = np.zeros(len(cursors), np.int64)
    parts, owners = [], []
    for _ in range(MAX_ITEMS):
        rows = np.flatnonzero(inner.at < inner.end)
        if not len(rows):
            break
        picked = inner.pick(rows)
        parts.append(_read_value(layout, picked, kind.value_type))
        owners.append(rows)
        counts[rows] += 1
        inner.put_back(rows, picked)
    cursors.refuse(~inner.is_read)
    return join_lists(parts, owners, counts, kind)


def _read_value(layout: Layout, cursors: Cursors, kind: pa.DataType) -> pa.Array:
    """Read one value of each message, as an array of its column's type."""
    match layout:
        case str(word):
            return _WORDS[word].read(cursors).cast(kind)
        case {"names": list(names)}:
            return _read_enum([p for p in names if isinstance(p, list)], cursors)
    inner = cursors.enter(*_read_span(cursors))
    match layout:
        case {"wrapped": field}:
            named = pa.field("value", kind)
            (values,) = _read_fields({"fields": [field]}, inner, [named])
        case _:
            fields = list(kind.fields)
            values = pa.StructArray.from_arrays(_read_fields(layout, inner, fields), fields=fields)
    cursors.refuse(~inner.is_read)
    return values


def _read_span(cursors: Cursors) -> tuple[Longs, Longs]:
    return cursors.read_spans(cursors.read_varints(VARINT32_BYTES).view(np.int64))


def _read_enum(names: list[list[Layout]], cursors: Cursors) -> pa.Array:
    """Read enum numbers; refuse those without a name."""
    named = sorted((int(str(number)), str(name)) for number, name in names)
    known = np.array([number for number, _ in named], np.int64)
    numbers = cursors.read_varints().view(np.int64)
    indexes = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    cursors.refuse(known[indexes] != numbers)
    return pa.array([name for _, name in named], pa.string()).take(make_array(indexes, pa.int64()))


def _read_instant(cursors: Cursors) -> pa.Array:
    """Read seconds and nanoseconds; refuse fractions of microseconds."""
    inner = cursors.enter(*_read_span(cursors))
    fields = [pa.field("seconds", pa.int64()), pa.field("nanos", pa.int32())]
    layout: Layout = {"fields": [[1, "seconds", "one", "int64"], [2, "nanos", "one", "int32"]]}
    seconds, nanos = (a.to_numpy() for a in _read_fields(layout, inner, fields))
    cursors.refuse(~inner.is_read)
    cursors.refuse((nanos < 0) | (nanos >= _NANOS) | (nanos % 1000 != 0))
    last = (LAST_DAY + 1) * _SECONDS_OF_A_DAY
    cursors.refuse((seconds < FIRST_DAY * _SECONDS_OF_A_DAY) | (seconds >= last))
    return make_array(seconds * _MICROS + nanos // 1000, pa.timestamp("us", "UTC"))


def _read_whole(least: int, most: int, natural: pa.DataType, cursors: Cursors) -> pa.Array:
    """Read a number; refuse those outside the range of its type."""
    numbers = cursors.read_varints().view(np.int64)
    cursors.refuse((numbers < least) | (numbers > most))
    return make_array(numbers.astype(natural.to_pandas_dtype()), natural)


def _read_signed(size: int, natural: pa.DataType, cursors: Cursors) -> pa.Array:
    numbers = cursors.read_signed(size)
    return make_array(numbers.astype(natural.to_pandas_dtype()), natural)


def _read_fixed(kind: str, natural: pa.DataType, cursors: Cursors) -> pa.Array:
    numbers = cursors.read_fixed(np.dtype(kind).itemsize).view(kind)[:, 0]
    return make_array(numbers.astype(natural.to_pandas_dtype()), natural)


def _read_real(kind: str, natural: pa.DataType, cursors: Cursors) -> pa.Array:
    return make_array(cursors.read_reals(kind), natural)


@dataclass(frozen=True)
class Word:
    """A kind of value: its wire type, its own Arrow type, and its reader."""

    wire: int
    natural: pa.DataType
    read: Callable[[Cursors], pa.Array]


_WORDS: Mapping[str, Word] = {
    "bool": Word(_VARINT, pa.bool_(), lambda c: make_array(c.read_booleans(), pa.bool_())),
    "int32": Word(_VARINT, _INT, partial(_read_whole, -(2**31), 2**31 - 1, _INT)),
    "uint32": Word(_VARINT, _LONG, partial(_read_whole, 0, 2**32 - 1, _LONG)),
    "int64": Word(_VARINT, _LONG, partial(_read_whole, -(2**63), 2**63 - 1, _LONG)),
    "sint32": Word(_VARINT, _INT, partial(_read_signed, VARINT32_BYTES, _INT)),
    "sint64": Word(_VARINT, _LONG, partial(_read_signed, VARINT64_BYTES, _LONG)),
    "sfixed32": Word(_FOUR_BYTES, _INT, partial(_read_fixed, "<i4", _INT)),
    "fixed32": Word(_FOUR_BYTES, _LONG, partial(_read_fixed, "<u4", _LONG)),
    "sfixed64": Word(_EIGHT_BYTES, _LONG, partial(_read_fixed, "<i8", _LONG)),
    "float": Word(_FOUR_BYTES, pa.float32(), partial(_read_real, "<f4", pa.float32())),
    "double": Word(_EIGHT_BYTES, pa.float64(), partial(_read_real, "<f8", pa.float64())),
    "string": Word(_BYTES, pa.string(), lambda c: c.take_texts(*_read_span(c))),
    "bytes": Word(_BYTES, pa.binary(), lambda c: c.take_bytes(*_read_span(c))),
    "instant": Word(_BYTES, pa.timestamp("us", "UTC"), _read_instant),
}
