"""Arrow values as 64-bit numbers that are the same exactly where the values are.

Whole columns at once: 64 bits per value instead of the value. Two different values meet by chance
once in 2^64 pairs; the numbers are no protection against somebody who looks for such a pair.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pandas.util import hash_array
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

from frazil.iceberg.table_schema import write_shape

Hashes = npt.NDArray[np.uint64]


_NULL = np.uint64(0x6E756C6C)


_STEP_NUMBER = 0x9E3779B97F4A7C15


_STEP = np.uint64(_STEP_NUMBER)


MAX_SCALE = 38


_DECIMAL = pa.decimal256(76, MAX_SCALE)


def mix(values: Hashes) -> Hashes:
    """Spread numbers over 64 bits (the finalizer of SplitMix64, Steele and others 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


def _step(position: int) -> np.uint64:
    """Tell positions apart; a numpy scalar would warn where it wraps around."""
    return np.uint64(_STEP_NUMBER * position % 2**64)


def number_steps(count: int) -> list[np.uint64]:
    """Give each column a number of its own, so that two of them cannot swap values unseen."""
    return [_step(position + 1) for position in range(count)]


def hash_texts(texts: list[str]) -> Hashes:
    """Hash some texts."""
    return _hash_bytes(pa.array(texts, pa.string()))


def add_up(values: Hashes) -> int:
    """Add numbers modulo 2^64: the order of the rows does not matter."""
    return int(np.add.reduce(values, dtype=np.uint64)) if len(values) else 0


Kind = Literal["boolean", "whole", "decimal", "floating", "bytes", "instant", "date", "time"]


@dataclass(frozen=True)
class Plain:
    """Values of one kind."""

    kind: Kind


@dataclass(frozen=True)
class Fields:
    """Structs, by the names that both sides have."""

    fields: tuple[tuple[str, "Form"], ...]


@dataclass(frozen=True)
class Elements:
    """Lists."""

    element: "Form"


@dataclass(frozen=True)
class Entries:
    """Maps."""

    key: "Form"
    value: "Form"


Form = Plain | Fields | Elements | Entries


def hash_values(array: pa.Array, form: Form) -> Hashes:
    """Hash each value in the form that both sides have in common."""
    match form:
        case Fields(fields):
            hashes = np.zeros(len(array), np.uint64)
            for position, (name, inner) in enumerate(fields):
                child = hash_values(pc.struct_field(array, name), inner)
                hashes += mix(child + _step(position + 1))
        case Elements(element):
            hashes = _hash_segments(array.offsets, hash_values(_inner(array), element))
        case Entries(key, value):
            keys, values = (_slice(part, array.offsets) for part in (array.keys, array.items))
            pairs = mix(hash_values(keys, key)) + hash_values(values, value) * _STEP
            hashes = _sum_segments(array.offsets, mix(pairs))
        case Plain():
            hashes = _hash_plain(array, form)
    hashes = mix(hashes + _STEP)
    hashes[array.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _inner(array: pa.Array) -> pa.Array:
    return _slice(array.values, array.offsets)


def _slice(values: pa.Array, offsets: pa.Array) -> pa.Array:
    """Take the inner values of a slice; Arrow keeps those of the whole array."""
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return values.slice(first, last - first)


def _hash_segments(offsets: pa.Array, values: Hashes) -> Hashes:
    """Hash lists: each element with its position, then the length."""
    bounds = offsets.to_numpy().astype(np.int64)
    bounds = bounds - bounds[0]
    positions = np.arange(len(values)) - np.repeat(bounds[:-1], np.diff(bounds))
    placed = mix(values + _STEP * (positions + 1).astype(np.uint64))
    return _sum_segments(offsets, placed)


def _sum_segments(offsets: pa.Array, values: Hashes) -> Hashes:
    bounds = offsets.to_numpy().astype(np.int64)
    bounds = bounds - bounds[0]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])
    lengths = np.diff(bounds).astype(np.uint64)
    found: Hashes = mix(sums[bounds[1:]] - sums[bounds[:-1]] + lengths * _STEP)
    return found


def _hash_plain(array: pa.Array, form: Plain) -> Hashes:
    match form.kind:
        case "decimal":
            return _hash_decimals(array)
        case "floating":
            return _hash_floating(array)
        case "bytes":
            return _hash_bytes(array)
        case "instant":
            array = array.cast(pa.timestamp("us", array.type.tz))
        case "date":
            array = array.cast(pa.date32()).cast(pa.int32())
        case "time":
            array = array.cast(pa.time64("us"))
        case "boolean":
            array = array.cast(pa.int8())
        case "whole":
            pass
    return _to_numbers(array.cast(pa.int64()), 0).view(np.uint64)


def _to_numbers(array: pa.Array, filler: float) -> npt.NDArray[np.generic]:
    """Give Arrow's numbers as numpy's, writable; nulls become the filler."""
    found: npt.NDArray[np.generic] = array.fill_null(filler).to_numpy(zero_copy_only=False).copy()
    return found


