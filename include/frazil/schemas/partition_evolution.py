"""Change a table's partition spec to the one of its stream file.

Existing files keep the spec that they were written with until a compaction rewrites them.
"""

from collections.abc import Sequence
from itertools import count

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField
from pyiceberg.table.update import AddPartitionSpecUpdate, SetDefaultSpecUpdate, TableUpdate
from pyiceberg.transforms import parse_transform

from frazil.streams.partitioning import PartitionField as WantedField
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

    Names are unique across specs, because Spark cannot list partitions otherwise.
    """
    known = [field for spec in table.specs().values() for field in spec.fields]
    names = {field.name for field in known}
    ids = count((table.metadata.last_partition_id or 999) + 1)
    spec_id = max(table.specs()) + 1
    fields = []
    for field in wanted:
        source_id = schema.find_field(field.column).field_id
        transform = parse_transform(field.iceberg_transform)
        same = (f for f in known if (f.source_id, f.transform) == (source_id, transform))
        name = f"{field.name}_v{spec_id}" if field.name in names else field.name
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
    spec = _build_spec(table, schema, wanted)
    same = (each.spec_id for each in table.specs().values() if each.fields == spec.fields)
    found = next(same, None)
    if found is not None:
        return [SetDefaultSpecUpdate(spec_id=found)]
    return [AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1)]


def describe_transform(schema: Schema, field: PartitionField | SortField) -> str:
    """Return a partition or sort field as a stream file writes it."""
    transform, _, width = str(field.transform).rstrip("]").partition("[")
    column = str(schema.find_column_name(field.source_id))
    return WantedField(transform, column, int(width) if width else None).text
