"""Which partitions Spark's Python workers can put rows into, and what their files say of them."""

import json
from collections.abc import Iterable, Iterator
from math import prod

from pyarrow.parquet import FileMetaData
from pyiceberg.io.fileformat import DataFileStatistics
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from frazil.batch_size import count_planned
from frazil.contracts import BatchPlan
from frazil.direct_orders import PartitionBy

MAX_PARTITIONS = 64
"""Of which a task begins files: a table with more is better off with Spark's shuffle."""

PLACE = b"frazil.partition"
"""In the footer of a file: its partition's values, as a JSON list."""

_TIMES = (DateType, TimestampType, TimestamptzType)
_EXACT_TYPES = (IntegerType, LongType, StringType)
_TYPES: dict[str, tuple[type[IcebergType], ...]] = {
    "identity": (BooleanType, DateType, *_EXACT_TYPES),
    "bucket": (*_TIMES, *_EXACT_TYPES),
    "truncate": _EXACT_TYPES,
    **dict.fromkeys(("year", "month", "day", "hour"), _TIMES),
}


def list_partitions(schema: Schema, spec: PartitionSpec) -> tuple[PartitionBy, ...] | None:
    """Say by what workers tell partitions apart; None where only Spark can."""
    found = [*_find_each(schema, spec.fields)]
    return None if None in found else tuple(by for by in found if by)


def _find_each(schema: Schema, fields: tuple[PartitionField, ...]) -> Iterator[PartitionBy | None]:
    columns = {column.field_id: column for column in schema.fields}
    for field in fields:
        column, transform = columns.get(field.source_id), str(field.transform)
        types = _TYPES.get(transform.partition("[")[0], ())
        fits = column is not None and isinstance(column.field_type, types)
        yield PartitionBy(column=column.name, transform=transform) if column and fits else None


def count_partitions(plan: BatchPlan, rows_in_a_file: int) -> int:
    """Say of how many partitions a task may begin files, which hold so many rows on average."""
    tasks = sum(len(parts) for parts in plan.ranges.values())
    rows = count_planned(plan) // max(tasks, 1)
    return max(1, min(MAX_PARTITIONS, rows // max(rows_in_a_file, 1)))


def exceed(partitions: Iterable[PartitionBy], most: int) -> bool:
    """Say whether there are more partitions for sure: a batch has rows for all buckets."""
    widths = (by.transform.partition("[") for by in partitions)
    return prod(int(width.rstrip("]")) for kind, _, width in widths if kind == "bucket") > most


def read_place(table: Table, footer: FileMetaData, statistics: DataFileStatistics) -> Record:
    """Read a file's partition from its footer, and see that it is that of its smallest value too.

    Raises:
        ValueError: the footer names none, or one that its rows are not of.
    """
    spec, schema = table.spec(), table.schema()
    if spec.is_unpartitioned():
        return Record()
    said = (footer.metadata or {}).get(PLACE, b"null")
    values = json.loads(said)
    if values is None or len(values) != len(spec.fields):
        message = f"its footer names partition {said.decode()}"
        raise ValueError(message)
    for field, value in zip(spec.fields, values, strict=True):
        held = statistics.column_aggregates.get(field.source_id)
        if held is None or held.current_min is None or not field.transform.preserves_order:
            continue
        bounds = DataFileStatistics.partition(statistics, PartitionSpec(field), schema)
        if bounds[0] != value:
            message = f"its footer names {field.name} {value}, its rows are of {bounds[0]}"
            raise ValueError(message)
    return Record(*values)
