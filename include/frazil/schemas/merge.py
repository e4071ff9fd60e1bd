"""Merge a stream's columns into an Iceberg schema: field ids stay, no column is deleted.

Where Iceberg cannot change a type in place, the old column is renamed and a new one is added.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, product

from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from frazil.iceberg.table_schema import to_iceberg_type
from frazil.streams import column_types as language
from frazil.streams.column_types import Column, ColumnType
from frazil.streams.schema_changes import SchemaChange

_REPLACED = frozenset({"narrow", "change_type"})
_SET_ASIDE = re.compile(r"_v([0-9]+)(_[0-9]+)?$")
"""How the name ends that a column has after a change of its type."""


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

    `unproven` may be such columns too, but the metadata lacks the schema that would prove it.
    """

    proven: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()


def find_earlier_columns(
    schemas: Mapping[int, Schema], current: Schema, path: str
) -> EarlierColumns:
    """Find the earlier columns of a column, or of a struct's field, in the current schema.

    `schemas` are all of the metadata, by id.
    """
    return ColumnHistory(schemas, current).find_earlier(path)


class ColumnHistory:
    """The names that the columns of a table have had, by field id.

    Names of today prove nothing: a file may name a column `n_v2` itself, and any column may have
    been renamed since its type changed.
    """

    def __init__(self, schemas: Mapping[int, Schema], current: Schema) -> None:
        """Read the names; `schemas` are all of the metadata, by id."""
        self._ids = {name: current.find_field(name).field_id for name in current.column_names}
        self._top = {field.name for field in current.fields}
        self._schemas = {**schemas, current.schema_id: current}
        self._names = {each: self._list_names(each) for each in self._ids.values()}
        has_all = len(self._schemas) > max(self._schemas)
        self._candidates = {
            name: each
            for name, each in self._ids.items()
            if not (
                has_all and all(_SET_ASIDE.search(n) is None for n in self._names[each].values())
            )
        }

    def find_earlier(self, path: str) -> EarlierColumns:
        """Find the earlier columns of a column, or of a struct's field."""
        is_proven = {path: True} if path in self._ids else {}
        waiting = [*is_proven]
        while waiting:
            known = waiting.pop()
            for part, (name, number) in product(self._list_parts(known), self._candidates.items()):
                found = self._is_successor(self._ids[part], number)
                each, proof = name + known[len(part) :], found is True and is_proven[known]
                is_new = each not in is_proven or (proof and not is_proven[each])
                if found is not False and each in self._ids and is_new:
                    is_proven[each] = proof
                    waiting.append(each)
        aside = sorted(is_proven.keys() - {path}, key=lambda each: -self._ids[each])
        return EarlierColumns(
            tuple(each for each in aside if is_proven[each]),
            tuple(each for each in aside if not is_proven[each]),
        )

    def _list_names(self, field_id: int) -> dict[int, str]:
        """Return the name of a field in each schema that has it, by schema id."""
        found = {n: each.find_column_name(field_id) for n, each in self._schemas.items()}
        return {number: name for number, name in found.items() if name is not None}

    def _list_parts(self, path: str) -> list[str]:
        """Return the path, and those of the structs around it."""
        parts = [path] if path in self._top else path.split(".")  # a column's name may have dots
        every = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        return [part for part in every if part in self._ids]

    def _is_successor(self, column: int, older: int) -> bool | None:
        """Return whether a change of type made a column beside the older one; None if unknown.

        In the schema before the change the older one had the name, and the column was not there.
        The first schema with the column gives the older one the name `<name>_v<schema id>`.
        """
        names, old_names = self._names[column], self._names[older]
        first = min(names)
        if older >= column or first not in old_names:
            return False
        aside = _read_set_aside(old_names[first], names[first])
        if aside is not None:
            older_names = {n: old for n, old in old_names.items() if n < first}
            had = {n for n, old in older_names.items() if _has_same_end(old, names[first])}
            if aside in had:
                return not self._lacks_schema(aside, first) or None
            is_lost = aside < first and aside not in self._schemas
            return None if had or is_lost else False
        numbers = [
            number
            for (number, old), name in product(old_names.items(), {*names.values()})
            if number < first and _has_same_end(old, name)
        ]
        is_unknown = any(number + 1 not in self._schemas for number in numbers)
        asides = {_read_set_aside(*pair) for pair in product(old_names.values(), names.values())}
        is_unknown |= any(n is not None and n < first and n not in self._schemas for n in asides)
        return None if is_unknown else False

    def _lacks_schema(self, after: int, before: int) -> bool:
        return any(number not in self._schemas for number in range(after + 1, before))


def _read_set_aside(column: str, name: str) -> int | None:
    """Return the schema id in the name of a column that was set aside from one of this name."""
    base, match = name.lower(), _SET_ASIDE.search(column)
    return int(match[1]) if match and column[: match.start()].lower() == base else None


def _has_same_end(one: str, other: str) -> bool:
    """Return whether two paths end in the same name, without regard to case."""
    return one.lower().rpartition(".")[2] == other.lower().rpartition(".")[2]
