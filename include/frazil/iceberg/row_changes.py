"""Files that lose rows: what goes is marked by file, what stays is written again as it is.

A file's rows keep their order and their partition, so neither sorting nor layout is lost.
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
from frazil.ledger import keys
from frazil.ledger.coordinates import Offsets, Partition

COORDINATE = tuple(f"{keys.KAFKA_COLUMN}.{name}" for name in ("topic", "partition", "offset"))


@dataclass(frozen=True)
class ChangedFile:
    """One file with rows that go: which of its rows they are, and their coordinates."""

    task: FileScanTask
    is_removed: NDArray[np.bool_]
    offsets: dict[Partition, Offsets]

    @property
    def path(self) -> str:
        """Give the file's address."""
        return self.task.file.file_path

    @property
    def name(self) -> tuple[str, ...]:
        """Name the file as it reads now: deletes by others may come and change its rows."""
        return (self.path, *sorted(file.file_path for file in self.task.delete_files))


@dataclass
class RetainedRows:
    """Files written for rows that stay, by the file they come from: one turn serves the next."""

    stream: str
    by_name: dict[tuple[str, ...], list[DataFile]] = field(default_factory=dict)


def collect_offsets(affected: Iterable[ChangedFile]) -> dict[Partition, Offsets]:
    """Join the coordinates of all files, by partition."""
    parts: dict[Partition, list[Offsets]] = {}
    for file in affected:
        for partition, offsets in file.offsets.items():
            parts.setdefault(partition, []).append(offsets)
    return {partition: np.concatenate(offsets) for partition, offsets in parts.items()}


def count_rows(affected: Iterable[ChangedFile]) -> int:
    """Count the rows that go."""
    return sum(int(np.count_nonzero(file.is_removed)) for file in affected)


def write_retained_rows(
    table: Table, affected: Iterable[ChangedFile], known: RetainedRows
) -> Iterator[DataFile]:
    """Write again what stays of files that lose only some of their rows, in their own partition.

    Raises:
        TargetError: such a file belongs to an older partition spec.
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
    """Refuse to write a file again by another partition spec than its own.

    Raises:
        TargetError: a file with rows that stay belongs to an older one.
    """
    spec_id = table.spec().spec_id
    for file in affected:
        if file.is_removed.all() or file.task.file.spec_id == spec_id:
            continue
        raise TargetError(
            f"table {'.'.join(table.name())}: {file.path} holds rows that go and rows that stay, "
            f"and belongs to partition spec {file.task.file.spec_id}, the table has {spec_id} now",
            f"nothing was written; `frazil maintain {stream} --only compact --rewrite-all "
            "--no-dry-run` writes every file by the present spec",
        )


def _write_retained(table: Table, affected: ChangedFile) -> Iterator[DataFile]:
    spec = table.spec()
    rest = read_files(table, table.schema(), [affected.task]).filter(pa.array(~affected.is_removed))
    key = PartitionKey(field_values=[], partition_spec=spec, schema=table.schema())
    # The partition is the old file's: to compute it again would need the values and transforms.
    key.__dict__["partition"] = affected.task.file.partition
    task = WriteTask(
        write_uuid=uuid.uuid4(),
        task_id=0,
        schema=table.schema(),
        record_batches=rest.to_batches(),
        partition_key=None if spec.is_unpartitioned() else key,
    )
    with translated_errors(f"writing rows of {'.'.join(table.name())} that stay"):
        yield from write_file(table.io, table.metadata, iter([task]))
