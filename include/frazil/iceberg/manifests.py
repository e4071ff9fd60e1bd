"""Manifests that PyIceberg and Iceberg's Java library read alike; uses PyIceberg's private parts.

The two libraries differ in three ways, which a table shows if it is partitioned by a uuid or by two
columns of one decimal type (decision record 30).
"""

from typing import Any, TypeAlias

from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import UUIDType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

AvroSchema: TypeAlias = Any
_NESTED = ("fields", "items", "type", "values")
_PARTITIONS = 13
"""Position of the partition summaries in an entry of a manifest list."""


def unify_bounds(producer: _FastAppendFiles | _OverwriteFiles) -> None:
    """Have a snapshot's manifest list omit partition bounds that the libraries read differently.

    Java orders uuids as two signed numbers, Python as unsigned bytes, and each skips manifests by
    its own order. Without bounds both read the manifest. The list of an earlier commit is corrected
    too: the new list has an entry for each manifest.
    """
    specs = producer._transaction.table_metadata.specs()  # noqa: SLF001 - tests pin the version
    schema, process = producer.schema(), producer._process_manifests  # noqa: SLF001
    fields = {number: find_uuid_fields(spec, schema) for number, spec in specs.items()}
    if not any(fields.values()):
        return

    def process_manifests(manifests: list[ManifestFile]) -> list[ManifestFile]:
        return [_omit_bounds(each, fields[each.partition_spec_id]) for each in process(manifests)]

    vars(producer)["_process_manifests"] = process_manifests
    # By the same bounds PyIceberg also skips manifests when it searches the files to remove.
    vars(producer)["_build_manifest_evaluator"] = lambda _spec_id: lambda _manifest: True


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


def _omit_bounds(manifest: ManifestFile, positions: tuple[int, ...]) -> ManifestFile:
    """Return a manifest without partition summaries, unless both orders have the same bounds.

    All summaries go: to Java, a field without bounds has no value but null.
    """
    summaries = manifest.partitions or []
    found = [summaries[position] for position in positions if position < len(summaries)]
    if all(summary.lower_bound == summary.upper_bound for summary in found):
        return manifest
    copied = ManifestFile(*manifest._data)  # noqa: SLF001 - PyIceberg caches the manifest itself
    copied[_PARTITIONS] = None
    return copied


def _resolve_names(schema: AvroSchema, known: dict[str, AvroSchema]) -> AvroSchema:
    """Replace each reference to a named type by its definition, which PyIceberg cannot look up."""
    match schema:
        case str():
            return known.get(schema, schema)
        case list():
            return [_resolve_names(each, known) for each in schema]
        case {"type": "fixed", "name": name}:
            return known.setdefault(name, schema)
        case dict():
            return {
                key: _resolve_names(part, known) if key in _NESTED else part
                for key, part in schema.items()
            }
    return schema


def _refer_to_names(schema: AvroSchema, known: set[str]) -> AvroSchema:
    """Replace each repeated definition of a type by its name; Java refuses a second definition."""
    match schema:
        case list():
            return [_refer_to_names(each, known) for each in schema]
        case {"type": "fixed", "name": name} if name in known:
            return name
        case {"type": "fixed", "name": name}:
            known.add(name)
        case dict():
            return {key: _refer_to_names(part, known) for key, part in schema.items()}
    return schema


def _read_schema(self: AvroSchemaConversion, avro_schema: AvroSchema) -> Schema:
    return _READ(self, _resolve_names(avro_schema, {}))


def _write_schema(
    self: AvroSchemaConversion, schema: Schema, schema_name: str | None = None
) -> AvroSchema:
    return _refer_to_names(_WRITE(self, schema, schema_name), set())


_READ, _WRITE = AvroSchemaConversion.avro_to_iceberg, AvroSchemaConversion.iceberg_to_avro


def correct_named_types() -> None:
    """Have PyIceberg read and write manifests in which two fields have one named type."""
    for name, function in (("avro_to_iceberg", _read_schema), ("iceberg_to_avro", _write_schema)):
        setattr(AvroSchemaConversion, name, function)
