"""Two types of one column, and the form in which their values are the same or not.

Types that differ only in how they keep a value compare by value:

* int and long, by number; decimals of any scale, and with whole numbers, by number (1.5 = 1.50);
* float and double, by number; beside an exact number, that one as the nearest double;
  -0.0 is 0.0 and NaN is NaN;
* timestamps with and without zone, by instant: what has no zone is read as UTC;
* string, binary and fixed, by their bytes: text is its UTF-8, and no form of Unicode is another;
* structs by the fields that both have; lists element by element; maps without regard to order.

Null is equal to null alone, not to empty or zero. Any other pair is not comparable.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

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

from frazil.table_schema import write_shape

Kind = Literal["boolean", "whole", "decimal", "floating", "bytes", "instant", "date", "time"]

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

MAX_SCALE = 38


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
