"""Change a table's partition spec to the one of its stream file.

Existing files keep the spec that they were written with until a compaction rewrites them.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import count

from pyiceberg.partitioning import PartitionField, PartitionSpec, validate_partition_name
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER_ID, SortField, SortOrder
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSortOrderUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    TableUpdate,
)
from pyiceberg.transforms import parse_transform
from pyiceberg.types import NestedField

from frazil.iceberg.table_schema import to_columns
from frazil.ledger import keys
from frazil.streams.partitioning import PartitionField as WantedField
from frazil.streams.partitioning import parse_partition_field
from frazil.streams.schema_changes import SchemaChange


def compare_partitions(
    table: Table, schema: Schema, wanted: Sequence[WantedField]
) -> tuple[SchemaChange, ...]:
    """Return the change of partitions that a stream file needs; none if it lists no partitions.

    `schema` is the table's after all other changes.
    """
    spec = table.spec()
    have = [(schema.find_column_name(f.source_id), str(f.transform)) for f in spec.fields]
    if not wanted or have == [(field.column, field.iceberg_transform) for field in wanted]:
        return ()
    before = ", ".join(describe_transform(schema, field) for field in spec.fields)
    after = ", ".join(field.text for field in wanted)
    return (SchemaChange("repartition", "partition_by", before or "none", after),)


def _build_spec(table: Table, schema: Schema, wanted: Sequence[WantedField]) -> PartitionSpec:
    """Return the new partition spec; a field of an earlier spec keeps its id and name.

    Names are unique across specs, in any case, because Spark cannot list partitions otherwise.
    """
    known = [field for spec in table.specs().values() for field in spec.fields]
    names = {field.name.lower() for field in known}
    ids = count((table.metadata.last_partition_id or 999) + 1)
    spec_id = max(table.specs()) + 1
    fields = []
    for field in wanted:
        source_id = schema.find_field(field.column).field_id
        transform = parse_transform(field.iceberg_transform)
        same = (f for f in known if (f.source_id, f.transform) == (source_id, transform))
        name = f"{field.name}_v{spec_id}" if field.name.lower() in names else field.name
        fields.append(next(same, None) or PartitionField(source_id, next(ids), transform, name))
    return PartitionSpec(*fields, spec_id=spec_id)


def list_partitions(
    table: Table, schema: Schema, wanted: Sequence[WantedField]
) -> list[PartitionField]:
    """Return the partition fields of all specs of the table and of the new one."""
    existing = [field for spec in table.specs().values() for field in spec.fields]
    return [*existing, *_build_spec(table, schema, wanted).fields]


def repartition(table: Table, schema: Schema, wanted: Sequence[WantedField]) -> list[TableUpdate]:
    """Return the updates that make the stream file's partitions the table's."""
    return use_spec(table, _build_spec(table, schema, wanted))


def use_spec(table: Table, spec: PartitionSpec) -> list[TableUpdate]:
    """Return the updates that make a partition spec the table's; an earlier one is used again."""
    same = (each.spec_id for each in table.specs().values() if each.fields == spec.fields)
    found = next(same, None)
    if found == table.spec().spec_id:
        return []
    if found is not None:
        return [SetDefaultSpecUpdate(spec_id=found)]
    return [AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1)]


def replace_in_spec(table: Table, schema: Schema, named: Collection[str]) -> PartitionSpec:
    """Return the table's spec, with new columns in place of those that a schema replaces.

    A column is replaced where the schema has a new column under its name, and `named`, the columns
    by which the stream file partitions and sorts, has that name: a file that names the renamed
    column keeps it. A partition field that the new column's type does not allow is left out.
    """
    columns = to_columns(f for f in schema.fields if f.name != keys.KAFKA_COLUMN)
    fields = table.spec().fields
    successors = [_find_successor(table, schema, field.source_id, named) for field in fields]
    pairs = [*zip(fields, successors, strict=True)]
    kept = [_describe_field(schema, f.transform, f.source_id) for f, new in pairs if new is None]
    if len(kept) == len(fields):
        return table.spec()
    names = {column.name for column in columns}
    others = [each for each in kept if each.column.partition(".")[0] in names]
    wanted: list[WantedField] = []
    for field, new in pairs:
        if new is None:
            wanted.append(_describe_field(schema, field.transform, field.source_id))
            continue
        text = _describe_field(schema, field.transform, new.field_id).text
        with suppress(ValueError):
            wanted.append(parse_partition_field(text, columns, [*wanted, *others]))
    return _build_spec(table, schema, wanted)


def replace_in_sort_order(
    table: Table, schema: Schema, named: Collection[str]
) -> list[TableUpdate]:
    """Return the updates that sort by new columns instead of those that a schema replaces.

    `named` as in `replace_in_spec`. A new column of lists, maps or structs is left out.
    """
    fields = []
    for field in table.sort_order().fields:
        new = _find_successor(table, schema, field.source_id, named)
        if new is None:
            fields.append(field)
        elif new.field_type.is_primitive and field.transform.can_transform(new.field_type):
            fields.append(field.model_copy(update={"source_id": new.field_id}))
    if fields == table.sort_order().fields:
        return []
    order_id = max(table.sort_orders()) + 1 if fields else UNSORTED_SORT_ORDER_ID
    if order_id in table.sort_orders():
        return [SetDefaultSortOrderUpdate(sort_order_id=order_id)]
    order = SortOrder(*fields, order_id=order_id)
    return [AddSortOrderUpdate(sort_order=order), SetDefaultSortOrderUpdate(sort_order_id=-1)]


def list_name_clashes(schema: Schema, partitions: Sequence[PartitionField]) -> list[str]:
    """List partition fields with the name of a column: Spark cannot load such a table."""
    clashes = []
    for field in partitions:
        try:
            validate_partition_name(field.name, field.transform, field.source_id, schema, set())
        except ValueError as error:
            clashes.append(f"{field.name}: {error}")
    return clashes


def _find_successor(
    table: Table, schema: Schema, source_id: int, named: Collection[str]
) -> NestedField | None:
    """Return the new column that replaces a column of the table, see `replace_in_spec`; or None."""
    name = table.schema().find_column_name(source_id)
    if name is None or name not in named or name not in schema.column_names:
        return None
    found = schema.find_field(name)
    return found if found.field_id > table.metadata.last_column_id else None


def _describe_field(schema: Schema, transform: object, source_id: int) -> WantedField:
    kind, _, width = str(transform).rstrip("]").partition("[")
    return WantedField(kind, str(schema.find_column_name(source_id)), int(width) if width else None)


def describe_transform(schema: Schema, field: PartitionField | SortField) -> str:
    """Return a partition or sort field as a stream file writes it."""
    return _describe_field(schema, field.transform, field.source_id).text
