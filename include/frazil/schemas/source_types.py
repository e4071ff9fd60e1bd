"""The types of a registered schema in one model for all formats, and the columns for them.

docs/formats.md lists the mapping.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import TypeAlias

import pyarrow as pa

from frazil.streams.column_types import (
    MAX_LEVELS,
    Column,
    ColumnType,
    ListType,
    MapType,
    Primitive,
    StructType,
    quote_name,
    validate_column_name,
    validate_distinct_names,
    validate_field_name,
)

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
MAX_FIELDS = 10_000
"""Fields of a schema, in structs too: a type that is used twice in each of thirty others would have
a thousand million."""
FIELD_KEY = "frazil.field"
"""The key in the metadata of an Arrow field of its name in the schema."""
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


class UnreadableSchemaError(NotConvertibleError):
    """A schema that cannot be read at all, whatever the columns are."""


@contextmanager
def refusing_deep_schemas() -> Iterator[None]:
    """Refuse a schema that is nested deeper than Python can read.

    Raises:
        UnreadableSchemaError: it is.
    """
    try:
        yield
    except RecursionError:
        message = f"is nested too deep; a column has at most {MAX_LEVELS} levels"
        raise UnreadableSchemaError(message) from None


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
    """A record, or a message: named fields in the schema's order.

    `decoded`: the names of the decoded value's fields, if they are not chosen by the schema's.
    """

    fields: tuple[tuple[str, "Source"], ...]
    decoded: tuple[str, ...] = ()

    @cached_property
    def decoded_names(self) -> tuple[str, ...]:
        """Return the names of the decoded value's fields."""
        return self.decoded or choose_decoded_names([name for name, _ in self.fields])

    def find(self, name: str) -> "tuple[Source | None, str]":
        """Return the type and the decoded name of a field; None if there is no such field."""
        pairs = zip(self.fields, self.decoded_names, strict=True)
        return next(((s, decoded) for (n, s), decoded in pairs if n == name), (None, ""))


@dataclass(frozen=True)
class Unsupported:
    """A type that no column holds, and why."""

    reason: str


