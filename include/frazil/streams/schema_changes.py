"""Schema changes: the differences between a table's columns and a stream's, and their policy.

Columns, also nested ones, are compared by name. The kinds `add_column`, `widen` and `relax` are
options of the stream file's section `schema`; all other kinds follow its option `other`. A column
that only the table has counts as dropped if the stream wrote it before: an adopted table may have
columns that the stream never had.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from frazil.streams.column_types import (
    Column,
    ColumnType,
    ListType,
    MapType,
    Primitive,
    StructType,
    format_type,
    validate_distinct_names,
)
from frazil.streams.models import Policy, SchemaPolicy

Kind = Literal[
    "add_column",
    "widen",
    "relax",
    "add_required",
    "rename",
    "drop",
    "narrow",
    "change_type",
    "repartition",
]

_STRICTEST: Sequence[Policy] = ("fail", "quarantine", "review", "auto")
_WIDER: Mapping[str, str] = {"int": "long", "float": "double"}
_SET_ASIDE = (
    "the old column is renamed and keeps its values, which erasures and row expiry still find if a "
    "key or a time can have its type; a new column is added"
)
EFFECTS: Mapping[Kind, str] = {
    "add_column": "existing rows have null",
    "widen": "existing rows keep their values",
    "relax": "new rows may have null",
    "add_required": "the table's column is optional, new records without it are bad records",
    "rename": "the column is renamed and keeps its values",
    "drop": "the column stays with its values, new rows have null",
    "narrow": _SET_ASIDE,
    "change_type": _SET_ASIDE,
    "repartition": "new files have the new partitions, older files keep theirs until a compaction "
    "rewrites them (`frazil maintain` with --only compact --rewrite-all)",
}
"""The effect of an accepted change on the table; values are never lost."""


@dataclass(frozen=True)
class SchemaChange:
    """One difference; `path` is the dotted column name, types are written as in stream files."""

    kind: Kind
    path: str
    before: str
    after: str

    @property
    def text(self) -> str:
        """Return a description on one line."""
        match self.kind:
            case "add_column" | "add_required":
                return f"{self.kind} {self.path}: {self.after}"
            case "drop":
                return f"drop {self.path}: {self.before}"
            case "rename":
                return f"rename {self.path} to {self.after}"
            case "repartition":
                return f"repartition by {self.after}, before by {self.before}"
        return f"{self.kind} {self.path}: {self.before} to {self.after}"

    @property
    def is_possible(self) -> bool:
        """Return whether the change can be applied; a field of a struct cannot be replaced."""
        is_nested = "." in self.path
        return not (is_nested and self.kind in {"drop", "narrow", "change_type"})


def choose_policy(changes: Sequence[SchemaChange], policy: SchemaPolicy) -> Policy:
    """Return the strictest policy among those of the changes."""
    by_kind: Mapping[str, Policy] = {
        "add_column": policy.add_column,
        "widen": policy.widen,
        "relax": policy.relax,
    }
    policies = {by_kind.get(change.kind, policy.other) for change in changes}
    return next((each for each in _STRICTEST if each in policies), "auto")


def compare_columns(
    have: Sequence[Column], want: Sequence[Column], written: frozenset[str]
) -> tuple[SchemaChange, ...]:
    """List the changes from a table's columns (`have`) to a stream's (`want`).

    `written` are the names of the top-level columns that the stream has written before.
    """
    return tuple(_compare_fields(have, want, "", written))


def _compare_fields(
    have: Sequence[Column], want: Sequence[Column], prefix: str, written: frozenset[str] | None
) -> Iterator[SchemaChange]:
    """Compare the fields of one level; in structs (`written` is None) all count as written."""
    existing = {field.name: field for field in have}
    wanted = {field.name: field for field in want}
    added = [field for field in want if field.name not in existing]
    dropped = [
        field
        for field in have
        if field.name not in wanted and (written is None or field.name in written or field.required)
    ]
    renamed = _pair_renames(dropped, added, [f for f in have if f.name not in wanted])
    for field in want:
        path = prefix + field.name
        old = existing.get(field.name)
        if old is not None:
            yield from _compare_field(old, field, path)
        elif field.name in renamed:
            old = renamed[field.name]
            yield SchemaChange("rename", prefix + old.name, _write(old), field.name)
            yield from _compare_field(old, field, path)
        else:
            kind: Kind = "add_required" if field.required else "add_column"
            yield SchemaChange(kind, path, "", _write(field))
    old_names = {field.name for field in renamed.values()}
    for field in dropped:
        if field.name not in old_names:
            yield SchemaChange("drop", prefix + field.name, _write(field), "")


def _pair_renames(
    dropped: Sequence[Column], added: Sequence[Column], absent: Sequence[Column]
) -> dict[str, Column]:
    """Return new name → old column of renames.

    A rename is a pair of names that differ only in case, or a single dropped and a single added
    column of the same type.
    """
    pairs = {
        new.name: old for new in added for old in absent if new.name.lower() == old.name.lower()
    }
    old_names = {old.name for old in pairs.values()}
    new_left = [field for field in added if field.name not in pairs]
    old_left = [field for field in dropped if field.name not in old_names]
    if len(new_left) == len(old_left) == 1 and new_left[0].type == old_left[0].type:
        pairs[new_left[0].name] = old_left[0]
    return pairs


def _compare_field(old: Column, new: Column, path: str) -> Iterator[SchemaChange]:
    # From optional to required the table stays: records without a value become bad records.
    if old.required and not new.required:
        yield SchemaChange("relax", path, _write(old), _write(new))
    yield from _compare_types(old.type, new.type, path)


def _compare_types(old: ColumnType, new: ColumnType, path: str) -> Iterator[SchemaChange]:
    if old == new:
        return
    match old, new:
        case StructType(fields), StructType(wanted):
            yield from _compare_fields(fields, wanted, f"{path}.", None)
        case ListType(element, required), ListType(wanted_element, wanted_required):
            if required and not wanted_required:
                yield SchemaChange("relax", f"{path}.element", "required", "optional")
            yield from _compare_types(element, wanted_element, f"{path}.element")
        case MapType(key, value, required), MapType(wanted_key, wanted_value, wanted_required):
            if key != wanted_key:
                yield SchemaChange("change_type", f"{path}.key", *_write_types(key, wanted_key))
            if required and not wanted_required:
                yield SchemaChange("relax", f"{path}.value", "required", "optional")
            yield from _compare_types(value, wanted_value, f"{path}.value")
        case Primitive(), Primitive():
            yield SchemaChange(_name_change(old, new), path, *_write_types(old, new))
        case _:
            yield SchemaChange("change_type", path, *_write_types(old, new))


def _name_change(old: Primitive, new: Primitive) -> Kind:
    if is_wider(old, new):
        return "widen"
    return "narrow" if is_wider(new, old) else "change_type"


def is_wider(old: Primitive, new: Primitive) -> bool:
    """Return whether `new` is a type promotion of Iceberg from `old`, which keeps all values."""
    match old, new:
        case Primitive("decimal", (precision, scale)), Primitive("decimal", (wider, same)):
            return same == scale and wider > precision
    return _WIDER.get(old.name) == new.name


def follow_columns(have: Sequence[Column], newest: Sequence[Column]) -> tuple[Column, ...]:
    """Return a table's columns with the additions, promotions and relaxations of a newer schema.

    Columns that the schema lacks stay and are null in its records. Columns of an incompatible type
    stay unchanged, and each record is checked. Added columns are optional, because records of older
    schemas lack them.

    Raises:
        FieldError: a new name differs from a column's only in case, which Spark confuses.
    """
    wanted = {column.name: column for column in newest}
    kept = tuple(_follow(c, wanted[c.name]) if c.name in wanted else c for c in have)
    names = {column.name for column in have}
    columns = kept + tuple(_as_optional(c) for c in newest if c.name not in names)
    validate_distinct_names(columns)
    return columns


def _follow(old: Column, new: Column) -> Column:
    return Column(old.name, _follow_type(old.type, new.type), old.required and new.required)


def _follow_type(old: ColumnType, new: ColumnType) -> ColumnType:
    match old, new:
        case StructType(fields), StructType(wanted):
            return StructType(follow_columns(fields, wanted))
        case ListType(element, required), ListType(wanted, new_required):
            return ListType(_follow_type(element, wanted), required and new_required)
        case MapType(key, value, required), MapType(same, wanted, new_required) if key == same:
            return MapType(key, _follow_type(value, wanted), required and new_required)
        case Primitive(), Primitive() if is_wider(old, new):
            return new
    return old


def _as_optional(column: Column) -> Column:
    return Column(column.name, column.type, required=False)


def _write(column: Column) -> str:
    return format_type(column.type) + ("!" if column.required else "")


def _write_types(old: ColumnType, new: ColumnType) -> tuple[str, str]:
    return format_type(old), format_type(new)
