"""Who decides a schema change: a pure comparison of a table's columns with a stream's.

Columns are compared by name, nested ones too. What a change is called follows the stream file's
`schema:` section: `add_column`, `widen` and `relax` lose nothing; everything else is `other`.
A column that the table alone has is a drop only where the stream wrote it: a table that was taken
over may have more columns than the stream knows.
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
EFFECTS: Mapping[Kind, str] = {
    "add_column": "rows that are there read null",
    "widen": "rows that are there keep their values",
    "relax": "new rows may be without it",
    "add_required": "the table gets it as optional, the stream demands it of new records",
    "rename": "the table's column gets the new name with all its values",
    "drop": "the column stays with its values, new rows read null",
    "narrow": "the old column stays under another name, a new one takes its place",
    "change_type": "the old column stays under another name, a new one takes its place",
    "repartition": "new rows are laid out anew; before rows in older files can be erased or "
    "replayed, `frazil maintain` with --only compact --rewrite-all lays those out too",
}
"""What accepting a change does to the table; no value is ever lost."""


@dataclass(frozen=True)
class SchemaChange:
    """One difference: `path` with dots, types as a stream file writes them."""

    kind: Kind
    path: str
    before: str
    after: str

    @property
    def text(self) -> str:
        """Say it on one line."""
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
        """Say whether the table can follow: inside a struct nothing can be set aside."""
        is_nested = "." in self.path
        return not (is_nested and self.kind in {"drop", "narrow", "change_type"})


def choose_policy(changes: Sequence[SchemaChange], policy: SchemaPolicy) -> Policy:
    """Choose the strictest answer among those that the stream file gives."""
    own: Mapping[str, Policy] = {
        "add_column": policy.add_column,
        "widen": policy.widen,
        "relax": policy.relax,
    }
    answers = {own.get(change.kind, policy.other) for change in changes}
    return next((answer for answer in _STRICTEST if answer in answers), "auto")


def compare_columns(
    have: Sequence[Column], want: Sequence[Column], written: frozenset[str]
) -> tuple[SchemaChange, ...]:
    """List what must change for a table that has `have` to take a stream's `want`.

    `written` are the names of the top-level columns that the stream has written.
    """
    return tuple(_compare_fields(have, want, "", written))


def _compare_fields(
    have: Sequence[Column], want: Sequence[Column], prefix: str, written: frozenset[str] | None
) -> Iterator[SchemaChange]:
    """Compare the fields of one level; below the top every field counts as written."""
    there = {field.name: field for field in have}
    wanted = {field.name: field for field in want}
    added = [field for field in want if field.name not in there]
    gone = [
        field
        for field in have
        if field.name not in wanted and (written is None or field.name in written or field.required)
    ]
    renamed = _pair_renames(gone, added, [f for f in have if f.name not in wanted])
    for field in want:
        path = prefix + field.name
        old = there.get(field.name)
        if old is not None:
            yield from _compare_field(old, field, path)
        elif field.name in renamed:
            old = renamed[field.name]
            yield SchemaChange("rename", prefix + old.name, _write(old), field.name)
            yield from _compare_field(old, field, path)
        else:
            kind: Kind = "add_required" if field.required else "add_column"
            yield SchemaChange(kind, path, "", _write(field))
    taken = {field.name for field in renamed.values()}
    for field in gone:
        if field.name not in taken:
            yield SchemaChange("drop", prefix + field.name, _write(field), "")


def _pair_renames(
    gone: Sequence[Column], added: Sequence[Column], absent: Sequence[Column]
) -> dict[str, Column]:
    """Find new name → old column: the same but for case, or the only pair of one type (E11)."""
    pairs = {
        new.name: old for new in added for old in absent if new.name.lower() == old.name.lower()
    }
    taken = {old.name for old in pairs.values()}
    new_left = [field for field in added if field.name not in pairs]
    old_left = [field for field in gone if field.name not in taken]
    if len(new_left) == len(old_left) == 1 and new_left[0].type == old_left[0].type:
        pairs[new_left[0].name] = old_left[0]
    return pairs


def _compare_field(old: Column, new: Column, path: str) -> Iterator[SchemaChange]:
    # Optional to required is no change of the table: the stream refuses records without it.
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
    if _is_wider(old, new):
        return "widen"
    return "narrow" if _is_wider(new, old) else "change_type"


def _is_wider(old: Primitive, new: Primitive) -> bool:
    """Say whether every value keeps itself: Iceberg's promotions, and no other."""
    match old, new:
        case Primitive("decimal", (precision, scale)), Primitive("decimal", (wider, same)):
            return same == scale and wider > precision
    return _WIDER.get(old.name) == new.name


def follow_columns(have: Sequence[Column], newest: Sequence[Column]) -> tuple[Column, ...]:
    """Give a table's columns with what a newer schema adds, widens or relaxes, and nothing else.

    What the schema lacks stays, and is null in its records; what does not fit stays too, and each
    record is judged. An added field is optional: records of older schemas are without it.
    """
    wanted = {column.name: column for column in newest}
    kept = tuple(_follow(c, wanted[c.name]) if c.name in wanted else c for c in have)
    names = {column.name for column in have}
    return kept + tuple(_without_demands(c) for c in newest if c.name not in names)


def _follow(old: Column, new: Column) -> Column:
    return Column(old.name, _follow_type(old.type, new.type), old.required and new.required)


def _follow_type(old: ColumnType, new: ColumnType) -> ColumnType:
    match old, new:
        case StructType(fields), StructType(wanted):
            return StructType(follow_columns(fields, wanted))
        case ListType(element, required), ListType(wanted, demanded):
            return ListType(_follow_type(element, wanted), required and demanded)
        case MapType(key, value, required), MapType(same, wanted, demanded) if key == same:
            return MapType(key, _follow_type(value, wanted), required and demanded)
        case Primitive(), Primitive() if _is_wider(old, new):
            return new
    return old


def _without_demands(column: Column) -> Column:
    return Column(column.name, column.type, required=False)


def _write(column: Column) -> str:
    return format_type(column.type) + ("!" if column.required else "")


def _write_types(old: ColumnType, new: ColumnType) -> tuple[str, str]:
    return format_type(old), format_type(new)
