"""A table's files and metadata, read through PyIceberg without Spark."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table

from frazil.compaction import FileSize, TableLayout
from frazil.tables import translated_errors

READERS = 8
"""Manifests read at the same time: on object storage each costs a round trip."""


def read_layout(table: Table) -> TableLayout:
    """Read the live data files of main's head."""
    head = table.current_snapshot()
    if head is None:
        return TableLayout((), ())
    with translated_errors("reading the manifests of the table"):
        manifests = [m for m in head.manifests(table.io) if is_live(m)]
        with ThreadPoolExecutor(READERS) as pool:
            groups = list(pool.map(lambda m: list(_read_sizes(table, m)), manifests))
    files = tuple(size for group in groups for size in group)
    return TableLayout(files, tuple(manifest.manifest_length for manifest in manifests))


def is_live(manifest: ManifestFile) -> bool:
    """Say whether a manifest lists live data files."""
    is_data = manifest.content == ManifestContent.DATA
    return is_data and (manifest.has_added_files() or manifest.has_existing_files())


def _read_sizes(table: Table, manifest: ManifestFile) -> Iterator[FileSize]:
    """Read sizes; files of an older partition spec are one group, as Spark rewrites them."""
    is_current = manifest.partition_spec_id == table.metadata.default_spec_id
    for entry in manifest.fetch_manifest_entry(table.io):
        file = entry.data_file
        yield FileSize(str(file.partition) if is_current else "", file.file_size_in_bytes)


def read_used_files(table: Table) -> Iterator[str]:
    """Yield the addresses of what the heads of all branches and tags use, and of all metadata."""
    yield table.metadata_location
    yield from (entry.metadata_file for entry in table.metadata.metadata_log)
    yield from (snapshot.manifest_list for snapshot in table.metadata.snapshots)
    heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in table.metadata.snapshots
        if snapshot.snapshot_id in heads
        for manifest in snapshot.manifests(table.io)
    }
    yield from manifests
    for manifest in manifests.values():
        for entry in manifest.fetch_manifest_entry(table.io):
            yield entry.data_file.file_path
