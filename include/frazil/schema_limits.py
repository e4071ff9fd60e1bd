"""What no table can follow in place, whoever decides."""

import json
from collections.abc import Sequence

from pyiceberg.partitioning import PartitionField, validate_partition_name
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from frazil import keys
from frazil.schema_policy import SchemaChange

_REPLACING = frozenset({"narrow", "change_type", "drop"})
_HARMLESS = frozenset({"add_column", "add_required", "widen", "relax"})


def list_impossible(table: Table, changes: tuple[SchemaChange, ...]) -> list[str]:
    """List what no table can follow in place, and what its files are laid out by."""
    sources = {f.source_id for spec in table.specs().values() for f in spec.fields}
    sources |= {f.source_id for order in table.sort_orders().values() for f in order.fields}
    found = (table.schema().find_column_name(source) for source in sources)
    laid_out = [name for name in found if name is not None]
    old_names = {change.after: change.path for change in changes if change.kind == "rename"}

    def decides_layout(change: SchemaChange) -> bool:
        old = old_names.get(change.path, change.path)
        return any(name == old or name.startswith(f"{old}.") for name in laid_out)

    return [
        change.text
        for change in changes
        if not change.is_possible or (change.kind in _REPLACING and decides_layout(change))
    ]


def list_shared(table: Table, stream: str, changes: tuple[SchemaChange, ...]) -> list[str]:
    """List changes of columns that another stream of the table writes too."""
    own = keys.columns_key(stream)
    prefix = own.removesuffix(stream)
    others = {
        name: key.removeprefix(prefix)
        for key, text in table.properties.items()
        if key.startswith(prefix) and key != own
        for name in json.loads(text)
    }
    return [
        f"{change.text}, which stream {others[change.path.partition('.')[0]]} writes too"
        for change in changes
        if change.kind not in _HARMLESS and change.path.partition(".")[0] in others
    ]


def list_taken_names(schema: Schema, partitions: Sequence[PartitionField]) -> list[str]:
    """List clashes of a column's name with a partition field's: Spark could load no such table."""
    clashes = []
    for field in partitions:
        try:
            validate_partition_name(field.name, field.transform, field.source_id, schema, set())
        except ValueError as error:
            clashes.append(f"{field.name}: {error}")
    return clashes
