"""Compare-and-swap commits on Iceberg tables; the only module that uses PyIceberg's private parts.

PyIceberg's own `append()` rebases and retries, so the same range could be appended twice
(protocol.md, traps). Here every commit requires the head that it was decided on and never retries.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, cast

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotLogEntry, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import (
    _FastAppendFiles,
    _OverwriteFiles,
)
from pyiceberg.typedef import EMPTY_DICT, TableVersion
from pyiceberg.types import IntegerType, ListType, StructType

from frazil.errors import ClockBehindError
from frazil.iceberg import manifests
from frazil.iceberg.table_compatibility import require_writable_table
from frazil.ledger.usage import count_request

if TYPE_CHECKING:
    import pyarrow as pa

MAIN = "main"

CLOCK_TOLERANCE_MS = 60_000
"""Iceberg's Java library refuses tables whose timestamps go back further (`TableMetadata`)."""

_CONFLICT_TEXTS = (
    "sequence number",
    "already exists",
    "starting snapshot",
    "Snapshot with snapshot id",
)

MAX_EXPIRED_PER_COMMIT = 20  # PyIceberg scans all snapshots for each one that is removed


@dataclass(frozen=True)
class SnapshotRetention:
    """Snapshots to retain: the newest `count`, and all that are younger than `age_ms`."""

    count: int
    age_ms: int  # a running compaction fails if the snapshot that it started from is removed


class _NothingStaged(Transaction):
    """A transaction without staged updates, whose metadata is the table's own.

    PyIceberg applies staged updates to a deep copy of the metadata on every access: a dozen times
    in a commit, 0.16 s on a table with 300 snapshots.
    """

    @property
    def table_metadata(self) -> TableMetadata:
        """Return the table's metadata, with the source columns of all its partition specs."""
        return manifests.with_dropped_sources(self._table.metadata)


def build_append(
    table: Table,
    summary: Mapping[str, str],
    files: Sequence[DataFile] = (),
    branch: str = MAIN,
    parent_id: int | None = None,
) -> AddSnapshotUpdate:
    """Build a snapshot that appends files, on a branch's head or on `parent_id`; do not commit."""
    update = _NothingStaged(table).update_snapshot(dict(summary), branch)
    producer = update.fast_append()
    if parent_id is not None:
        producer._parent_snapshot_id = parent_id  # noqa: SLF001 - as `_commit`, see below
    for file in files:
        producer.append_data_file(file)
    return _build(table, producer)


@dataclass(frozen=True)
class Replacement:
    """Data files to remove, the locations of the manifests that list them, and files to add."""

    removed: Sequence[DataFile] = ()
    manifests: frozenset[str] = frozenset()
    added: Sequence[DataFile] = ()


class _ReplaceFiles(_OverwriteFiles):
    """An overwrite that reads only the given manifests, and adds files of any partition spec.

    PyIceberg's own reads every manifest twice, and writes all added files by the current spec.
    """

    def __init__(self, table: Table, summary: Mapping[str, str], replaced: Replacement) -> None:
        super().__init__(
            Operation.OVERWRITE, _NothingStaged(table), table.io, None, dict(summary), MAIN
        )
        self._replaced = replaced
        self._deleted_data_files = set(replaced.removed)
        self._added_data_files = [f for f in replaced.added if f.spec_id == table.spec().spec_id]
        self._older: dict[int, list[DataFile]] = {}
        for file in replaced.added:
            if file.spec_id != table.spec().spec_id:
                self._older.setdefault(file.spec_id, []).append(file)

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:  # noqa: ARG002
        return lambda manifest: manifest.manifest_path in self._replaced.manifests

    def _existing_manifests(self) -> list[ManifestFile]:
        return [*super()._existing_manifests(), *map(self._write_older, self._older)]

    def _write_older(self, spec_id: int) -> ManifestFile:
        with self.new_manifest_writer(self.spec(spec_id)) as writer:
            for file in self._older[spec_id]:
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=file
                )
                writer.add(entry)
        return writer.to_manifest_file()

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        self._added_data_files = [*self._replaced.added]
        return super()._summary(snapshot_properties)