def _hash_floating(array: pa.Array) -> Hashes:
    # By text: Arrow's own way from decimal to double is not always to the nearest one.
    exact = array.cast(pa.string()) if pa.types.is_decimal(array.type) else array
    safe = not pa.types.is_integer(array.type)
    values = _to_numbers(exact.cast(pa.float64(), safe=safe), 0.0).astype(np.float64)
    values[values == 0] = 0.0
    values[np.isnan(values)] = np.nan
    return values.view(np.uint64)


def _hash_decimals(array: pa.Array) -> Hashes:
    if pa.types.is_integer(array.type):
        array = array.cast(pa.decimal128(MAX_SCALE, 0))
    wide = array.cast(_DECIMAL).fill_null(0)
    words = np.frombuffer(wide.buffers()[1], np.uint64).reshape(-1, 4)
    words = words[wide.offset : wide.offset + len(wide)]
    hashes = np.zeros(len(wide), np.uint64)
    for position in range(4):
        hashes += mix(words[:, position] + _step(position))
    return hashes


def _hash_bytes(array: pa.Array) -> Hashes:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    values = array.cast(pa.large_binary()).fill_null(b"").to_numpy(zero_copy_only=False)
    found: Hashes = hash_array(values, categorize=False).astype(np.uint64)
    return found


_KINDS: tuple[tuple[Kind, tuple[type[IcebergType], ...]], ...] = (
    ("boolean", (BooleanType,)),
    ("whole", (IntegerType, LongType)),
    ("decimal", (DecimalType,)),
    ("floating", (FloatType, DoubleType)),
    ("bytes", (StringType, BinaryType, FixedType, UUIDType)),
    ("instant", (TimestampType, TimestamptzType)),
    ("date", (DateType,)),
    ("time", (TimeType,)),
)


_NUMBERS: tuple[Kind, ...] = ("whole", "decimal", "floating")
"""Of two kinds of number the later one is the common form."""


@dataclass(frozen=True)
class ColumnPair:
    """One column name on both sides; a type is None where the side lacks it.

    `form` is None where the values cannot be compared. A difference is one that a reader of the
    table meets; types that differ only in how they keep a value are none.
    """

    name: str
    left: str | None
    right: str | None
    form: Form | None
    note: str = ""
    is_difference: bool = False


def pair_columns(
    left: Iterable[NestedField], right: Iterable[NestedField]
) -> tuple[ColumnPair, ...]:
    """Pair columns by name, in the order of the left side."""
    ours, theirs = ({field.name: field for field in side} for side in (left, right))
    return tuple(_pair(name, ours.get(name), theirs.get(name)) for name in ours | theirs)


def _pair(name: str, left: NestedField | None, right: NestedField | None) -> ColumnPair:
    if left is None:
        written = write_shape(right.field_type) if right else ""
        note = f"only on the right: {written}"
        return ColumnPair(name, None, written, None, note, is_difference=True)
    if right is None:
        written = write_shape(left.field_type)
        note = f"only on the left: {written}"
        return ColumnPair(name, written, None, None, note, is_difference=True)
    return _pair_types(name, left.field_type, right.field_type)


def _pair_types(name: str, left: IcebergType, right: IcebergType) -> ColumnPair:
    form = find_form(left, right)
    ours, theirs = write_shape(left), write_shape(right)
    if form is None:
        note = f"{ours} beside {theirs}, not comparable"
        return ColumnPair(name, ours, theirs, None, note, is_difference=True)
    lone = list(_list_lone_fields(left, right, name))
    if lone:
        return ColumnPair(name, ours, theirs, form, "; ".join(lone), is_difference=True)
    note = f"{ours} and {theirs}, compared by value" if ours != theirs else ""
    return ColumnPair(name, ours, theirs, form, note)


def find_form(left: IcebergType, right: IcebergType) -> Form | None:
    """Find the common form of two types; None where their values are not comparable."""
    match left, right:
        case StructType(), StructType():
            forms = [
                (ours.name, find_form(ours.field_type, theirs.field_type))
                for ours, theirs in _match_fields(left, right)
            ]
            known = tuple((name, form) for name, form in sorted(forms) if form is not None)
            return Fields(known) if known and len(known) == len(forms) else None
        case ListType(), ListType():
            element = find_form(left.element_type, right.element_type)
            return Elements(element) if element else None
        case MapType(), MapType():
            key = find_form(left.key_type, right.key_type)
            value = find_form(left.value_type, right.value_type)
            return Entries(key, value) if key and value else None
    return _find_plain(left, right)


def _find_plain(left: IcebergType, right: IcebergType) -> Plain | None:
    ours, theirs = _kind_of(left), _kind_of(right)
    if ours is None or theirs is None:
        return None
    if UUIDType in {type(left), type(right)} and type(left) is not type(right):
        return None
    if ours == theirs:
        return Plain(ours)
    if ours in _NUMBERS and theirs in _NUMBERS:
        return Plain(max(ours, theirs, key=_NUMBERS.index))
    return None


def _kind_of(found: IcebergType) -> Kind | None:
    return next((kind for kind, types in _KINDS if isinstance(found, types)), None)


def _match_fields(left: StructType, right: StructType) -> list[tuple[NestedField, NestedField]]:
    theirs = {field.name: field for field in right.fields}
    return [(field, theirs[field.name]) for field in left.fields if field.name in theirs]


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
            yield from _list_lone_fields(left.value_type, right.value_type, f"{path}.value")
