"""Delete files as other engines write them; PyIceberg writes none."""

import time
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    SetSnapshotRefUpdate,
)
from pyiceberg.typedef import Record
from support.lake import Lake

from frazil.iceberg.commits import DeleteManifestWriter


def delete_by_position(lake: Lake, path: str, positions: list[int], *partition: str) -> None:
    """Hide rows of a data file by their positions; `partition` has the values of the file."""
    ids = {"file_path": b"2147483546", "pos": b"2147483545"}
    columns = pa.table({"file_path": [path] * len(positions), "pos": pa.array(positions)})
    _commit(lake, _name_ids(columns, ids), DataFileContent.POSITION_DELETES, None, partition)


def delete_by_value(lake: Lake, column: str, values: list[object], *partition: str) -> None:
    """Hide all rows so far with these values of a column, in the partition if one is given."""
    delete_by_values(lake, {column: values}, *partition)


def delete_by_values(lake: Lake, values: dict[str, list[object]], *partition: str) -> None:
    """Hide all rows so far that have these values together, each in its column."""
    schema = lake.table.schema()
    kinds = schema.as_arrow()
    columns = pa.table(
        {name: pa.array(each, kinds.field(name).type) for name, each in values.items()}
    )
    ids = {name: schema.find_field(name).field_id for name in values}
    named = _name_ids(columns, {name: str(number).encode() for name, number in ids.items()})
    _commit(lake, named, DataFileContent.EQUALITY_DELETES, [*ids.values()], partition)


def _name_ids(columns: pa.Table, ids: dict[str, bytes]) -> pa.Table:
    fields = [
        field.with_nullable(nullable=False).with_metadata({b"PARQUET:field_id": ids[field.name]})
        for field in columns.schema
    ]
    return pa.table(columns.columns, schema=pa.schema(fields))


def _commit(
    lake: Lake,
    rows: pa.Table,
    content: DataFileContent,
    equality_ids: list[int] | None,
    partition: tuple[str, ...] = (),
) -> None:
    table = lake.table
    folder = f"{table.location()}/foreign"
    path = f"{folder}/{uuid4()}.parquet"
    with table.io.new_output(path).create() as sink:
        pq.write_table(rows, sink)
    file = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=len(rows),
        file_size_in_bytes=len(table.io.new_input(path)),
        equality_ids=equality_ids,
    )
    head = table.current_snapshot()
    assert head is not None
    manifest = _write_manifest(table, file, head.snapshot_id + 1, f"{folder}/{uuid4()}.avro")
    _commit_manifests(lake, [*head.manifests(table.io), manifest], Operation.DELETE)


def remove_as_java(lake: Lake, *paths: str) -> None:
    """Remove files from main's head as Iceberg's Java library does.

    It writes their entries into the manifest of those that stay.
    """
    table = lake.table
    head = table.current_snapshot()
    assert head is not None
    manifests = []
    for manifest in head.manifests(table.io):
        is_data = manifest.content == ManifestContent.DATA
        make = ManifestWriterV2 if is_data else DeleteManifestWriter
        output = table.io.new_output(f"{table.location()}/metadata/{uuid4()}.avro")
        spec = table.specs()[manifest.partition_spec_id]
        with make(spec, table.schema(), output, head.snapshot_id + 1, "deflate") as writer:
            for entry in manifest.fetch_manifest_entry(table.io):
                is_removed = entry.data_file.file_path in paths
                (writer.delete if is_removed else writer.existing)(entry)
        manifests.append(writer.to_manifest_file())
    _commit_manifests(lake, manifests, Operation.DELETE)


def _commit_manifests(lake: Lake, manifests: list[ManifestFile], operation: Operation) -> None:
    table = lake.table
    head = table.current_snapshot()
    assert head is not None
    snapshot_id = head.snapshot_id + 1
    number = table.metadata.last_sequence_number + 1
    path = f"{table.location()}/metadata/{uuid4()}-list.avro"
    with write_manifest_list(
        2, table.io.new_output(path), snapshot_id, head.snapshot_id, number, "deflate"
    ) as writer:
        writer.add_manifests(manifests)
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=head.snapshot_id,
        sequence_number=number,
        timestamp_ms=max(int(time.time() * 1000), head.timestamp_ms + 1),
        manifest_list=path,
        summary=Summary(operation),
        schema_id=table.metadata.current_schema_id,
    )
    lake.catalog.commit_table(
        table,
        (AssertRefSnapshotId(ref="main", snapshot_id=head.snapshot_id),),
        (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(
                ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id
            ),
        ),
    )


def _write_manifest(table: Table, file: DataFile, snapshot_id: int, path: str) -> ManifestFile:
    output = table.io.new_output(path)
    with DeleteManifestWriter(
        table.spec(), table.schema(), output, snapshot_id, "deflate"
    ) as writer:
        writer.add(
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=file
            )
        )
    return writer.to_manifest_file()
