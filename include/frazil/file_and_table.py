"""What a stream file says of a new table's layout, and where the table that is there differs."""

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder

from frazil.streams import Stream
from frazil.table_schema import build_partition_spec, build_sort_order


def list_differences(table: Table, stream: Stream) -> tuple[str, ...]:
    """List partitions, sort order and properties that the file names and the table has otherwise.

    The file is followed when a table is created; later it moves no file and no other writer's rule.
    """
    schema = table.schema()
    differences = []
    try:
        wanted_spec = build_partition_spec(schema, stream.partition_fields)
        wanted_order = build_sort_order(schema, stream.table.sort_by)
    except ValueError:  # a column that the table does not have yet: the schema's review tells
        return ()
    if stream.partition_fields and _list_parts(wanted_spec) != _list_parts(table.spec()):
        asked = ", ".join(stream.table.partition_by)
        own = ", ".join(_describe_part(schema, field) for field in table.spec().fields)
        differences.append(f"partition_by is {asked}, the table has {own or 'none'}")
    if stream.table.sort_by and _list_sorts(wanted_order) != _list_sorts(table.sort_order()):
        asked = ", ".join(stream.table.sort_by)
        own = ", ".join(_describe_sort(schema, field) for field in table.sort_order().fields)
        differences.append(f"sort_by is {asked}, the table has {own or 'none'}")
    differences += [
        f"property {key} is {value}, the table has {table.properties.get(key, 'none')}"
        for key, value in stream.table.properties.items()
        if table.properties.get(key) != value and key != "format-version"
    ]
    return tuple(differences)


def _describe_part(schema: Schema, field: PartitionField | SortField) -> str:
    """Write a transform of a column in the language of stream files."""
    column = schema.find_column_name(field.source_id)
    transform, _, width = str(field.transform).rstrip("]").partition("[")
    if transform == "identity":
        return str(column)
    return f"{transform}({column}, {width})" if width else f"{transform}({column})"


def _describe_sort(schema: Schema, field: SortField) -> str:
    return f"{_describe_part(schema, field)} {field.direction} {field.null_order}"


def _list_parts(spec: PartitionSpec) -> list[tuple[int, str]]:
    return [(field.source_id, str(field.transform)) for field in spec.fields]


def _list_sorts(order: SortOrder) -> list[tuple[int, str]]:
    return [(field.source_id, str(field.transform)) for field in order.fields]
