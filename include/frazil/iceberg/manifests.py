"""Partition bounds of uuids in manifest lists, where PyIceberg and Java disagree.

Java orders uuids as two signed numbers, Python as unsigned bytes, and each skips manifests by its
own order (decision record 31).
"""

from copy import deepcopy

from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import UUIDType

_PARTITIONS = 13
"""Position of the partition summaries in an entry of a manifest list."""


def find_uuid_fields(spec: PartitionSpec, schema: Schema) -> tuple[int, ...]:
    """Return the positions of the partition fields whose values are uuids."""
    columns = index_by_id(schema)
    uuids = {number for number, each in columns.items() if isinstance(each.field_type, UUIDType)}
    return tuple(
        position
        for position, field in enumerate(spec.fields)
        if isinstance(field.transform, IdentityTransform) and field.source_id in uuids
    )


def can_skip_files(table: Table, column: str) -> bool:
    """Return whether PyIceberg skips files by this column's values without skipping a match.

    It reads the partition values of uuids as objects and compares them with bytes: none is equal.
    """
    schema = table.schema()
    number = schema.find_field(column).field_id
    return not any(
        spec.fields[position].source_id == number
        for spec in table.specs().values()
        for position in find_uuid_fields(spec, schema)
    )


def omit_bounds(manifest: ManifestFile, positions: tuple[int, ...]) -> ManifestFile:
    """Return a manifest without partition summaries, unless both orders have the same bounds.

    All summaries go: to Java, a field without bounds has no value but null.
    """
    summaries = manifest.partitions or []
    found = [summaries[position] for position in positions if position < len(summaries)]
    if all(summary.lower_bound == summary.upper_bound for summary in found):
        return manifest
    copied = deepcopy(manifest)  # PyIceberg caches the manifest itself
    copied[_PARTITIONS] = None
    return copied
