"""What a stream file says of a new table's layout, and where the table that is there differs."""

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder

from frazil.repartitioning import compare_partitions, describe_transform
from frazil.streams import Stream
from frazil.table_schema import build_sort_order


def list_differences(table: Table, stream: Stream) -> tuple[str, ...]:
    """List partitions, sort order and properties that the file names and the table has otherwise.

    The file is followed when a table is created; later only edited partitions are, by an answer.
    """
    schema = table.schema()
    try:
        partitions = compare_partitions(table, schema, stream.partition_fields)
        wanted_order = build_sort_order(schema, stream.table.sort_by)
    except ValueError:  # a column that the table does not have yet: the schema's review tells
        return ()
    differences = [f"partition_by is {c.after}, the table has {c.before}" for c in partitions]
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


def _describe_sort(schema: Schema, field: SortField) -> str:
    return f"{describe_transform(schema, field)} {field.direction} {field.null_order}"


def _list_sorts(order: SortOrder) -> list[tuple[int, str]]:
    return [(field.source_id, str(field.transform)) for field in order.fields]
