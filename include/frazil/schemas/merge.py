"""Merge a stream's columns into an Iceberg schema: field ids stay, no column is deleted.

Where Iceberg cannot change a type in place, the old column is renamed and a new one is added.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from frazil.iceberg.table_schema import to_iceberg_type
from frazil.streams import column_types as language
from frazil.streams.column_types import Column, ColumnType
from frazil.streams.schema_changes import SchemaChange

_REPLACED = frozenset({"narrow", "change_type"})


def merge_schema(
    schema: Schema, last_column_id: int, want: Sequence[Column], changes: Sequence[SchemaChange]
) -> Schema:
    """Return the schema after the changes; existing columns keep their order.

    A new column is inserted after the one that precedes it in the stream file.
    """
    merge = _Merge(count(last_column_id + 1), changes, f"_v{schema.schema_id}")
    fields = merge.fields(schema.fields, want, "")
    return Schema(*fields, identifier_field_ids=list(schema.identifier_field_ids))


class _Merge:
    """One merge: the new field ids, and the changes by path."""

    def __init__(self, ids: Iterator[int], changes: Sequence[SchemaChange], suffix: str) -> None:
        self._ids = ids
        self._suffix = suffix
        self._replaced = {change.path for change in changes if change.kind in _REPLACED}
        self._dropped = {change.path for change in changes if change.kind == "drop"}
        self._old_names = {
            _parent(change.path) + change.after: change.path.removeprefix(_parent(change.path))
            for change in changes
            if change.kind == "rename"
        }

    def fields(
        self, have: Sequence[NestedField], want: Sequence[Column], prefix: str
    ) -> list[NestedField]:
        """Merge the fields of one level."""
        existing = {field.name: field for field in have}
        names = {f.name for f in have} | {column.name for column in want}
        replaced: dict[str, NestedField] = {}
        added: dict[str, NestedField] = {}
        for column in want:
            path = prefix + column.name
            old = existing.get(self._old_names.get(path, column.name))
            if old is None:
                added[column.name] = self._add(column)
            elif path in self._replaced:
                name = find_free_name(column.name + self._suffix, names)
                replaced[old.name] = _rewrite(old, name, old.field_type, required=False)
                added[column.name] = self._add(column)
            else:
                merged = self._type(old.field_type, column.type, path)
                required = old.required and column.required
                replaced[old.name] = _rewrite(old, column.name, merged, required=required)
        for field in have:
            if prefix + field.name in self._dropped:
                replaced[field.name] = _rewrite(field, field.name, field.field_type, required=False)
        result = [replaced.get(field.name, field) for field in have]
        return insert_fields(result, added, [column.name for column in want])

    def _add(self, column: Column) -> NestedField:
        """Return a new field; optional even if the stream requires it, since old rows lack it."""
        field_id = next(self._ids)
        field_type = to_iceberg_type(column.type, self._ids)
        return NestedField(field_id, column.name, field_type, required=False)

    def _type(self, old: IcebergType, new: ColumnType, path: str) -> IcebergType:
        match old, new:
            case StructType(), language.StructType(fields):
                return StructType(*self.fields(old.fields, fields, f"{path}."))
            case ListType(), language.ListType(element, required):
                return ListType(
                    old.element_id,
                    self._type(old.element_type, element, f"{path}.element"),
                    element_required=old.element_required and required,
                )
            case MapType(), language.MapType(_, value, required):
                return MapType(
                    old.key_id,
                    old.key_type,
                    old.value_id,
                    self._type(old.value_type, value, f"{path}.value"),
                    value_required=old.value_required and required,
                )
        return to_iceberg_type(new, self._ids)


def _rewrite(
    field: NestedField, name: str, field_type: IcebergType, *, required: bool
) -> NestedField:
    return field.model_copy(update={"name": name, "field_type": field_type, "required": required})


def insert_fields(
    fields: list[NestedField], added: Mapping[str, NestedField], order: Sequence[str]
) -> list[NestedField]:
    """Insert each new field after its predecessor in the stream file."""
    result = list(fields)
    before: set[str] = set()
    for name in order:
        if name in added:
            indexes = [index for index, field in enumerate(result) if field.name in before]
            result.insert(max(indexes, default=-1) + 1, added[name])
        before.add(name)
    return result


def find_free_name(name: str, used: set[str]) -> str:
    """Return the name, with a number appended if a column has it."""
    candidates = (name, *(f"{name}_{number}" for number in range(2, len(used) + 3)))
    return next(candidate for candidate in candidates if candidate not in used)


def _parent(path: str) -> str:
    """Return the path of the enclosing struct with its dot; empty at the top level."""
    return path[: path.rfind(".") + 1]


@dataclass(frozen=True)
class EarlierColumns:
    """The columns with a column's older values, newest first: changes of its type set them aside.

    `unproven` have such a name, but the metadata lacks the schema that would prove it.
    """

    proven: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()


def find_earlier_columns(
    schemas: Mapping[int, Schema], current: Schema, path: str
) -> EarlierColumns:
    """Find the earlier columns of a column, or of a struct's field, in the current schema.

    `schemas` are all of the metadata, by id. Names alone prove nothing: a file may name a column
    `n_v2` itself. Only in the schema before the change has the column's field id the old name.
    """
    fields = {field.name: field for field in current.fields}
    name, dot, rest = (path, "", "") if path in fields else path.partition(".")
    found, unproven = [name] if name in fields else [], []
    for known in found:
        number = fields[known].field_id
        names = {f.name for s in schemas.values() for f in s.fields if f.field_id == number}
        for column in current.fields:
            at = _read_set_aside(column.name, {known, *names})
            if at is None or column.name in found:
                continue
            old = schemas.get(at[1])
            if old is None:
                unproven.append(column.name)
            elif any((f.name, f.field_id) == (at[0], column.field_id) for f in old.fields):
                found.append(column.name)
    found[1:] = sorted(found[1:], key=lambda each: -fields[each].field_id)
    paths = (
        tuple(f"{each}{dot}{rest}" for each in dict.fromkeys(part) if each not in done)
        for part, done in ((found, {name}), (unproven, {*found}))
    )
    existing = {*current.column_names}
    return EarlierColumns(*(tuple(each for each in part if each in existing) for part in paths))


def _read_set_aside(column: str, names: set[str]) -> tuple[str, int] | None:
    """Return the old name and the schema id in the name of a column set aside from one of these."""
    for name in names:
        match = re.fullmatch(rf"{re.escape(name)}_v([0-9]+)(_[0-9]+)?", column)
        if match:
            return name, int(match[1])
    return None