def build_overwrite(
    table: Table, summary: Mapping[str, str], replaced: Replacement
) -> AddSnapshotUpdate:
    """Build a snapshot on main's head that removes files and adds others; do not commit.

    Raises:
        IncompatibleTableError: the files' partitions are of a column that is no longer known.
        ValidationException: a file to remove is not in the given manifests of the table.
    """
    manifests.require_known_sources(table, {file.spec_id for file in replaced.removed})
    return _build(table, _ReplaceFiles(table, summary, replaced))


class DeleteManifestWriter(ManifestWriterV2):
    """A writer of a manifest of delete files; PyIceberg has none.

    The ids of equality deletes are ints, as the specification says; PyIceberg's schema has longs,
    with which Java cannot read the manifest.
    """

    def content(self) -> ManifestContent:
        """Return the content of the manifest."""
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def _with_partition(self, format_version: TableVersion) -> Schema:
        entry = super()._with_partition(format_version)
        file = entry.find_field("data_file")
        ids = ListType(element_id=136, element_type=IntegerType(), element_required=True)
        parts = [
            each.model_copy(update={"field_type": ids}) if each.name == "equality_ids" else each
            for each in cast("StructType", file.field_type).fields
        ]
        mended = file.model_copy(update={"field_type": StructType(*parts)})
        return Schema(*(mended if each.name == "data_file" else each for each in entry.fields))


_Numbers = dict[tuple[int, str], int]
"""Sequence numbers by partition spec and partition."""


def _find_oldest_numbers(manifests: Sequence[ManifestFile], io: FileIO) -> _Numbers:
    """Return the smallest sequence number of each partition's rows; empty without delete files."""
    oldest: _Numbers = {}
    if all(manifest.content == ManifestContent.DATA for manifest in manifests):
        return oldest
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(io):
                place, number = _place(entry), entry.sequence_number or 0
                oldest[place] = min(number, oldest.get(place, number))
    return oldest


def _place(entry: ManifestEntry) -> tuple[int, str]:
    return entry.data_file.spec_id, str(entry.data_file.partition)


def _may_apply(entry: ManifestEntry, oldest: _Numbers) -> bool:
    """Return False for position deletes whose partition has only younger rows, or none."""
    if entry.data_file.content != DataFileContent.POSITION_DELETES:
        return True
    number = oldest.get(_place(entry))
    return number is not None and number <= (entry.sequence_number or 0)


class _DropRemovedFiles(_FastAppendFiles):
    """An empty append that rewrites manifests without their entries of removed files.

    Position deletes that hide no row of their partition are dropped too, so that the partition's
    value disappears with its last rows.
    """

    def _existing_manifests(self) -> list[ManifestFile]:
        manifests = super()._existing_manifests()  # those with live files
        oldest = _find_oldest_numbers(manifests, self._io)
        rewritten = (self._rewrite(manifest, oldest) for manifest in manifests)
        return [manifest for manifest in rewritten if manifest is not None]

    def _rewrite(self, manifest: ManifestFile, oldest: _Numbers) -> ManifestFile | None:
        if manifest.content == ManifestContent.DATA and not lists_removed_files(manifest):
            return manifest
        entries = manifest.fetch_manifest_entry(self._io)
        kept = [entry for entry in entries if _may_apply(entry, oldest)]
        self._deleted_data_files |= {entry.data_file for entry in entries} - {
            entry.data_file for entry in kept
        }
        if len(kept) == len(entries) and not lists_removed_files(manifest):
            return manifest
        if not kept:
            return None
        with self._open(manifest) as writer:
            for entry in kept:
                writer.existing(entry)
        return writer.to_manifest_file()

    def _open(self, manifest: ManifestFile) -> ManifestWriter:
        spec = self.spec(manifest.partition_spec_id)
        if manifest.content == ManifestContent.DATA:
            return self.new_manifest_writer(spec)
        output = self.new_manifest_output()
        schema, snapshot_id = self.schema(), self._snapshot_id
        return DeleteManifestWriter(spec, schema, output, snapshot_id, self._compression)

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        summary = super()._summary(snapshot_properties)
        return Summary(Operation.REPLACE, **summary.additional_properties)


def lists_removed_files(manifest: ManifestFile) -> bool:
    """Return whether a manifest lists files that were removed, with their bounds and partitions."""
    return manifest.deleted_files_count != 0


def build_manifest_rewrite(table: Table, summary: Mapping[str, str]) -> AddSnapshotUpdate:
    """Build a snapshot on main's head with the same files, without the removed ones' entries.

    As Iceberg's `rewrite_manifests` writes one: operation `replace`, no row is changed. Do not
    commit.
    """
    transaction = _NothingStaged(table)
    producer = _DropRemovedFiles(Operation.APPEND, transaction, table.io, None, dict(summary), MAIN)
    return _build(table, producer)


