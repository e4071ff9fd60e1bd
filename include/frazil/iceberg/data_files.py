"""Read rows and Kafka coordinates from data files: of a staged snapshot, or of a whole table."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.expressions.literals import Literal
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import (
    DateType,
    DecimalType,
    IcebergType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from frazil.errors import IncompatibleTableError
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.commits import read_added_files
from frazil.ledger import keys
from frazil.ledger.coordinates import Coordinates, Offsets, Partition

_KAFKA_FIELDS = ("topic", "partition", "offset")
_EQUALITY_TOTAL = "total-equality-deletes"
COORDINATE = tuple(f"{keys.KAFKA_COLUMN}.{name}" for name in _KAFKA_FIELDS)


class NeedsColumns(Protocol):
    """Anything that lists the columns that it needs, such as an expectation."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""


def read_staged_frame(
    table: Table, snapshot_id: int | None, needs: Iterable[NeedsColumns]
) -> pa.Table:
    """Read the rows that one snapshot added, with the columns that `needs` lists."""
    names = tuple(dict.fromkeys(name for need in needs for name in need.columns))
    schema = table.schema().select(*names) if names else table.schema()
    files = read_added_files(table, snapshot_id) if snapshot_id is not None else []
    with translated_errors(f"reading staged rows of {'.'.join(table.name())}"):
        return read_files(table, schema, [FileScanTask(file) for file in files])


def read_files(table: Table, schema: Schema, tasks: Iterable[FileScanTask]) -> pa.Table:
    """Read the rows of the given files, without deleted rows."""
    return ArrowScan(table.metadata, table.io, schema, AlwaysTrue()).to_table(tasks)


def read_column(rows: pa.Table | pa.RecordBatch, path: str) -> pa.ChunkedArray | pa.Array:
    """Return a column, or a struct's field by its dotted path, null where the struct is null.

    Columns of another writer's table may have dots in their names themselves.
    """
    name, rest = _split_path(path, rows.schema.names)
    column = rows[name]
    while rest:
        fields = [field.name for field in column.type]
        name, rest = _split_path(rest, fields)
        column = pc.struct_field(column, fields.index(name))
    return column


def _split_path(path: str, names: Sequence[str]) -> tuple[str, str]:
    """Return the name with which a path begins, and what follows it."""
    if path in names:
        return path, ""
    name = max((each for each in names if path.startswith(f"{each}.")), key=len, default=path)
    return name, path.removeprefix(f"{name}.")


def to_arrow(values: "Iterable[Literal[Any]]", kind: IcebergType) -> pa.Array:
    """Return values of a type as Arrow has them in the rows of data files."""
    plain = [value.value for value in values]
    match kind:
        case DateType():
            return pa.array(plain, pa.int32()).cast(pa.date32())
        case TimestampType():
            return pa.array(plain, pa.timestamp("us"))
        case TimestamptzType():
            return pa.array(plain, pa.timestamp("us", "UTC"))
        case DecimalType():
            return pa.array(plain, pa.decimal128(kind.precision, kind.scale))
        case UUIDType():
            return pa.array(plain, pa.binary(16))
        case _:
            return pa.array(plain)


def flag_in(column: pa.ChunkedArray, values: pa.Array) -> NDArray[np.bool_]:
    """Flag which of a column's values are among these."""
    column = to_comparable(column)
    flags: NDArray[np.bool_] = pc.is_in(column, value_set=values.cast(column.type)).to_numpy()
    return flags


def flag_whole(sets: Mapping[str, pa.Array], rows: pa.Table) -> NDArray[np.bool_]:
    """Flag the rows whose values in all columns are those of one key (one position of the sets).

    Keys are numbered column by column; renumbering keeps the numbers below the number of keys.
    """
    flags = np.ones(len(rows), dtype=np.bool_)
    given = np.zeros(len(next(iter(sets.values()))), dtype=np.int64)
    numbers = np.zeros(len(rows), dtype=np.int64)
    for column, values in sets.items():
        plain = to_comparable(read_column(rows, column))
        typed = values.cast(plain.type)
        distinct = typed.unique()
        position = pc.index_in(plain, value_set=distinct).fill_null(-1).to_numpy()
        flags &= position >= 0
        numbers = numbers * len(distinct) + position
        pairs = given * len(distinct) + pc.index_in(typed, value_set=distinct).to_numpy()
        known, given = np.unique(pairs, return_inverse=True)
        numbers_at = np.searchsorted(known, numbers).clip(max=len(known) - 1)
        flags &= known[numbers_at] == numbers
        numbers = numbers_at
    return flags


