"""Follow the columns of a change table in its state table, by field ids.

A column that the change table renames, widens or replaces is the same column there as before, so
the rows of the state keep their values and nothing has to be folded again.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from frazil.iceberg.table_schema import to_columns
from frazil.schemas.merge import ColumnHistory, find_free_name, insert_fields
from frazil.streams.column_types import Primitive
from frazil.streams.schema_changes import is_wider


@dataclass(frozen=True)
class FollowedSchema:
    """A state table's schema, and field id of the change table → field id of the state table.

    `added` are the names of new columns.
    """

    schema: Schema
    pairs: Mapping[int, int]
    added: tuple[str, ...]


def follow_schema(
    state: Schema,
    changes: Sequence[NestedField],
    pairs: Mapping[int, int],
    last_column_id: int,
    own: Collection[str] = (),
) -> FollowedSchema:
    """Return the schema of a state table after it has followed the fields of its change table.

    Fields without a pair are paired by name. Columns that the change table no longer has stay and
    are optional; one whose name the change table gives to another column is renamed. Columns of the
    names in `own` are the state table's own and stay as they are.
    """
    following = _Following(pairs, count(last_column_id + 1), f"_v{state.schema_id}", own)
    fields = following.follow_fields(state.fields, changes)
    present = {field.field_id for field in state.fields}
    ids = list(state.identifier_field_ids)
    return FollowedSchema(
        schema=Schema(*fields, schema_id=state.schema_id, identifier_field_ids=ids),
        pairs=following.pairs,
        added=tuple(field.name for field in fields if field.field_id not in present),
    )


class _Following:
    """The pairs of field ids so far, and new ids."""

    def __init__(
        self, pairs: Mapping[int, int], ids: Iterator[int], suffix: str, own: Collection[str]
    ) -> None:
        self.pairs = dict(pairs)
        self._ids = ids
        self._suffix = suffix
        self._own = own

    def follow_fields(
        self, have: Sequence[NestedField], want: Sequence[NestedField]
    ) -> list[NestedField]:
        """Follow the fields of one level."""
        sources = self._pair(have, want)
        names = {field.name for field in (*have, *want)}
        wanted = {field.name.lower() for field in want}  # Spark ignores the case
        kept = []
        for field in have:
            source = sources.get(field.field_id)
            if source is not None:
                kept.append(self._follow(field, source))
            elif field.name in self._own:
                kept.append(field)
            else:
                free = find_free_name(field.name + self._suffix, names)
                name = free if field.name.lower() in wanted else field.name
                kept.append(field.model_copy(update={"name": name, "required": False}))
        paired = {field.field_id for field in sources.values()}
        added = {field.name: self._add(field) for field in want if field.field_id not in paired}
        return insert_fields(kept, added, [field.name for field in want])

    def _pair(
        self, have: Sequence[NestedField], want: Sequence[NestedField]
    ) -> dict[int, NestedField]:
        """Return the field that each field of the state follows, by the state's field ids."""
        present = {field.field_id for field in have}
        sources = {
            self.pairs[field.field_id]: field
            for field in want
            if self.pairs.get(field.field_id) in present
        }
        used = {*self.pairs.values()}
        unpaired = [f for f in have if f.field_id not in used and f.name not in self._own]
        free = {field.name.lower(): field for field in unpaired}
        for field in want:
            found = None if field.field_id in self.pairs else free.get(field.name.lower())
            if found is not None and _is_same_kind(found.field_type, field.field_type):
                sources[found.field_id] = field
                self.pairs[field.field_id] = found.field_id
        return sources

    def _follow(self, field: NestedField, source: NestedField) -> NestedField:
        kind = self._follow_type(field.field_type, source.field_type)
        required = field.required and source.required
        changes = {"name": source.name, "field_type": kind, "required": required}
        return field.model_copy(update=changes)

    def _follow_type(self, have: IcebergType, want: IcebergType) -> IcebergType:
        match have, want:
            case StructType(), StructType():
                return StructType(*self.follow_fields(have.fields, want.fields))
            case ListType(), ListType():
                element = self._follow_type(have.element_type, want.element_type)
                required = have.element_required and want.element_required
                return ListType(have.element_id, element, element_required=required)
            case MapType(), MapType():
                key = self._follow_type(have.key_type, want.key_type)
                value = self._follow_type(have.value_type, want.value_type)
                required = have.value_required and want.value_required
                return MapType(have.key_id, key, have.value_id, value, value_required=required)
        return want if _can_promote(have, want) else have

    def _add(self, field: NestedField) -> NestedField:
        """Return a new field; optional, since rows lack it."""
        return self._copy_field(field).model_copy(update={"required": False})

    def _copy_field(self, field: NestedField) -> NestedField:
        """Return the field with ids of the state table."""
        field_id = self.pairs[field.field_id] = next(self._ids)
        changes = {"field_id": field_id, "field_type": self._copy_type(field.field_type)}
        return field.model_copy(update=changes)

    def _copy_type(self, kind: IcebergType) -> IcebergType:
        match kind:
            case StructType():
                return StructType(*map(self._copy_field, kind.fields))
            case ListType():
                element_id, element = next(self._ids), self._copy_type(kind.element_type)
                return ListType(element_id, element, element_required=kind.element_required)
            case MapType():
                key_id, value_id = next(self._ids), next(self._ids)
                key, value = self._copy_type(kind.key_type), self._copy_type(kind.value_type)
                return MapType(key_id, key, value_id, value, value_required=kind.value_required)
        return kind