def append_rows(
    catalog: Catalog, table: Table, rows: "pa.Table", kept: SnapshotRetention | None = None
) -> None:
    """Append rows to main in one commit.

    With `kept` the commit also merges manifests and removes some expired snapshots, so that appends
    stay cheap as the table grows.

    Raises:
        CommitFailedException: another writer was faster; nothing was added.
        IncompatibleTableError: another engine changed the table; nothing was added.
    """
    require_writable_table(table)
    from pyiceberg.io.pyarrow import _dataframe_to_data_files  # noqa: PLC0415 - takes a while

    update = _NothingStaged(table).update_snapshot()
    producer = update.fast_append() if kept is None else update.merge_append()
    for file in _dataframe_to_data_files(table.metadata, rows, table.io):
        producer.append_data_file(file)
    added = _build(table, producer)
    head = table.current_snapshot()
    required = require_head(table, MAIN, head.snapshot_id if head else None)
    updates = move_main(added)
    expired = [] if kept is None else _list_expired(table, kept, added.snapshot.timestamp_ms)
    updates += [RemoveSnapshotsUpdate(snapshot_ids=[snapshot_id]) for snapshot_id in expired]
    commit(catalog, table, required, updates)


def _list_expired(table: Table, kept: SnapshotRetention, now_ms: int) -> list[int]:
    """List the oldest snapshots that are neither retained nor the head of a ref."""
    heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
    oldest_first = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms)
    expired = (
        snapshot.snapshot_id
        for snapshot in oldest_first[: max(len(oldest_first) - kept.count + 1, 0)]
        if snapshot.timestamp_ms < now_ms - kept.age_ms and snapshot.snapshot_id not in heads
    )
    return [*islice(expired, MAX_EXPIRED_PER_COMMIT)]


def _omit_uuid_bounds(producer: _FastAppendFiles | _OverwriteFiles) -> None:
    """Have a snapshot's manifest list omit partition bounds that Java reads differently.

    Without bounds both libraries read the manifest. The list of an earlier commit is corrected too:
    the new list has an entry for each manifest.
    """
    specs = producer._transaction.table_metadata.specs()  # noqa: SLF001 - as `_commit`, see below
    schema, process = producer.schema(), producer._process_manifests  # noqa: SLF001
    fields = {number: manifests.find_uuid_fields(spec, schema) for number, spec in specs.items()}
    if not any(fields.values()):
        return

    def process_manifests(found: list[ManifestFile]) -> list[ManifestFile]:
        return [
            manifests.omit_bounds(each, fields[each.partition_spec_id]) for each in process(found)
        ]

    vars(producer)["_process_manifests"] = process_manifests


def _build(table: Table, producer: _FastAppendFiles | _OverwriteFiles) -> AddSnapshotUpdate:
    _omit_uuid_bounds(producer)
    updates, _ = producer._commit()  # noqa: SLF001 - pinned version; a test fails if it changes
    added = updates[0]
    if not isinstance(added, AddSnapshotUpdate):
        message = f"PyIceberg returned {type(added).__name__} instead of AddSnapshotUpdate"
        raise TypeError(message)
    # A clock that was set back must not produce a timestamp before the table's. Add 1 ms, because
    # PyIceberg replaces a timestamp equal to the table's by the clock's.
    parent = table.current_snapshot()
    not_before = max(table.metadata.last_updated_ms + 1, parent.timestamp_ms if parent else 0)
    timestamp_ms = max(added.snapshot.timestamp_ms, not_before)
    snapshot = added.snapshot.model_copy(update={"timestamp_ms": timestamp_ms})
    return AddSnapshotUpdate(snapshot=snapshot)


def set_branch(name: str, snapshot_id: int) -> SetSnapshotRefUpdate:
    """Build the update that points a branch at a snapshot, without age limits for expiry."""
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=SnapshotRefType.BRANCH.value,
        snapshot_id=snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )


def move_main(added: AddSnapshotUpdate) -> list[TableUpdate]:
    """Build the updates that add a snapshot and point main at it."""
    return [added, set_branch(MAIN, added.snapshot.snapshot_id)]


