"""Partition values and bounds about which PyIceberg and Java disagree.

Java orders uuids as two signed numbers, Python as unsigned bytes, and each skips manifests by its
own order (decision record 31). `truncate` rounds a number near the minimum of its type to one below
the minimum: Java's result wraps to a large number, PyIceberg's is out of range and matches nothing.
"""

from collections.abc import Collection, Iterable
from copy import deepcopy
from decimal import Decimal

from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.types import (
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    UUIDType,
)

from frazil.errors import IncompatibleTableError

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


def wrap_truncated(value: object, kind: IcebergType) -> object:
    """Return a truncated value as Java computes it: whole numbers wrap within their type."""
    if not isinstance(kind, IntegerType | LongType) or not isinstance(value, int):
        return value
    bits = 32 if isinstance(kind, IntegerType) else 64
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def find_lowest(spec: PartitionSpec, schema: Schema) -> dict[str, str]:
    """Return, for numbers whose partitions are truncated, the lowest value that has a partition.

    Truncation rounds down: below that value a decimal needs more digits than the type has, and a
    whole number wraps to a large one, in whose partition no filter finds it.
    """
    lowest: dict[str, str] = {}
    for field in spec.fields:
        name = schema.find_column_name(field.source_id)
        kind = schema.find_type(field.source_id) if name else None
        if name and kind and isinstance(field.transform, TruncateTransform):
            found = _find_lowest_value(kind, field.transform.width)
            lowest |= {name: found} if found else {}
    return lowest


def _find_lowest_value(kind: IcebergType, width: int) -> str:
    """Return the lowest number that has a partition; empty if each value has one."""
    if isinstance(kind, DecimalType):
        units = (10**kind.precision - 1) // width * width
        return f"{Decimal((units > 0, tuple(map(int, str(units))), -kind.scale)):f}"
    if isinstance(kind, IntegerType | LongType):
        smallest = 1 << (31 if isinstance(kind, IntegerType) else 63)
        return str(-(smallest // width * width)) if smallest % width else ""
    return ""


def can_skip_files(table: Table, column: str, values: Iterable[object]) -> bool:
    """Return whether PyIceberg can skip files by these values without missing a match.

    It reads the partition values of uuids as objects and compares them with bytes: none is equal.
    """
    schema = table.schema()
    source = schema.find_field(column)
    number, kind = source.field_id, source.field_type
    transforms = {
        field.transform.transform(kind)
        for spec in table.specs().values()
        for field in spec.fields
        if field.source_id == number and isinstance(field.transform, TruncateTransform)
    }
    truncated = [truncate(value) for value in values for truncate in transforms]
    if any(wrap_truncated(value, kind) != value for value in truncated):
        return False
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


def with_dropped_sources(metadata: TableMetadata) -> TableMetadata:
    """Return the metadata with a schema that has the dropped source columns of partition specs.

    Another engine may drop a column that only an older spec partitions by. Without it PyIceberg
    knows no type of the partition values, and cannot write the manifests of that spec's files. A
    column that no schema of the table has any more stays absent.
    """
    schema = metadata.schema()
    sources = {field.source_id for spec in metadata.partition_specs for field in spec.fields}
    dropped = sources - {*index_by_id(schema)}
    if not dropped:
        return metadata
    older: dict[int, NestedField] = {}
    for each in sorted(metadata.schemas, key=lambda each: each.schema_id):
        older |= index_by_id(each)
    # The name may be another column's by now, or that of a field inside of a struct.
    added = [
        older[number].model_copy(update={"name": f"dropped-{number}", "required": False})
        for number in sorted(dropped & {*older})
    ]
    full = Schema(
        *schema.fields,
        *added,
        schema_id=schema.schema_id,
        identifier_field_ids=schema.identifier_field_ids,
    )
    others = [each for each in metadata.schemas if each.schema_id != schema.schema_id]
    return metadata.model_copy(update={"schemas": [*others, full]})


def require_known_sources(table: Table, spec_ids: Collection[int]) -> None:
    """Check that partition specs have source columns of known types, dropped ones included.

    Raises:
        IncompatibleTableError: a column was dropped and no schema of the table has it any more.
    """
    known = {*index_by_id(with_dropped_sources(table.metadata).schema())}
    lost = [
        field.name
        for number in sorted(spec_ids)
        for field in table.specs()[number].fields
        if field.source_id not in known
    ]
    if lost:
        raise IncompatibleTableError(
            f"table {'.'.join(table.name())}: files are partitioned by {', '.join(lost)}, of a "
            "column that was dropped and that no schema of the table has any more",
            "`frazil maintain STREAM --only compact --rewrite-all --no-dry-run` writes them by the "
            "current partition spec, then run the command again",
        )