def to_comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return uuids as bytes, which Arrow compares."""
    return column.cast(pa.binary(16)) if isinstance(column.type, pa.UuidType) else column


def read_row_coordinates(table: Table, snapshot_id: int | None = None) -> dict[Partition, Offsets]:
    """Read the coordinates of every row at a snapshot or main's head, ascending, with duplicates.

    Rows of an adopted table without coordinates are left out.

    Raises:
        IncompatibleTableError: another engine deleted rows by equality.
        CatalogUnavailableError, StorageError: the rows cannot be read.
    """
    grouped = _read_grouped(table, (), snapshot_id)
    return {(topic, number): offsets for (_, topic, number), offsets in grouped.items()}


def read_dead_letters(table: Table | None) -> dict[Partition, dict[str, Offsets]]:
    """Read the coordinates of every dead letter, by partition and attempt."""
    found: defaultdict[Partition, dict[str, Offsets]] = defaultdict(dict)
    if table is not None:
        for (attempt, topic, number), offsets in _read_grouped(table, ("attempt",)).items():
            found[topic, number][attempt] = offsets
    return found


def list_equality_deletes(table: Table, snapshot: Snapshot | None) -> list[DataFile]:
    """Return the equality delete files of a snapshot, whether they still hide a row or not."""
    manifests = snapshot.manifests(table.io) if snapshot else []
    return [
        entry.data_file
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.content == DataFileContent.EQUALITY_DELETES
    ]


def require_no_equality_deletes(table: Table, snapshot: Snapshot | None, next_step: str) -> None:
    """Check that a snapshot has no equality deletes, which PyIceberg cannot apply.

    If the summary lacks the total, the manifests are read.

    Raises:
        IncompatibleTableError: it has some; Kafka Connect's upserts, for one, write them.
        CatalogUnavailableError, StorageError: the manifests cannot be read.
    """
    name = ".".join(table.name())
    total = snapshot.summary.get(_EQUALITY_TOTAL) if snapshot and snapshot.summary else None
    with translated_errors(f"reading delete files of {name}"):
        if total == "0" or not (total or list_equality_deletes(table, snapshot)):
            return
    raise IncompatibleTableError(
        f"table {name} has equality deletes of another engine, which cannot be applied here",
        next_step,
    )


def _read_grouped(
    table: Table, extra: tuple[str, ...], snapshot_id: int | None = None
) -> dict[tuple[str, str, int], Offsets]:
    """Read coordinates grouped by attempt (if it is an extra column), topic and partition."""
    parts: defaultdict[tuple[str, str, int], list[Offsets]] = defaultdict(list)
    require_no_equality_deletes(
        table,
        table.current_snapshot() if snapshot_id is None else table.snapshot_by_id(snapshot_id),
        "`frazil maintain STREAM --only compact --rewrite-all --no-dry-run` applies and removes "
        "them, then run the command again",
    )
    with translated_errors(f"reading coordinates of {'.'.join(table.name())}"):
        scan = table.scan(selected_fields=(*COORDINATE, *extra), snapshot_id=snapshot_id)
        for batch in scan.to_arrow_batch_reader():
            for key, offsets in _group_batch(batch, extra):
                parts[key].append(offsets)
    return {key: np.sort(np.concatenate(offsets)) for key, offsets in parts.items()}


def _group_batch(
    batch: pa.RecordBatch, extra: tuple[str, ...]
) -> Iterable[tuple[tuple[str, str, int], Offsets]]:
    columns = {name: pc.struct_field(batch[keys.KAFKA_COLUMN], name) for name in _KAFKA_FIELDS}
    columns |= {name: batch[name] for name in extra}
    names = [*extra, "topic", "partition"]
    known = pa.table(columns).filter(pc.is_valid(columns["offset"]))
    grouped = known.group_by(names).aggregate([("offset", "list")])
    lists = grouped["offset_list"].combine_chunks()
    for index, row in enumerate(grouped.select(names).to_pylist()):
        key = (row.get("attempt") or "", row["topic"], row["partition"])
        yield key, lists[index].values.to_numpy().astype(np.int64)


def split_coordinates(coordinates: pa.StructArray) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    """Yield topic, partition and offsets of a file's coordinates."""
    topics, partitions = coordinates.field("topic"), coordinates.field("partition")
    offsets = coordinates.field("offset")
    for topic in pc.unique(topics).to_pylist():
        of_topic = pc.equal(topics, topic)
        for partition in pc.unique(partitions.filter(of_topic)).to_pylist():
            own = pc.and_(of_topic, pc.equal(partitions, partition))
            yield topic, partition, offsets.filter(own).to_numpy(zero_copy_only=False)


def flag_partition(coordinates: pa.StructArray, partition: Partition) -> NDArray[np.bool_]:
    """Flag the coordinates of one partition."""
    topic, number = (
        pc.equal(coordinates.field(name), value)
        for name, value in zip(_KAFKA_FIELDS, partition, strict=False)
    )
    own = pc.fill_null(pc.and_(topic, number), False)  # noqa: FBT003 - Arrow's signature
    flags: NDArray[np.bool_] = own.to_numpy(zero_copy_only=False)
    return flags


def read_coordinates(table: Table, snapshot_id: int) -> Coordinates:
    """Read the coordinates of the rows that one snapshot added, ascending, with duplicates."""
    parts: dict[Partition, list[Offsets]] = {}
    with translated_errors(f"reading staged rows of {'.'.join(table.name())}"):
        for coordinates in iterate_coordinates(table, snapshot_id):
            for topic, partition, offsets in split_coordinates(coordinates):
                parts.setdefault((topic, partition), []).append(offsets)
    return {partition: np.sort(np.concatenate(found)) for partition, found in parts.items()}


def iterate_coordinates(table: Table, snapshot_id: int) -> Iterator[pa.StructArray]:
    """Yield topic, partition and offset of the rows that one snapshot added, file by file."""
    io = table.io
    if not isinstance(io, PyArrowFileIO):
        io = PyArrowFileIO(io.properties)
    for file in read_added_files(table, snapshot_id):
        with io.new_input(file.file_path).open() as source:
            rows = pq.ParquetFile(source).read([*COORDINATE])
            yield rows[keys.KAFKA_COLUMN].combine_chunks()