def choose_decoded_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return a name for each field that Spark, which ignores case, can tell from the others."""
    chosen: list[str] = []
    used: set[str] = set()
    reserved = [*names]
    for name in reserved:
        own = name
        if name.lower() in used:
            others = {each.lower() for each in reserved if each != name} | used
            numbered = (f"{name}_{number}" for number in count(2))
            own = next(each for each in numbered if each.lower() not in others)
        chosen.append(own)
        used.add(own.lower())
    return tuple(chosen)


Source = Scalar | Sequence | Dictionary | Record | Unsupported


def derive_columns(root: Source, *, is_flat: bool, single_column: str) -> tuple[Column, ...]:
    """Return the columns for a schema; all optional, since a later schema may lack a field.

    Raises:
        NotConvertibleError: no column type holds a field exactly.
    """
    fields = root.fields if is_flat and isinstance(root, Record) else ((single_column, root),)
    return _Derivation().derive_fields(fields, "", 0)


@dataclass
class _Derivation:
    """Derive columns; `count` are those so far, in structs too."""

    count: int = 0

    def derive_fields(
        self, fields: Iterable[tuple[str, Source]], prefix: str, level: int
    ) -> tuple[Column, ...]:
        """Return a column for each field; refuse names that columns cannot have."""
        columns = tuple(
            Column(name, self._derive(source, prefix + name, level)) for name, source in fields
        )
        try:
            for column in columns:
                (validate_field_name if prefix else validate_column_name)(column.name)
            validate_distinct_names(columns)
        except ValueError as error:
            message = f"{prefix.rstrip('.')}: {error}" if prefix else str(error)
            raise NotConvertibleError(message) from error
        return columns

    def _derive(self, source: Source, name: str, level: int) -> ColumnType:
        self.count += 1
        if self.count > MAX_FIELDS:
            message = f"has more than {MAX_FIELDS} fields"
            raise NotConvertibleError(message)
        if level >= MAX_LEVELS:
            message = f"{name[:60]}… is nested deeper than {MAX_LEVELS} levels"
            raise NotConvertibleError(message)
        match source:
            case Scalar(column_type, _, _):
                return column_type
            case Sequence(element):
                return ListType(self._derive(element, f"{name}.element", level + 1))
            case Dictionary(_, value):
                inner = self._derive(value, f"{name}.value", level + 1)
                return MapType(Primitive("string"), inner)
            case Record(fields, _) if fields:
                return StructType(self.derive_fields(fields, f"{name}.", level + 1))
            case Record():
                message = f"{name} is a record without fields"
                raise NotConvertibleError(message)
            case Unsupported(reason):
                message = f"{name} {reason}"
                raise NotConvertibleError(message)


def count_fields(source: Source, known: dict[int, int]) -> int:
    """Count a type and all in it, each use; `known` has the counts by id of those counted."""
    if id(source) not in known:
        match source:
            case Sequence(inner) | Dictionary(_, inner):
                inside = [inner]
            case Record(fields, _):
                inside = [each for _, each in fields]
            case _:
                inside = []
        known[id(source)] = 1 + sum(count_fields(each, known) for each in inside)
    return known[id(source)]


def drop_unfit_names(source: Source, *, is_flat: bool) -> tuple[Source, tuple[str, ...]]:
    """Return a type without the fields whose names no column can have, and the paths of those.

    `is_flat`: its own fields become columns, whose names may not be reserved ones.
    """
    dropped: list[str] = []
    validate = validate_column_name if is_flat else validate_field_name
    kept = _drop_unfit(source, "", validate, dropped)
    return kept, tuple(dropped)


def _drop_unfit(
    source: Source, path: str, validate: Callable[[str], None], dropped: list[str]
) -> Source:
    """Return a type without unfit names, and add the paths of those fields to `dropped`."""
    match source:
        case Sequence(element):
            inside = f"{path}element."
            return Sequence(_drop_unfit(element, inside, validate_field_name, dropped))
        case Dictionary(key, value):
            inside = f"{path}value."
            return Dictionary(key, _drop_unfit(value, inside, validate_field_name, dropped))
        case Record(fields, _):
            own = [name for name, _ in fields]
            names = zip(own, choose_decoded_names(own), strict=True)
            fitting = {n for n, decoded in names if n == decoded and _is_fit(n, validate)}
            dropped += [f"{path}{quote_name(n)}" for n in own if n not in fitting]
            kept = [(n, inner, f"{path}{n}.") for n, inner in fields if n in fitting]
            return Record(
                tuple((n, _drop_unfit(i, p, validate_field_name, dropped)) for n, i, p in kept)
            )
    return source


def _is_fit(name: str, validate: Callable[[str], None]) -> bool:
    try:
        validate(name)
    except ValueError:
        return False
    return True


def to_arrow_type(source: Source) -> pa.DataType:
    """Return the Arrow type of a value decoded by a Python worker, without unsupported fields."""
    match source:
        case Scalar():
            return _to_scalar_type(source)
        case Sequence(element):
            return pa.list_(to_arrow_type(element))
        case Dictionary(key, value):
            return pa.map_(to_arrow_type(key), to_arrow_type(value))
        case Record(fields, _):
            named = zip(source.decoded_names, fields, strict=True)
            supported = [(d, n, s) for d, (n, s) in named if not isinstance(s, Unsupported)]
            return pa.struct(
                [pa.field(d, to_arrow_type(s), metadata={FIELD_KEY: n}) for d, n, s in supported]
            )
        case Unsupported(reason):
            raise NotConvertibleError(reason)


def _to_scalar_type(scalar: Scalar) -> pa.DataType:
    if scalar.encoding == "instant":
        return pa.struct([pa.field("seconds", pa.int64()), pa.field("nanos", pa.int32())])
    if scalar.encoding == "enum":
        return pa.int32()
    plain = _ARROW.get(scalar.type.name) or pa.decimal128(*scalar.type.parameters)
    return pa.struct([pa.field("value", plain)]) if scalar.encoding == "wrapped" else plain