def set_tag(name: str, snapshot_id: int, max_age_ms: int) -> SetSnapshotRefUpdate:
    """Build the update that tags a snapshot until this age, counted from the snapshot's commit."""
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=SnapshotRefType.TAG.value,
        snapshot_id=snapshot_id,
        max_ref_age_ms=max_age_ms,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )


def drop_branch(name: str, staged_snapshot_id: int | None = None) -> list[TableUpdate]:
    """Build the updates that remove a branch, and its staged snapshot if one is given."""
    updates: list[TableUpdate] = [RemoveSnapshotRefUpdate(ref_name=name)]
    if staged_snapshot_id is not None:
        updates.append(RemoveSnapshotsUpdate(snapshot_ids=[staged_snapshot_id]))
    return updates


def set_properties(properties: Mapping[str, str]) -> SetPropertiesUpdate:
    """Build the update that sets table properties."""
    return SetPropertiesUpdate(updates=dict(properties))


def remove_properties(names: Sequence[str]) -> RemovePropertiesUpdate:
    """Build the update that removes table properties."""
    return RemovePropertiesUpdate(removals=list(names))


def require_head(table: Table, ref: str, snapshot_id: int | None) -> list[TableRequirement]:
    """Require the same table, and a ref that still points to this snapshot (I5)."""
    return [
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId(ref=ref, snapshot_id=snapshot_id),
    ]


def require_layout(table: Table) -> list[TableRequirement]:
    """Require an unchanged schema and partition spec."""
    return [
        AssertCurrentSchemaId(current_schema_id=table.metadata.current_schema_id),
        AssertDefaultSpecId(default_spec_id=table.metadata.default_spec_id),
    ]


def require_uuid(table: Table) -> list[TableRequirement]:
    """Require the same table."""
    return [AssertTableUUID(uuid=table.metadata.table_uuid)]


def _return_self(self: Snapshot | SnapshotLogEntry, memo: object) -> object:  # noqa: ARG001
    return self


# PyIceberg's own catalogs deep-copy the whole metadata for each commit, mostly snapshots, which are
# immutable. With 4,000 snapshots (three days) the copy took longer than the commit (record 22).
for _kind in (Snapshot, SnapshotLogEntry):
    setattr(_kind, "__deepcopy__", _return_self)  # noqa: B010 - patches a class of PyIceberg


def commit(
    catalog: Catalog,
    table: Table,
    requirements: Sequence[TableRequirement],
    updates: Sequence[TableUpdate],
) -> Table:
    """Commit once; no retry, no rebase (I6). Return the table as the catalog's response has it.

    Raises:
        ClockBehindError: Spark could not load the table afterwards; nothing was written.
    """
    if isinstance(catalog, MetastoreCatalog) and not _adds_snapshot(updates):
        _require_clock(table)
    count_request("catalog")
    response = catalog.commit_table(table, tuple(requirements), tuple(updates))
    return Table(table.name(), response.metadata, response.metadata_location, table.io, catalog)


def _adds_snapshot(updates: Sequence[TableUpdate]) -> bool:
    return any(isinstance(update, AddSnapshotUpdate) for update in updates)


def _require_clock(table: Table) -> None:
    """Check that the clock, which PyIceberg stamps the commit with, is not behind the table."""
    now_ms = int(time.time() * 1000)
    behind_ms = table.metadata.last_updated_ms - now_ms
    if behind_ms > CLOCK_TOLERANCE_MS:
        raise ClockBehindError(
            f"table {'.'.join(table.name())}: this machine's clock is {behind_ms // 1000} s behind "
            "the table's last change; Spark refuses tables whose timestamps go back",
            "set the clock (`timedatectl` shows whether it is synchronised) and run again; if this "
            "clock is right, another writer's is ahead: run again after that time",
        )


def is_definite_conflict(error: Exception) -> bool:
    """Return whether an error means that another writer was faster.

    After any other error it is unknown whether the commit succeeded.
    """
    if isinstance(error, CommitFailedException | ValidationException | KeyError):
        return True
    return isinstance(error, ValueError) and any(text in str(error) for text in _CONFLICT_TEXTS)


def read_added_files(table: Table, snapshot_id: int) -> list[DataFile]:
    """Read the data files that one snapshot added."""
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return []
    return [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.snapshot_id == snapshot_id and entry.status == ManifestEntryStatus.ADDED
    ]
