"""Copy-on-write deletes: data files with deleted rows are rewritten with the retained rows.

A rewritten file keeps its partition and the order of its rows.
"""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import write_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionKey
from pyiceberg.table import FileScanTask, Table, WriteTask

from frazil.errors import TargetError
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.data_files import read_files
from frazil.ledger.coordinates import Offsets, Partition


@dataclass(frozen=True)
class ChangedFile:
    """A data file with rows to delete: a mask of these rows, and their coordinates."""

    task: FileScanTask
    is_removed: NDArray[np.bool_]
    offsets: dict[Partition, Offsets]

    @property
    def path(self) -> str:
        """Return the file's location."""
        return self.task.file.file_path

    @property
    def name(self) -> tuple[str, ...]:
        """Return the file's path and those of its delete files, which change its rows."""
        return (self.path, *sorted(file.file_path for file in self.task.delete_files))


@dataclass
class RetainedRows:
    """Files already written for retained rows, by source file; a commit retry uses them again."""

    stream: str
    by_name: dict[tuple[str, ...], list[DataFile]] = field(default_factory=dict)


def collect_offsets(affected: Iterable[ChangedFile]) -> dict[Partition, Offsets]:
    """Return the coordinates of all deleted rows, by partition."""
    parts: dict[Partition, list[Offsets]] = {}
    for file in affected:
        for partition, offsets in file.offsets.items():
            parts.setdefault(partition, []).append(offsets)
    return {partition: np.concatenate(offsets) for partition, offsets in parts.items()}


def count_rows(affected: Iterable[ChangedFile]) -> int:
    """Count the deleted rows."""
    return sum(int(np.count_nonzero(file.is_removed)) for file in affected)


def write_retained_rows(
    table: Table, affected: Iterable[ChangedFile], known: RetainedRows
) -> Iterator[DataFile]:
    """Write the retained rows of files with some deleted rows, each into its old partition.

    Raises:
        TargetError: such a file has an older partition spec.
    """
    affected = tuple(affected)
    require_current_spec(table, affected, known.stream)
    for file in affected:
        if file.is_removed.all():
            continue
        if file.name not in known.by_name:
            known.by_name[file.name] = list(_write_retained(table, file))
        yield from known.by_name[file.name]


def require_current_spec(table: Table, affected: Iterable[ChangedFile], stream: str) -> None:
    """Check that all files with retained rows have the current partition spec.

    Raises:
        TargetError: one has an older partition spec.
    """
    spec_id = table.spec().spec_id
    for file in affected:
        if file.is_removed.all() or file.task.file.spec_id == spec_id:
            continue
        raise TargetError(
            f"table {'.'.join(table.name())}: {file.path} must be rewritten, but it has partition "
            f"spec {file.task.file.spec_id} and the table has {spec_id} now; nothing was written",
            f"`frazil maintain {stream} --only compact --rewrite-all --no-dry-run` rewrites every "
            "file with the current spec; then run again",
        )


def _write_retained(table: Table, affected: ChangedFile) -> Iterator[DataFile]:
    spec = table.spec()
    retained = read_files(table, table.schema(), [affected.task]).filter(
        pa.array(~affected.is_removed)
    )
    key = PartitionKey(field_values=[], partition_spec=spec, schema=table.schema())
    # Set the old file's partition directly: computing it would need the source values.
    key.__dict__["partition"] = affected.task.file.partition
    task = WriteTask(
        write_uuid=uuid.uuid4(),
        task_id=0,
        schema=table.schema(),
        record_batches=retained.to_batches(),
        partition_key=None if spec.is_unpartitioned() else key,
    )
    with translated_errors(f"writing retained rows of {'.'.join(table.name())}"):
        yield from write_file(table.io, table.metadata, iter([task]))