def _is_same_kind(one: IcebergType, other: IcebergType) -> bool:
    """Return whether a column of one type may be a column of the other, perhaps widened."""
    match one, other:
        case StructType(), StructType():
            return True
        case ListType(), ListType():
            return _is_same_kind(one.element_type, other.element_type)
        case MapType(), MapType():
            is_same_key = _is_same_kind(one.key_type, other.key_type)
            return is_same_key and _is_same_kind(one.value_type, other.value_type)
    return _can_promote(one, other) or _can_promote(other, one)


def _can_promote(narrow: IcebergType, wide: IcebergType) -> bool:
    """Return whether Iceberg may promote the first type to the second, or they are equal."""
    old, new = (to_columns([NestedField(1, "", kind)])[0].type for kind in (narrow, wide))
    is_promotion = isinstance(old, Primitive) and isinstance(new, Primitive) and is_wider(old, new)
    return narrow == wide or is_promotion


def list_former_names(
    schemas: Mapping[int, Schema], current: Schema, written: Collection[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Return each name that changes use → the present top-level columns to which it refers.

    A former name of a renamed column refers to that column. Each name of a column that a change of
    type created refers to it and to the columns set aside for it (`n_v3`), since a change has a
    value of only one of them and does not lack the others. Columns in `written` were not set aside.
    Other names that two columns had, or that another column has now, are left out.
    """
    present = {field.field_id: field.name for field in current.fields}
    meant_with = _list_set_aside(schemas, current, written)
    newest = {each: name for name, found in meant_with.items() for each in found}
    had: dict[str, set[str]] = {}
    for field in (each for schema in schemas.values() for each in schema.fields):
        had.setdefault(field.name, set()).add(present.get(field.field_id, ""))
    found = {}
    for name, columns in had.items():
        others = {name} if name in present.values() else {newest.get(c, c) for c in columns}
        meant = columns & newest.keys()
        if len(others) == 1:
            meant = meant.union(others, *(meant_with.get(each, ()) for each in others))
        if meant - {name, ""}:
            found[name] = tuple(sorted(meant - {""}))
    return found


def _list_set_aside(
    schemas: Mapping[int, Schema], current: Schema, written: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Return name → the columns that were, or may have been, set aside for it.

    If no change has a value of such a column, rows keep their value.
    """
    history, top = ColumnHistory(schemas, current), {field.name for field in current.fields}
    earlier = {name: history.find_earlier(name) for name in top}
    aside = {name: {*found.proven, *found.unproven} & top for name, found in earlier.items()}
    replaced = {each for found in aside.values() for each in found}
    return {
        name: tuple(sorted(found - {*written}))
        for name, found in aside.items()
        if found and name not in replaced
    }


def encode_pairs(pairs: Mapping[int, int]) -> str:
    """Write pairs of field ids as text: `1=1 2=5`."""
    return " ".join(f"{source}={field}" for source, field in sorted(pairs.items()))


def decode_pairs(text: str) -> dict[int, int]:
    """Read pairs of field ids."""
    pairs: Iterable[tuple[str, str, str]] = (part.partition("=") for part in text.split())
    return {int(source): int(field) for source, _, field in pairs}
